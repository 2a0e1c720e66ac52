// Products whose operands have the depth side by side, plain matrices or windows on images, on
// Hopper and later: one warp has the copy engine fetch steps of 64 halves, or as many pairs of
// bytes, groups of 4 warps multiply them. A block takes
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

// Of windows that begin at a place of an image and those after it, the same tap.
TW_FN void tw_fetch_window(u16* to, const TwMap* map, int channel, int across, int down, int image,
                           int tap_across, int tap_down, u64* barrier) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};" ::"r"(tw_shared_address(to)),
               "l"(map), "r"(channel), "r"(across), "r"(down), "r"(image),
               "r"(tw_shared_address(barrier)), "h"((u16)tap_across), "h"((u16)tap_down)
               : "memory");
}
// Rows in an order by which 8 neighbouring sums come to lie in one thread (tensor_map.py).
TW_FN void tw_fetch_mixed(u16* to, const TwMap* map, int k, int row, u64* barrier) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3, %3, %3, %4}], [%5];" ::"r"(tw_shared_address(to)), "l"(map),
               "r"(k), "r"(0), "r"(row / 32), "r"(tw_shared_address(barrier)) : "memory");
}
// Keeps loads where they were written: before what is long.
template <class T> TW_FN void tw_pin(T& x) {
  u32 words[(sizeof(T) + 3) / 4] = {};
  memcpy(words, &x, sizeof(T));
  for (u32& word : words) asm volatile("" : "+r"(word));
  memcpy(&x, words, sizeof(T));
}

#if TW_WGMMA
// Registers of the 4 warps of a group.
template <int COUNT> TW_FN void tw_fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> TW_FN void tw_more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
#endif

// BM x BN outputs by groups of 4 warps; one more warp fetches, of a group if that gives the others
// its registers. TURNS: each group has tiles of its own, so that one stores
// while another multiplies. FIXED: the columns' operand is a constant, which is fetched before the
// kernel before this one has ended. MIXED: its rows are fetched in the order of tw_fetch_mixed.
// AHEAD: what outputs need of memory is read before their sums. SPLIT: so many blocks, a cluster,
// share the depth of a tile, which is the only one of each.
template <class ELEMENTS, int BM, int BN, int THREADS, int STAGES, bool TURNS, bool FIXED,
          bool MIXED, bool AHEAD, int SPLIT>
struct TwMatrix {
  typedef typename ELEMENTS::Sum Sum;
  // Fewer instructions between tiles, which took 8 to 12 % longer for 16 bits and a matrix that is
  // added: no registers are left there.
  static constexpr bool BYTES = ELEMENTS::PAIR > 1;
  static constexpr int GROUPS = (THREADS - 32) / 128;
  static constexpr bool GIVES = THREADS % 128 == 0;
  static constexpr int DEPTH = 64, WARPS = 4 * GROUPS, BAND = 8;
  static constexpr int A_SIZE = BM * DEPTH, STAGE = (BM + BN) * DEPTH;
  static constexpr int MI = BM / (TURNS ? 64 : 64 * GROUPS), NI = BN / 8;
  // Packs of 8 neighbouring sums: those of a thread, those that it stores, those read for at once.
  static constexpr int ROWS = 2 * MI, PACKS = NI / 4 * ROWS, OWN = PACKS / SPLIT;
  static constexpr int ROUND = AHEAD ? OWN : OWN % 4 == 0 ? 4 : OWN % 3 == 0 ? 3 : OWN;
  static_assert(PACKS % SPLIT == 0, "blocks of a cluster store the same number");

  // Which rows of a tile a group multiplies.
  static __device__ __forceinline__ int first_row() {
    return TURNS ? 0 : (int)threadIdx.x / 128 * MI * 64;
  }

