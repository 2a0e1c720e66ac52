// A tile of a contraction by a block: operands of 16 bits, sums in single precision.
// Operands come in chunks of 8 along the direction in which they lie side by side in memory.
// Pairs of bytes are copied like values of 16 bits: u16 stands for either.

#ifdef __CUDACC__
extern __shared__ __align__(128) unsigned char tw_shared[];
TW_FN u32 tw_shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
template <class T> TW_FN void tw_copy8(u16* to, const T* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(tw_shared_address(to)), "l"(from));
}
// 16 bytes of global memory, or zeros; the address must be a valid one in either case.
template <class T> TW_FN void tw_copy8_if(u16* to, const T* from, bool wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(tw_shared_address(to)),
               "l"(from), "r"(wanted ? 16 : 0));
}
TW_FN void tw_commit() { asm volatile("cp.async.commit_group;"); }
template <int LEFT> TW_FN void tw_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT)); }
template <bool TRANSPOSE> TW_FN void tw_matrices4(u32* r, const u16* p) {
  u32 at = tw_shared_address(p);
  if (TRANSPOSE)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
template <bool TRANSPOSE> TW_FN void tw_matrices2(u32* r, const u16* p) {
  u32 at = tw_shared_address(p);
  if (TRANSPOSE)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(at));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(at));
}
// What tensor cores multiply. PAIR: elements in 16 bits. add: 16 rows by 8 columns, by a warp.
#define TW_ELEMENTS(NAME, SUM, LETTER, ELEMENTS, TYPES)                                      \
  struct NAME {                                                                              \
    typedef SUM Sum;                                                                         \
    static constexpr int PAIR = ELEMENTS;                                                    \
    static __device__ __forceinline__ void add(SUM* c, const u32* a, const u32* b) {         \
      asm volatile("mma.sync.aligned." TYPES " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "      \
                   "{%0,%1,%2,%3};"                                                          \
                   : "+" LETTER(c[0]), "+" LETTER(c[1]), "+" LETTER(c[2]), "+" LETTER(c[3])  \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));      \
    }                                                                                        \
  };
TW_ELEMENTS(TwHalf, float, "f", 1, "m16n8k16.row.col.f32.f16.f16.f32")
TW_ELEMENTS(TwBfloat, float, "f", 1, "m16n8k16.row.col.f32.bf16.bf16.f32")
TW_ELEMENTS(TwFloat8, float, "f", 2, "m16n8k32.row.col.f32.e4m3.e4m3.f32")
TW_ELEMENTS(TwU8S8, s32, "r", 2, "m16n8k32.row.col.s32.u8.s8.s32")
TW_ELEMENTS(TwS8U8, s32, "r", 2, "m16n8k32.row.col.s32.s8.u8.s32")
TW_ELEMENTS(TwS8S8, s32, "r", 2, "m16n8k32.row.col.s32.s8.s8.s32")
TW_ELEMENTS(TwU8U8, s32, "r", 2, "m16n8k32.row.col.s32.u8.u8.s32")
#endif
TW_FN void tw_zero8(u16* to) {
  u64* words = (u64*)to;
  words[0] = 0;
  words[1] = 0;
}

// The 4 lanes that share a row of sums hold 2 columns of each block of 8; they swap them, so that
// each has 4 times 2 columns of one block.
template <class T> TW_FN void tw_swap_columns(T (&v)[8]) {
#pragma unroll
  for (int mask = 1; mask < 4; mask *= 2)
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (k / 2 & mask) continue;
      bool high = threadIdx.x & mask;
      T got = tw_across(high ? v[k] : v[k + 2 * mask], mask);
      v[k] = high ? got : v[k];
      v[k + 2 * mask] = high ? v[k + 2 * mask] : got;
    }
}

// The indices on the axes that a row, a column or a depth stands for.
struct TwPlace {
  int p[4];
};

// BM x BN outputs; WM x WN warps share them and WK of them share the depth, BK each at a time.
// A_DEEP, B_DEEP: the operand's chunks run along the depth, else along its rows or columns.
// LAST: the last axis of the depth, if only that one changes within a step; else -1.
template <class ELEMENTS, int BM, int BN, int BK, int WM, int WN, int WK, int STAGES, bool A_DEEP,
          bool B_DEEP, int LAST>
struct TwTile {
  static constexpr int DEPTH = BK * WK, PAD = 8, THREADS = 32 * WM * WN * WK;
  static constexpr int A_LINES = A_DEEP ? BM : DEPTH, A_LINE = A_DEEP ? DEPTH : BM;
  static constexpr int B_LINES = B_DEEP ? BN : DEPTH, B_LINE = B_DEEP ? DEPTH : BN;
  static constexpr int A_SIZE = A_LINES * (A_LINE + PAD), B_SIZE = B_LINES * (B_LINE + PAD);
  static constexpr int A_CHUNKS = (A_LINES * A_LINE / 8 + THREADS - 1) / THREADS;
  static constexpr int B_CHUNKS = (B_LINES * B_LINE / 8 + THREADS - 1) / THREADS;
  static constexpr int MI = BM / WM / 16, NI = BN / WN / 8;

  // A thread copies the same rows in every step: where they lie is worked out once.
  template <bool DEEP, int LINE, int CHUNKS, class Place>
  static __device__ __forceinline__ void places(TwPlace (&found)[CHUNKS], int first, Place& place) {
#pragma unroll
    for (int number = 0; number < CHUNKS; ++number) {
      int chunk = number * THREADS + threadIdx.x;
      found[number] = place(first + (DEEP ? chunk / (LINE / 8) : chunk % (LINE / 8) * 8));
    }
  }

