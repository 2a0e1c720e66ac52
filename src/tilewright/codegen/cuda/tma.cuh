// Products whose operands are plain matrices with the depth side by side, on Hopper and later: one
// warp has the copy engine fetch steps of 64 halves, or as many pairs of bytes, groups of 4 warps multiply them. A block takes
// one tile after the other, and fetches the next one while it stores.
struct alignas(64) TwMap {
  u64 words[16];
};
TW_FN void tw_barrier_init(u64* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(tw_shared_address(barrier)),
               "r"(arrivals) : "memory");
}
TW_FN void tw_barrier_expect(u64* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   tw_shared_address(barrier)), "r"(bytes) : "memory");
}
TW_FN void tw_barrier_arrive(u64* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(tw_shared_address(barrier))
               : "memory");
}
TW_FN void tw_barrier_wait(u64* barrier, int phase) {
  u32 done, at = tw_shared_address(barrier);
  do {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(at), "r"(phase) : "memory");
  } while (!done);
}
TW_FN void tw_fetch_box(u16* to, const TwMap* map, int k, int row, u64* barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3}], [%4];" ::"r"(tw_shared_address(to)), "l"(map), "r"(k),
               "r"(row), "r"(tw_shared_address(barrier)) : "memory");
}

// BM x BN outputs by GROUPS of 4 warps. TURNS: each group has tiles of its own, so that one stores
// while another multiplies. FIXED: the columns' operand is a constant, which is fetched before the
// kernel before this one has ended.
template <class ELEMENTS, int BM, int BN, int GROUPS, int STAGES, bool TURNS, bool FIXED>
struct TwMatrix {
  typedef typename ELEMENTS::Sum Sum;
  static constexpr int DEPTH = 64, WARPS = 4 * GROUPS, BAND = 8;
  static constexpr int A_SIZE = BM * DEPTH, STAGE = (BM + BN) * DEPTH;
  static constexpr int MI = BM / (TURNS ? 64 : 64 * GROUPS), NI = BN / 8;

  // Which rows of a tile a group multiplies.
  static __device__ __forceinline__ int first_row() {
    return TURNS ? 0 : (int)threadIdx.x / 128 * MI * 64;
  }

  // Tiles in bands of some rows, so that blocks at work share operands in the cache.
  static __device__ __forceinline__ void place(int tile, int down, int across, int& m, int& n) {
    int band = tile / (BAND * across), inside = tile % (BAND * across);
    int rows = down - band * BAND < BAND ? down - band * BAND : BAND;
    m = (band * BAND + inside % rows) * BM;
    n = inside / rows * BN;
  }