  // Tiles in bands of some rows, so that blocks at work share operands in the cache.
  static __device__ __forceinline__ void place(int tile, int down, int across, int& m, int& n) {
    int band = tile / (BAND * across), inside = tile % (BAND * across);
    int rows = down - band * BAND < BAND ? down - band * BAND : BAND;
    if (BYTES && rows == BAND) {  // a division by what is not known takes long
      m = (band * BAND + inside % BAND) * BM;
      n = inside / BAND * BN;
      return;
    }
    m = (band * BAND + inside % rows) * BM;
    n = inside / rows * BN;
  }

  // Without `more`, wgmma begins the sums with these products.
  static __device__ __forceinline__ void multiply(const u16* a, const u16* b, bool more,
                                                  Sum (&sums)[MI][NI][4]) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    a += first_row() * DEPTH;
#if TW_WGMMA
    u64 left = tw_wgmma_rows(a), right = tw_wgmma_rows(b);
#pragma unroll
    for (int step = 0; step < DEPTH / 16; ++step)
#pragma unroll
      for (int i = 0; i < MI; ++i)
        TwWgmma<BN, ELEMENTS>::add(sums[i], left + i * (64 * DEPTH * 2 / 16) + step * 2,
                                   right + step * 2, more || step > 0);
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

  static __device__ __forceinline__ void clear(Sum (&sums)[MI][NI][4]) {
#pragma unroll
    for (int i = 0; i < MI; ++i)
#pragma unroll
      for (int j = 0; j < NI; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) sums[i][j][k] = 0;
  }

  static __device__ __forceinline__ void fetch_columns(const TwMap* map, u16* to, int k, int n,
                                                       u64* barrier) {
    if (MIXED) tw_fetch_mixed(to, map, k, n, barrier);
    else tw_fetch_box(to, map, k, n, barrier);
  }

  // The steps of this block.
  static __device__ __forceinline__ void share(int K, int& begin, int& steps) {
    int all = (K + DEPTH - 1) / DEPTH, rank = SPLIT > 1 ? (int)tw_rank() : 0;
    begin = rank * all / SPLIT;
    steps = (rank + 1) * all / SPLIT - begin;
  }

  template <class Fetch>
  static __device__ __forceinline__ void fetch_all(Fetch& fetch, const TwMap* map_b, u16* tiles, u64* full, u64* empty, int M,
                                                   int N, int K) {
    int down = (M + BM - 1) / BM, across = (N + BN - 1) / BN, begin, steps;
    share(K, begin, steps);
    int m, n, number = 0, early = FIXED ? (steps < STAGES ? steps : STAGES) : 0;
    place(blockIdx.x / SPLIT, down, across, m, n);
    for (int step = 0; step < early; ++step) {
      tw_barrier_expect(full + step, STAGE * 2);
      fetch_columns(map_b, tiles + step * STAGE + A_SIZE, (begin + step) * DEPTH, n, full + step);
    }
    tw_begin();
    for (int tile = blockIdx.x / SPLIT; tile < down * across; tile += gridDim.x / SPLIT) {
      place(tile, down, across, m, n);
      for (int step = 0; step < steps; ++step, ++number) {
        int slot = number % STAGES, k = (begin + step) * DEPTH;
        if (number >= STAGES) tw_barrier_wait(empty + slot, (number / STAGES + 1) & 1);
        if (number >= early) {
          tw_barrier_expect(full + slot, STAGE * 2);
          fetch_columns(map_b, tiles + slot * STAGE + A_SIZE, k, n, full + slot);
        }
        fetch(tiles + slot * STAGE, k, m, full + slot);
      }
    }
  }

