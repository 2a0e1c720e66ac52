// A tile of a contraction by a block: operands in half precision, sums in single precision.
// Operands come in chunks of 8 along the direction in which they lie side by side in memory.

#ifdef __CUDACC__
extern __shared__ __align__(128) unsigned char tw_shared[];
TW_FN u32 tw_shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
TW_FN void tw_copy8(u16* to, const u16* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(tw_shared_address(to)), "l"(from));
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
TW_FN void tw_mma(float* c, const u32* a, const u32* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
               "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
TW_FN void tw_zero8(u16* to) {
  u64* words = (u64*)to;
  words[0] = 0;
  words[1] = 0;
}

// BM x BN outputs; WM x WN warps share them and WK of them share the depth, BK each at a time.
// A_DEEP, B_DEEP: the operand's chunks run along the depth, else along its rows or columns.
template <int BM, int BN, int BK, int WM, int WN, int WK, int STAGES, bool A_DEEP, bool B_DEEP>
struct TwTile {
  static constexpr int DEPTH = BK * WK, PAD = 8, THREADS = 32 * WM * WN * WK;
  static constexpr int A_LINES = A_DEEP ? BM : DEPTH, A_LINE = A_DEEP ? DEPTH : BM;
  static constexpr int B_LINES = B_DEEP ? BN : DEPTH, B_LINE = B_DEEP ? DEPTH : BN;
  static constexpr int A_SIZE = A_LINES * (A_LINE + PAD), B_SIZE = B_LINES * (B_LINE + PAD);
  static constexpr int MI = BM / WM / 16, NI = BN / WN / 8;

  template <bool DEEP, int LINES, int LINE, class Load>
  static __device__ __forceinline__ void fetch(u16* tile, int first, int depth, Load& load) {
#pragma unroll
    for (int start = 0; start < LINES * LINE / 8; start += THREADS) {
      int chunk = start + threadIdx.x;
      if (LINES * LINE / 8 % THREADS != 0 && chunk >= LINES * LINE / 8) break;
      int line = chunk / (LINE / 8), at = chunk % (LINE / 8) * 8;
      u16* to = tile + line * (LINE + PAD) + at;
      if (DEEP) load(to, first + line, depth + at);
      else load(to, first + at, depth + line);
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
        for (int j = 0; j < NI; ++j) tw_mma(sums[i][j], left[i], right[j]);
    }
  }

  template <class LoadA, class LoadB, class Store>
  static __device__ __forceinline__ void run(
      int m0, int n0, int M, int N, int K, LoadA load_a, LoadB load_b, Store store) {
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
    int steps = (K + DEPTH - 1) / DEPTH;
    for (int step = 0; step < STAGES - 1; ++step) {
      u16* a = tiles + step * (A_SIZE + B_SIZE);
      if (step < steps) {
        fetch<A_DEEP, A_LINES, A_LINE>(a, m0, step * DEPTH, load_a);
        fetch<B_DEEP, B_LINES, B_LINE>(a + A_SIZE, n0, step * DEPTH, load_b);
      }
      tw_commit();
    }
    for (int step = 0; step < steps; ++step) {
      tw_wait<STAGES - 2>();
      __syncthreads();
      int next = step + STAGES - 1;
      if (next < steps) {
        u16* a = tiles + next % STAGES * (A_SIZE + B_SIZE);
        fetch<A_DEEP, A_LINES, A_LINE>(a, m0, next * DEPTH, load_a);
        fetch<B_DEEP, B_LINES, B_LINE>(a + A_SIZE, n0, next * DEPTH, load_b);
      }
      tw_commit();
      const u16* a = tiles + step % STAGES * (A_SIZE + B_SIZE);
      multiply(a, a + A_SIZE, wm, wn, wk, lane, sums);
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
    for (int at = threadIdx.x; at < BM * BN; at += THREADS) {
      int row = at / BN, column = at % BN;
      if (m0 + row >= M || n0 + column >= N) continue;
      float sum = all[row * LINE + column];
#pragma unroll
      for (int part = 1; part < WK; ++part) sum += all[(part * BM + row) * LINE + column];
      store(m0 + row, n0 + column, sum);
    }
  }
};