  static __device__ __forceinline__ void multiply(const u16* a, const u16* b,
                                                  Sum (&sums)[MI][NI][4]) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    a += first_row() * DEPTH;
#if TW_WGMMA
    u64 left = tw_wgmma_rows(a), right = tw_wgmma_rows(b);
#pragma unroll
    for (int step = 0; step < DEPTH / 16; ++step)
#pragma unroll
      for (int i = 0; i < MI; ++i)
        TwWgmma<BN, ELEMENTS>::add(sums[i], left + i * (64 * DEPTH * 2 / 16) + step * 2, right + step * 2);
#else
#pragma unroll
    for (int step = 0; step < DEPTH / 8; step += 2)
#pragma unroll
      for (int i = 0; i < MI; ++i) {
        u32 left[4], right[4];
        int row = i * 64 + warp % 4 * 16 + lane % 16, chunk = step + lane / 16;
        tw_matrices4<false>(left, a + row * DEPTH + (chunk ^ row % 8) * 8);
#pragma unroll
        for (int j = 0; j < NI; j += 2) {
          int column = j * 8 + lane % 8 + lane / 16 * 8, part = step + lane / 8 % 2;
          tw_matrices4<false>(right, b + column * DEPTH + (part ^ column % 8) * 8);
          ELEMENTS::add(sums[i][j], left, right);
          ELEMENTS::add(sums[i][j + 1], left, right + 2);
        }
      }
#endif
  }

  static __device__ __forceinline__ void fetch_all(const TwMap* map_a, const TwMap* map_b,
                                                   u16* tiles, u64* full, u64* empty, int M,
                                                   int N, int K) {
    int down = (M + BM - 1) / BM, across = (N + BN - 1) / BN, steps = (K + DEPTH - 1) / DEPTH;
    int m, n, number = 0, early = FIXED ? (steps < STAGES ? steps : STAGES) : 0;
    place(blockIdx.x, down, across, m, n);
    for (int step = 0; step < early; ++step) {
      tw_barrier_expect(full + step, STAGE * 2);
      tw_fetch_box(tiles + step * STAGE + A_SIZE, map_b, step * DEPTH, n, full + step);
    }
    tw_begin();
    for (int tile = blockIdx.x; tile < down * across; tile += gridDim.x) {
      place(tile, down, across, m, n);
      for (int step = 0; step < steps; ++step, ++number) {
        int slot = number % STAGES;
        if (number >= STAGES) tw_barrier_wait(empty + slot, (number / STAGES + 1) & 1);
        if (number >= early) {
          tw_barrier_expect(full + slot, STAGE * 2);
          tw_fetch_box(tiles + slot * STAGE + A_SIZE, map_b, step * DEPTH, n, full + slot);
        }
        tw_fetch_box(tiles + slot * STAGE, map_a, step * DEPTH, m, full + slot);
      }
    }
  }

  // Outputs of a thread in units of 8 side by side, some units at a time: a part.
  static constexpr int UNITS = NI / 4;
  static constexpr int TOGETHER = UNITS % 4 == 0 ? 4 : UNITS % 3 == 0 ? 3 : UNITS;
  static constexpr int ACROSS = UNITS / TOGETHER, PARTS = MI * 2 * ACROSS;

  static __device__ __forceinline__ int row_of(int part) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, line = part / ACROSS;
    return first_row() + line / 2 * 64 + warp % 4 * 16 + line % 2 * 8 + lane / 4;
  }
  static __device__ __forceinline__ int column_of(int part) {
    return part % ACROSS * TOGETHER * 32 + (int)threadIdx.x % 4 * 8;
  }

  template <class Got, class Read>
  static __device__ __forceinline__ void read_part(Got (&got)[TOGETHER], int part, int m0, int n0,
                                                   int M, int N, Read& read) {
    int m = m0 + row_of(part), n = n0 + column_of(part), last = N < 8 ? 0 : N - 8;
#pragma unroll
    for (int k = 0; k < TOGETHER; ++k)
      got[k] = read(M % BM == 0 || m < M ? m : M - 1,
                    N % BN == 0 || n + k * 32 < N ? n + k * 32 : last);
  }

  // What outputs need of memory is read a part ahead where that takes few registers: the first
  // part before the tile is multiplied.
  template <class Got> static constexpr bool AHEAD = sizeof(Got) <= 8;

  template <class Got, class Read, class Store>
  static __device__ __forceinline__ void finish(int m0, int n0, int M, int N,
                                                Sum (&sums)[MI][NI][4], Got (&got)[TOGETHER],
                                                Read& read, Store& store) {
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      // Known when compiled: no branches between units, where there are registers for several.
      bool whole = ELEMENTS::PAIR > 1 && AHEAD<Got> && M % BM == 0 && N % BN == 0;
      Got next[TOGETHER];
      if (!AHEAD<Got>) read_part(got, part, m0, n0, M, N, read);
      if (AHEAD<Got> && part + 1 < PARTS) read_part(next, part + 1, m0, n0, M, N, read);
      int line = part / ACROSS, first = part % ACROSS * TOGETHER;
      int m = m0 + row_of(part), n = n0 + column_of(part);
#pragma unroll
      for (int k = 0; k < TOGETHER; ++k) {
        Sum sum[8];
#pragma unroll
        for (int e = 0; e < 8; ++e)
          sum[e] = sums[line / 2][(first + k) * 4 + e / 2][2 * (line % 2) + e % 2];
        tw_swap_columns(sum);
        if (whole || (m < M && n + k * 32 < N)) store(m, n + k * 32, sum, got[k]);
      }
      if (AHEAD<Got> && part + 1 < PARTS)
#pragma unroll
        for (int k = 0; k < TOGETHER; ++k) got[k] = next[k];
    }
  }

  template <class Read, class Store>
  static __device__ __forceinline__ void run(const TwMap* map_a, const TwMap* map_b, int M, int N,
                                             int K, Read read, Store store) {
    u16* tiles = (u16*)(tw_shared + (1024 - (tw_shared_address(tw_shared) & 1023)) % 1024);
    u64* full = (u64*)(tiles + STAGES * STAGE);
    u64* empty = full + STAGES;
    u64* turns = empty + STAGES;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
      for (int k = 0; k < GROUPS; ++k) tw_barrier_init(turns + k, 4);
      for (int k = 0; k < STAGES; ++k) {
        tw_barrier_init(full + k, 1);
        tw_barrier_init(empty + k, TURNS ? 4 : WARPS);
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp < WARPS) multiply_all(tiles, full, empty, turns, M, N, K, read, store);
    else if (lane == 0) fetch_all(map_a, map_b, tiles, full, empty, M, N, K);
  }

  // A group begins a tile when the one before has read all steps of the tile before: a barrier is
  // never waited for while it is two rounds behind, which it could not tell.
  template <class Read, class Store>
  static __device__ __forceinline__ void multiply_all(const u16* tiles, u64* full, u64* empty,
                                                      u64* turns, int M, int N, int K,
                                                      Read& read, Store& store) {
    tw_begin();
    int down = (M + BM - 1) / BM, across = (N + BN - 1) / BN, steps = (K + DEPTH - 1) / DEPTH;
    int turn = -1, lane = threadIdx.x % 32;
    for (int tile = blockIdx.x; tile < down * across; tile += gridDim.x) {
      int number = ++turn * steps;
      if (TURNS && turn % GROUPS != (int)threadIdx.x / 128) continue;
      if (TURNS && turn > 0) tw_barrier_wait(turns + turn % GROUPS, (turn - 1) / GROUPS & 1);
      int m, n;
      place(tile, down, across, m, n);
      decltype(read(0, 0)) got[TOGETHER];
      if (AHEAD<decltype(read(0, 0))>) read_part(got, 0, m, n, M, N, read);
      Sum sums[MI][NI][4];
#pragma unroll
      for (int i = 0; i < MI; ++i)
#pragma unroll
        for (int j = 0; j < NI; ++j)
#pragma unroll
          for (int k = 0; k < 4; ++k) sums[i][j][k] = 0;
      for (int step = 0; step < steps; ++step, ++number) {
        int slot = number % STAGES;
        tw_barrier_wait(full + slot, number / STAGES & 1);
        const u16* a = tiles + slot * STAGE;
#if TW_WGMMA
        tw_wgmma_begin();
        multiply(a, a + A_SIZE, sums);
        tw_wgmma_end();
        tw_wgmma_wait<1>();
        if (step > 0 && lane == 0) tw_barrier_arrive(empty + (number + STAGES - 1) % STAGES);
#else
        multiply(a, a + A_SIZE, sums);
        __syncwarp();
        if (lane == 0) tw_barrier_arrive(empty + slot);
#endif
      }
      if (TURNS && lane == 0) tw_barrier_arrive(turns + (turn + 1) % GROUPS);
#if TW_WGMMA
      tw_wgmma_wait<0>();
      if (lane == 0) tw_barrier_arrive(empty + (number + STAGES - 1) % STAGES);
#endif
      finish(m, n, M, N, sums, got, read, store);
    }
  }
};