  // Where a pack of this thread lies.
  static __device__ __forceinline__ void locate(int pack, int& m, int& n) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    m += first_row() + pack % ROWS / 2 * 64 + warp % 4 * 16 + pack % 2 * 8 + lane / 4;
    n += (pack / ROWS * 4 + lane % 4) * 8;
  }

  template <class Got, class Read>
  static __device__ __forceinline__ void read_round(Got (&got)[ROUND], int first, int m0, int n0,
                                                    int M, int N, Read& read) {
    int last = N < 8 ? 0 : N - 8;
#pragma unroll
    for (int k = 0; k < ROUND; ++k) {
      int m = m0, n = n0;
      locate(first + k, m, n);
      got[k] = read(M % BM == 0 || m < M ? m : M - 1, N % BN == 0 || n < N ? n : last);
    }
  }

  typedef TwPack<Sum, 4> Four;

  // Sums to shared memory, where the cluster's blocks find them.
  static __device__ __forceinline__ void hand_out(Four* all, Sum (&sums)[MI][NI][4]) {
    asm volatile("bar.sync 1, %0;" ::"n"(32 * WARPS) : "memory");  // others have read their steps
#pragma unroll
    for (int pack = 0; pack < PACKS; ++pack)
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        Four four;
#pragma unroll
        for (int e = 0; e < 4; ++e) four.v[e] = sum_of(sums, pack, part * 4 + e);
        all[(pack * 2 + part) * 32 * WARPS + threadIdx.x] = four;
      }
    tw_cluster_sync();
  }

  static __device__ __forceinline__ Sum sum_of(Sum (&sums)[MI][NI][4], int pack, int e) {
    return sums[pack % ROWS / 2][pack / ROWS * 4 + e / 2][2 * (pack % 2) + e % 2];
  }

  static __device__ __forceinline__ void collect(const Four* all, int pack, Sum (&sum)[8]) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const Four* from = all + (pack * 2 + part) * 32 * WARPS + threadIdx.x;
