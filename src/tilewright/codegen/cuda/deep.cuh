// A block of a product whose operands both run along the depth in memory, 64 halves a step, or as
// many pairs of bytes.
// A row of a step is 128 bytes of shared memory; its 16-byte chunk c lies at c ^ (row % 8), which
// keeps every access free of bank conflicts and is the order that Hopper's wgmma reads.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TW_WGMMA 1
#else
#define TW_WGMMA 0
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define TW_CLUSTERS 1
#else
#define TW_CLUSTERS 0
#endif

#ifdef __CUDACC__
TW_FN void tw_fence_copies() {
#if TW_WGMMA
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
#if TW_WGMMA
TW_FN void tw_wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TW_FN void tw_wgmma_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> TW_FN void tw_wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// Rows of 128 bytes in the order above, in groups of 8 rows.
TW_FN u64 tw_wgmma_rows(const u16* p) {
  return (u64)((tw_shared_address(p) & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
#endif
#if TW_CLUSTERS
TW_FN u32 tw_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// The blocks of a cluster meet. Ordering all memory, as this does by default, takes a microsecond.
TW_FN void tw_cluster_meet() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" :::
               "memory");
}
// What each wrote to its shared memory can be read by the others.
TW_FN void tw_cluster_sync() {
  asm volatile("fence.release.sync_restrict::shared::cta.cluster;" ::: "memory");
  tw_cluster_meet();
}
// Four sums of another block of the cluster, at the address where they would lie in this one.
template <class T> TW_FN TwPack<T, 4> tw_remote4(const T* p, u32 rank) {
  u32 at = tw_shared_address(p), there;
  TwPack<u32, 4> x;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
  asm volatile("ld.shared::cluster.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.v[0]), "=r"(x.v[1]), "=r"(x.v[2]), "=r"(x.v[3]) : "r"(there) : "memory");
  return tw_bits<TwPack<T, 4>>(x);
}
#endif
#endif

// The indices on the axes that a row, a column or a depth stands for, and its share of the address.
struct TwSpot {
  int p[4];
  int base;
};

// What lies outside of an image, where that is not 0.
template <u32 WORD> __device__ const TwPack<u32, 4> tw_fill = {{WORD, WORD, WORD, WORD}};

template <int N, class ELEMENTS> struct TwWgmma;  // written where it is used (wgmma.py)

// BM x BN outputs by WM x WN warps; the SPLIT blocks of a cluster share the depth. PANEL
// columns go through shared memory at once. FIXED: the columns' operand is a constant, which is
// fetched before the kernel before this one has ended.
template <class ELEMENTS, int BM, int BN, int WM, int WN, int STAGES, int SPLIT, int PANEL,
          bool FIXED>
struct TwDeep {
  typedef typename ELEMENTS::Sum Sum;
  static constexpr int DEPTH = 64, THREADS = 32 * WM * WN, LINE = PANEL + 4, BAND = 8;
  static constexpr int A_ROWS = BM * 8 / THREADS, B_ROWS = BN * 8 / THREADS;
  static constexpr int A_SIZE = BM * DEPTH, STAGE = (BM + BN) * DEPTH;
  static constexpr bool WIDE = TW_WGMMA && BM % (16 * WM * WN) == 0;  // rows of 64 by 4 warps
  static constexpr int LAG = WIDE ? 2 : 1;  // steps whose memory is still read
  static constexpr int MI = WIDE ? BM / (16 * WM * WN) : BM / WM / 16;
  static constexpr int NI = WIDE ? BN / 8 : BN / WN / 8;

  // Tiles in bands of some rows, so that blocks at work share operands in the cache.
  static __device__ __forceinline__ void place(int tile, int down, int across, int& m, int& n) {
    int band = tile / (BAND * across), inside = tile % (BAND * across);
    int rows = down - band * BAND < BAND ? down - band * BAND : BAND;
    m = (band * BAND + inside % rows) * BM;
    n = inside / rows * BN;
  }

  template <int ROWS, class Place>
  static __device__ __forceinline__ void places(TwSpot (&found)[ROWS], int first, Place& place) {
#pragma unroll
    for (int k = 0; k < ROWS; ++k)
      found[k] = place(first + k * (THREADS / 8) + (int)threadIdx.x / 8);
  }

  template <int ROWS, class Load>
  static __device__ __forceinline__ void fetch(u16* tile, int first, int k, const TwSpot& deep,
                                               const TwSpot (&rows)[ROWS], Load& load) {
    int line = threadIdx.x / 8, at = ((int)threadIdx.x % 8 ^ line % 8) * 8;
#pragma unroll
    for (int number = 0; number < ROWS; ++number, line += THREADS / 8)
      load(tile + line * DEPTH + at, first + line, rows[number], k, deep);
  }

#if TW_WGMMA
  static __device__ __forceinline__ void multiply_wide(const u16* a, const u16* b,
                                                       Sum (&sums)[MI][NI][4]) {
    int group = threadIdx.x / 128;
    u64 left = tw_wgmma_rows(a + group * MI * 64 * DEPTH), right = tw_wgmma_rows(b);
#pragma unroll
    for (int step = 0; step < DEPTH / 16; ++step)
#pragma unroll
      for (int i = 0; i < MI; ++i) {
        TwWgmma<BN, ELEMENTS>::add(sums[i], left + i * (64 * DEPTH * 2 / 16) + step * 2, right + step * 2);
      }
  }
#endif

  static __device__ __forceinline__ void multiply(const u16* a, const u16* b,
                                                  Sum (&sums)[MI][NI][4]) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int wm = warp % WM, wn = warp / WM;
#pragma unroll
    for (int step = 0; step < DEPTH / 8; step += 2) {
      u32 left[MI][4], right[NI / 2][4];
#pragma unroll
      for (int i = 0; i < MI; ++i) {
        int row = (wm * MI + i) * 16 + lane % 16, chunk = step + lane / 16;
        tw_matrices4<false>(left[i], a + row * DEPTH + (chunk ^ row % 8) * 8);
      }
#pragma unroll
      for (int j = 0; j < NI / 2; ++j) {
        int row = (wn * NI / 2 + j) * 16 + lane % 8 + lane / 16 * 8, chunk = step + lane / 8 % 2;
        tw_matrices4<false>(right[j], b + row * DEPTH + (chunk ^ row % 8) * 8);
      }
#pragma unroll
      for (int i = 0; i < MI; ++i)
#pragma unroll
        for (int j = 0; j < NI; ++j) ELEMENTS::add(sums[i][j], left[i], right[j / 2] + j % 2 * 2);
    }
  }

  template <class PlaceA, class PlaceB, class DepthA, class DepthB, class LoadA, class LoadB,
            class Read, class Store>
  static __device__ __forceinline__ void run(
      int tile, int down, int across, int M, int N, int K, PlaceA place_a, PlaceB place_b, DepthA depth_a, DepthB depth_b,
      LoadA load_a, LoadB load_b, Read read, Store store) {
    u16* tiles = (u16*)(tw_shared + (1024 - (tw_shared_address(tw_shared) & 1023)) % 1024);
    int steps = (K + DEPTH * ELEMENTS::PAIR - 1) / (DEPTH * ELEMENTS::PAIR), begin = 0, rank = 0;
#if TW_CLUSTERS
    if (SPLIT > 1) {
      rank = tw_rank();
      begin = rank * steps / SPLIT;
      steps = (rank + 1) * steps / SPLIT - begin;
    }
#endif
    int m0, n0;
    place(tile, down, across, m0, n0);
    TwSpot columns[B_ROWS], rows[A_ROWS];
    places(columns, n0, place_b);
    auto fetch_a = [&](int step) {
      int k = ((begin + step) * DEPTH + (int)threadIdx.x % 8 * 8) * ELEMENTS::PAIR;
      fetch(tiles + step % STAGES * STAGE, m0, k, depth_a(k), rows, load_a);
    };
    auto fetch_b = [&](int step) {
      int k = ((begin + step) * DEPTH + (int)threadIdx.x % 8 * 8) * ELEMENTS::PAIR;
      fetch(tiles + step % STAGES * STAGE + A_SIZE, n0, k, depth_b(k), columns, load_b);
    };
    if (!FIXED) tw_begin();
#pragma unroll
    for (int step = 0; step < STAGES - LAG; ++step)
      if (step < steps) fetch_b(step);
    if (FIXED) tw_begin();
    places(rows, m0, place_a);
#pragma unroll
    for (int step = 0; step < STAGES - LAG; ++step) {
      if (step < steps) fetch_a(step);
      tw_commit();
    }
    Sum sums[MI][NI][4];
#pragma unroll
    for (int i = 0; i < MI; ++i)
#pragma unroll
      for (int j = 0; j < NI; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) sums[i][j][k] = 0;
    for (int step = 0; step < steps; ++step) {
      tw_wait<STAGES - LAG - 1>();
      tw_fence_copies();
      __syncthreads();
      const u16* a = tiles + step % STAGES * STAGE;
#if TW_WGMMA
      if constexpr (WIDE) {
        tw_wgmma_begin();
        multiply_wide(a, a + A_SIZE, sums);
        tw_wgmma_end();
      }
#endif
      int next = step + STAGES - LAG;
      if (next < steps) {
        fetch_a(next);
        fetch_b(next);
      }
      tw_commit();
#if TW_WGMMA
      if constexpr (WIDE) tw_wgmma_wait<1>();
#endif
      if constexpr (!WIDE) multiply(a, a + A_SIZE, sums);
    }
    tw_wait<0>();
#if TW_WGMMA
    if constexpr (WIDE) tw_wgmma_wait<0>();
#endif
#pragma unroll
    for (int first = 0; first < BN; first += PANEL) {
      __syncthreads();
      gather((Sum*)tiles, first, sums);
      finish((Sum*)tiles, rank, m0, n0 + first, M, N, read, store);
    }
  }

  // Sums to shared memory, where neighbours are neighbours.
  static __device__ __forceinline__ void gather(Sum* all, int first,
                                                Sum (&sums)[MI][NI][4]) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < MI; ++i)
#pragma unroll
      for (int j = 0; j < NI; ++j)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          int row = WIDE ? (warp / 4 * MI + i) * 64 + warp % 4 * 16 : (warp % WM * MI + i) * 16;
          int column = (WIDE ? j : warp / WM * NI + j) * 8 - first;
          if (PANEL < BN && (column < 0 || column >= PANEL)) continue;
          Sum* to = all + (row + lane / 4 + k * 8) * LINE + column + lane % 4 * 2;
          to[0] = sums[i][j][2 * k];
          to[1] = sums[i][j][2 * k + 1];
        }
  }

  // Each block of a cluster adds the sums of some rows, in the order of the blocks.
  template <class Read, class Store>
  static __device__ __forceinline__ void finish(const Sum* all, int rank, int m0, int n0, int M,
                                                int N, Read& read, Store& store) {
    constexpr bool SHARED = TW_CLUSTERS && SPLIT > 1;
    constexpr int ROWS = SHARED ? BM / SPLIT : BM, UNITS = ROWS * PANEL / 8;
    constexpr int ROUNDS = (UNITS + THREADS - 1) / THREADS, TOGETHER = ROUNDS < 4 ? ROUNDS : 4;
    int last = N < 8 ? 0 : N - 8;
    auto row_of = [&](int unit) { return rank * ROWS + unit / (PANEL / 8); };
#if TW_CLUSTERS
    if (SHARED) tw_cluster_sync();
#endif
    if (!SHARED) __syncthreads();
    for (int start = threadIdx.x; start < UNITS; start += TOGETHER * THREADS) {
      decltype(read(0, 0)) got[TOGETHER];
#pragma unroll
      for (int k = 0; k < TOGETHER; ++k) {
        int unit = start + k * THREADS, m = m0 + row_of(unit), n = n0 + unit % (PANEL / 8) * 8;
        got[k] = read(m < M ? m : M - 1, n < N ? n : last);
      }
#pragma unroll
      for (int k = 0; k < TOGETHER; ++k) {
        int unit = start + k * THREADS, row = row_of(unit), column = unit % (PANEL / 8) * 8;
        bool inside = (M % BM == 0 || m0 + row < M) && (N % BN == 0 || n0 + column < N);
        if ((UNITS % (TOGETHER * THREADS) != 0 && unit >= UNITS) || !inside) continue;
        TwPack<Sum, 8> sum = sum_of(all + row * LINE + column);
        store(m0 + row, n0 + column, sum.v, got[k]);
      }
    }
#if TW_CLUSTERS
    if (SHARED) tw_cluster_meet();  // others read this block's memory
#endif
  }

  static __device__ __forceinline__ TwPack<Sum, 8> sum_of(const Sum* from) {
    TwPack<Sum, 8> sum;
#if TW_CLUSTERS
    if (SPLIT > 1) {
      memset(&sum, 0, sizeof sum);
#pragma unroll
      for (int other = 0; other < SPLIT; ++other) {
        TwPack<Sum, 4> low = tw_remote4(from, other), high = tw_remote4(from + 4, other);
#pragma unroll
        for (int e = 0; e < 4; ++e) sum.v[e] += low.v[e], sum.v[e + 4] += high.v[e];
      }
      return sum;
    }
#endif
    return *(const TwPack<Sum, 8>*)from;
  }
};