  template <bool DEEP, int LINES, int LINE, int CHUNKS, class Depth, class Load>
  static __device__ __forceinline__ void fetch(
      u16* tile, int first, int depth, const TwPlace (&rows)[CHUNKS], Depth& deep, Load& load) {
    TwPlace base;
    if (LAST >= 0) base = deep(depth);
#pragma unroll
    for (int number = 0; number < CHUNKS; ++number) {
      int chunk = number * THREADS + threadIdx.x;
      if (LINES * LINE / 8 % THREADS != 0 && chunk >= LINES * LINE / 8) break;
      int line = chunk / (LINE / 8), at = chunk % (LINE / 8) * 8;
      int along = DEEP ? at : line, row = first + (DEEP ? line : at);
      TwPlace here = LAST >= 0 ? base : deep(depth + along);
      if (LAST >= 0) here.p[LAST >= 0 ? LAST : 0] += along;
      load(tile + line * (LINE + PAD) + at, row, rows[number], depth + along, here);
    }
  }

  static __device__ __forceinline__ void multiply(
      const u16* a, const u16* b, int wm, int wn, int wk, int lane, float (&sums)[MI][NI][4]) {
#pragma unroll
    for (int step = 0; step < BK; step += 16) {
      int depth = wk * BK + step;
      u32 left[MI][4], right[NI][2];
#pragma unroll
      for (int i = 0; i < MI; ++i) {
        int row = (wm * MI + i) * 16;
        const u16* p = A_DEEP ? a + (row + lane % 16) * (A_LINE + PAD) + depth + lane / 16 * 8
                              : a + (depth + lane % 8 + lane / 16 * 8) * (A_LINE + PAD) + row +
                                    lane / 8 % 2 * 8;
        tw_matrices4<!A_DEEP>(left[i], p);
      }
#pragma unroll
      for (int j = 0; j < NI; ++j) {
        int column = (wn * NI + j) * 8;
        const u16* p = B_DEEP ? b + (column + lane % 8) * (B_LINE + PAD) + depth + lane / 8 % 2 * 8
                              : b + (depth + lane % 16) * (B_LINE + PAD) + column;
        tw_matrices2<!B_DEEP>(right[j], p);
      }
#pragma unroll
      for (int i = 0; i < MI; ++i)
#pragma unroll
        for (int j = 0; j < NI; ++j) ELEMENTS::add(sums[i][j], left[i], right[j]);
    }
  }

  template <class PlaceA, class PlaceB, class Depth, class LoadA, class LoadB, class Store>
  static __device__ __forceinline__ void run(
      int m0, int n0, int M, int N, int K, PlaceA place_a, PlaceB place_b, Depth depth,
      LoadA load_a, LoadB load_b, Store store) {
    u16* tiles = (u16*)tw_shared;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int wm = warp % WM, wn = warp / WM % WN, wk = warp / (WM * WN);
    float sums[MI][NI][4];
#pragma unroll
    for (int i = 0; i < MI; ++i)
#pragma unroll
      for (int j = 0; j < NI; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) sums[i][j][k] = 0;
    TwPlace rows[A_CHUNKS], columns[B_CHUNKS];
    places<A_DEEP, A_LINE>(rows, m0, place_a);
    places<B_DEEP, B_LINE>(columns, n0, place_b);
    auto fetch_both = [&](u16* a, int k) {
      fetch<A_DEEP, A_LINES, A_LINE>(a, m0, k, rows, depth, load_a);
      fetch<B_DEEP, B_LINES, B_LINE>(a + A_SIZE, n0, k, columns, depth, load_b);
    };
    int steps = (K + DEPTH - 1) / DEPTH;
    for (int step = 0; step < STAGES - 1; ++step) {
      if (step < steps) fetch_both(tiles + step * (A_SIZE + B_SIZE), step * DEPTH);
      tw_commit();
    }
    int reading = 0, writing = STAGES - 1;
    for (int step = 0; step < steps; ++step) {
      tw_wait<STAGES - 2>();
      __syncthreads();
      int next = step + STAGES - 1;
      if (next < steps) fetch_both(tiles + writing * (A_SIZE + B_SIZE), next * DEPTH);
      tw_commit();
      const u16* a = tiles + reading * (A_SIZE + B_SIZE);
      multiply(a, a + A_SIZE, wm, wn, wk, lane, sums);
      writing = reading;
      reading = reading + 1 == STAGES ? 0 : reading + 1;
    }
    tw_wait<0>();
    __syncthreads();
    finish(m0, n0, M, N, wm, wn, wk, lane, sums, store);
  }

  // Sums go through shared memory: parts of the depth are added, neighbours are stored together.
  template <class Store>
  static __device__ __forceinline__ void finish(
      int m0, int n0, int M, int N, int wm, int wn, int wk, int lane, float (&sums)[MI][NI][4],
      Store& store) {
    float* all = (float*)tw_shared;
    constexpr int LINE = BN + 4;
#pragma unroll
    for (int i = 0; i < MI; ++i)
#pragma unroll
      for (int j = 0; j < NI; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          int row = (wm * MI + i) * 16 + lane / 4 + k / 2 * 8;
          int column = (wn * NI + j) * 8 + lane % 4 * 2 + k % 2;
          all[(wk * BM + row) * LINE + column] = sums[i][j][k];
        }
    __syncthreads();
#pragma unroll 4
    for (int start = 0; start < BM * BN; start += THREADS) {
      int at = start + threadIdx.x, row = at / BN, column = at % BN;
      if (BM * BN % THREADS != 0 && at >= BM * BN) break;
      if (m0 + row >= M || n0 + column >= N) continue;
      float sum = all[row * LINE + column];
#pragma unroll
      for (int part = 1; part < WK; ++part) sum += all[(part * BM + row) * LINE + column];
      store(m0 + row, n0 + column, sum);
    }
  }
};