#pragma unroll
      for (int other = 0; other < SPLIT; ++other) {
        Four four = tw_remote4((const Sum*)from, other);
#pragma unroll
        for (int e = 0; e < 4; ++e)
          sum[part * 4 + e] = other ? sum[part * 4 + e] + four.v[e] : four.v[e];
      }
    }
  }

  // What is not read before the sums is read a round ahead where that takes few registers.
  template <class Got> static constexpr bool SOON = !AHEAD && sizeof(Got) <= 8;

  template <class Got, class Read, class Store>
  static __device__ __forceinline__ void finish(void* shared, int m0, int n0, int M, int N,
                                                Sum (&sums)[MI][NI][4], Got (&got)[ROUND],
                                                Read& read, Store& store) {
    // Known when compiled: no branches between packs, where there are registers for several.
    constexpr bool SEVERAL = SOON<Got> || (AHEAD && (GIVES || ELEMENTS::PAIR == 1));
    bool whole = SEVERAL && M % BM == 0 && N % BN == 0;
    int rank = 0;
    if constexpr (SPLIT > 1) {
      rank = tw_rank();
      hand_out((Four*)shared, sums);
    }
#pragma unroll
    for (int first = 0; first < OWN; first += ROUND) {
      Got next[ROUND];
      bool more = SOON<Got> && first + ROUND < OWN;
      if (!AHEAD && !SOON<Got>) read_round(got, rank * OWN + first, m0, n0, M, N, read);
      if (more) read_round(next, rank * OWN + first + ROUND, m0, n0, M, N, read);
#pragma unroll
      for (int k = 0; k < ROUND; ++k) {
        int pack = first + k, m = m0, n = n0;
        Sum sum[8];
        if constexpr (SPLIT > 1) collect((const Four*)shared, rank * OWN + pack, sum);
        else
#pragma unroll
          for (int e = 0; e < 8; ++e) sum[e] = sum_of(sums, pack, e);
        if (!MIXED) tw_swap_columns(sum);
        locate(rank * OWN + pack, m, n);
        if (whole || (m < M && n < N)) store(m, n, sum, got[k]);
      }
      if (more)
#pragma unroll
        for (int k = 0; k < ROUND; ++k) got[k] = next[k];
    }
    if constexpr (SPLIT > 1) tw_cluster_meet();  // others read this block's memory
  }

  // fetch: has the engine fetch 64 of the depth for the rows of a tile.
  template <class Fetch, class Read, class Store>
  static __device__ __forceinline__ void run(Fetch fetch, const TwMap* map_b, int M, int N, int K,
                                             Read read, Store store) {
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
    if (warp < WARPS) {
#if TW_WGMMA
      if constexpr (GIVES) tw_more_registers<232>();
#endif
      multiply_all(tiles, full, empty, turns, M, N, K, read, store);
    } else {
#if TW_WGMMA
      if constexpr (GIVES) tw_fewer_registers<40>();
#endif
      if (warp == WARPS && lane == 0) fetch_all(fetch, map_b, tiles, full, empty, M, N, K);
    }
  }

  // A group begins a tile when the one before has read all steps of the tile before: a barrier is
  // never waited for while it is two rounds behind, which it could not tell.
  template <class Read, class Store>
  static __device__ __forceinline__ void multiply_all(u16* tiles, u64* full, u64* empty,
                                                      u64* turns, int M, int N, int K,
                                                      Read& read, Store& store) {
    tw_begin();
    int down = (M + BM - 1) / BM, across = (N + BN - 1) / BN, begin, steps;
    share(K, begin, steps);
    typedef decltype(read(0, 0)) Got;
    constexpr bool SOONER = BYTES && SOON<Got> && sizeof(Got) > 1;  // while a tile before is stored
    int turn = -1, lane = threadIdx.x % 32;
    Got got[ROUND];
    for (int tile = blockIdx.x / SPLIT; tile < down * across; tile += gridDim.x / SPLIT) {
      int number = ++turn * steps, m, n;
      if (TURNS && turn % GROUPS != (int)threadIdx.x / 128) continue;
      place(tile, down, across, m, n);
      if (SOONER ? turn < (TURNS ? GROUPS : 1) : AHEAD || SOON<Got>)
        read_round(got, SPLIT > 1 ? (int)tw_rank() * OWN : 0, m, n, M, N, read);
      if (AHEAD)
#pragma unroll
        for (auto& pack : got) tw_pin(pack);
      if (TURNS && turn > 0) tw_barrier_wait(turns + turn % GROUPS, (turn - 1) / GROUPS & 1);
      Sum sums[MI][NI][4];
      if (!BYTES || !TW_WGMMA) clear(sums);
      for (int step = 0; step < steps; ++step, ++number) {
        int slot = number % STAGES;
        tw_barrier_wait(full + slot, number / STAGES & 1);
        const u16* a = tiles + slot * STAGE;
#if TW_WGMMA
        tw_wgmma_begin();
        multiply(a, a + A_SIZE, !BYTES || step > 0, sums);
        tw_wgmma_end();
        tw_wgmma_wait<1>();
        if (step > 0 && lane == 0) tw_barrier_arrive(empty + (number + STAGES - 1) % STAGES);
#else
        multiply(a, a + A_SIZE, true, sums);
        __syncwarp();
        if (lane == 0) tw_barrier_arrive(empty + slot);
#endif
      }
      if (TURNS && lane == 0) tw_barrier_arrive(turns + (turn + 1) % GROUPS);
#if TW_WGMMA
      tw_wgmma_wait<0>();
      if (lane == 0) tw_barrier_arrive(empty + (number + STAGES - 1) % STAGES);
#endif
      Got later[ROUND];
      int next = tile + (TURNS ? GROUPS : 1) * (gridDim.x / SPLIT);
      if (SOONER && next < down * across) {
        int next_m, next_n;
        place(next, down, across, next_m, next_n);
        read_round(later, 0, next_m, next_n, M, N, read);
      }
      finish(tiles, m, n, M, N, sums, got, read, store);
      if (SOONER)
#pragma unroll
        for (int k = 0; k < ROUND; ++k) got[k] = later[k];
    }
  }
};
