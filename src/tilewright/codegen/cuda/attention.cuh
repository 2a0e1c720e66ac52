// Attention with a running softmax: a block has 16 queries a warp, and goes over the keys in steps
// of 64. Products of queries and keys, and the weights made of them, never leave registers.
#ifdef __CUDACC__
TW_FN u32 tw_two(TwHalf, float low, float high) {
  u32 y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
TW_FN u32 tw_two(TwBfloat, float low, float high) {
  u32 y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
#endif

// TERMS: what the scores of a key need that is the same for all queries.
// GUARDED: a query all of whose weights are NaN gives zeros.
template <class ELEMENTS, int D, int DV, int WARPS, int TERMS, bool GUARDED> struct TwAttention {
  static __device__ __forceinline__ u32 two(float low, float high) {
    return tw_two(ELEMENTS(), low, high);
  }

  static constexpr int BM = 16 * WARPS, BN = 64, THREADS = 32 * WARPS;
  static constexpr int LINE = D + 8, VLINE = DV + 8, STEP = BN * (LINE + VLINE);
  static constexpr float LOG2E = 1.4426950408889634f;
  static __device__ __forceinline__ float lowest() { return tw_bits<float>(0xff800000u); }

  template <int WIDTH, int ROWS, class Load>
  static __device__ __forceinline__ void fetch(u16* to, int first, Load& load) {
    for (int chunk = threadIdx.x; chunk < ROWS * WIDTH / 8; chunk += THREADS) {
      int row = chunk / (WIDTH / 8), at = chunk % (WIDTH / 8) * 8;
      load(to + row * (WIDTH + 8) + at, first + row, at);
    }
  }

  static __device__ __forceinline__ void scores_of(const u32 (&query)[D / 16][4], const u16* keys,
                                                   float (&s)[BN / 8][4]) {
    int lane = threadIdx.x % 32;
    memset(s, 0, sizeof s);
#pragma unroll
    for (int d = 0; d < D / 16; ++d)
#pragma unroll
      for (int j = 0; j < BN / 8; j += 2) {
        u32 key[4];
        int row = j * 8 + lane % 8 + lane / 16 * 8, at = d * 16 + lane / 8 % 2 * 8;
        tw_matrices4<false>(key, keys + row * LINE + at);
        ELEMENTS::add(s[j], query[d], key);
        ELEMENTS::add(s[j + 1], query[d], key + 2);
      }
  }

  static __device__ __forceinline__ void add_values(float (&s)[BN / 8][4], const u16* values,
                                                    float (&out)[DV / 8][4]) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < BN / 16; ++j) {
      u32 weights[4] = {two(s[2 * j][0], s[2 * j][1]), two(s[2 * j][2], s[2 * j][3]),
                        two(s[2 * j + 1][0], s[2 * j + 1][1]),
                        two(s[2 * j + 1][2], s[2 * j + 1][3])};
#pragma unroll
      for (int n = 0; n < DV / 8; n += 2) {
        u32 value[4];
        tw_matrices4<true>(value, values + (j * 16 + lane % 16) * VLINE + n * 8 + lane / 16 * 8);
        ELEMENTS::add(out[n], weights, value);
        ELEMENTS::add(out[n + 1], weights, value + 2);
      }
    }
  }

  // Scores become weights relative to the highest score so far; what was summed is scaled to it.
  static __device__ __forceinline__ void weigh(float (&s)[BN / 8][4], float (&highest)[2],
                                               float (&total)[2], float (&out)[DV / 8][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = highest[half];
#pragma unroll
      for (int j = 0; j < BN / 8; ++j)
        top = fmaxf(top, fmaxf(s[j][2 * half], s[j][2 * half + 1]));
      for (int mask = 1; mask < 4; mask *= 2) top = fmaxf(top, tw_across(top, mask));
      float base = top == lowest() ? 0 : top * LOG2E;
      float scale = tw_exp2(highest[half] * LOG2E - base);
      highest[half] = top;
      total[half] *= scale;
#pragma unroll
      for (int j = 0; j < BN / 8; ++j)
#pragma unroll
        for (int k = 2 * half; k < 2 * half + 2; ++k) {
          s[j][k] = tw_exp2(s[j][k] * LOG2E - base);
          total[half] += s[j][k];
        }
#pragma unroll
      for (int n = 0; n < DV / 8; ++n) out[n][2 * half] *= scale, out[n][2 * half + 1] *= scale;
    }
  }

  template <class LoadQ, class LoadK, class LoadV, class Term, class Score,
            class Store>
  static __device__ __forceinline__ void run(int m0, int M, int N, LoadQ load_q, LoadK load_k,
                                             LoadV load_v, Term term, Score score,
                                             Store store) {
    u16* queries = (u16*)tw_shared;
    u16* steps = queries + BM * LINE;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    auto fetch_step = [&](int number) {
      u16* to = steps + number % 2 * STEP;
      fetch<D, BN>(to, number * BN, load_k);
      fetch<DV, BN>(to + BN * LINE, number * BN, load_v);
      tw_commit();
    };
    fetch<D, BM>(queries, m0, load_q);
    fetch_step(0);
    float out[DV / 8][4], highest[2] = {lowest(), lowest()}, total[2] = {0, 0};
    memset(out, 0, sizeof out);
    u32 query[D / 16][4];
    int row = m0 + warp * 16 + lane / 4, count = (N + BN - 1) / BN;
    for (int number = 0; number < count; ++number) {
      if (number + 1 < count) fetch_step(number + 1);
      TwPack<float, TERMS> terms[BN / 4];
#pragma unroll
        for (int k = 0; k < BN / 4; ++k) {
          int at = number * BN + k / 2 * 8 + lane % 4 * 2 + k % 2;
          terms[k] = term(at < N ? at : N - 1);
        }
      if (number + 1 < count) tw_wait<1>();
      else tw_wait<0>();
      __syncthreads();
      if (number == 0)
#pragma unroll
        for (int d = 0; d < D / 16; ++d)
          tw_matrices4<false>(query[d],
                              queries + (warp * 16 + lane % 16) * LINE + d * 16 + lane / 16 * 8);
      const u16* keys = steps + number % 2 * STEP;
      float s[BN / 8][4];
      scores_of(query, keys, s);
#pragma unroll
      for (int j = 0; j < BN / 8; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          int at = number * BN + j * 8 + lane % 4 * 2 + k % 2, mine = row + k / 2 * 8;
          s[j][k] = at < N ? score(mine < M ? mine : M - 1, at, s[j][k], terms[2 * j + k % 2]) : lowest();
        }
      weigh(s, highest, total, out);
      add_values(s, keys + BN * LINE, out);
      __syncthreads();
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = total[half];
      for (int mask = 1; mask < 4; mask *= 2) sum += tw_across(sum, mask);
      bool none = GUARDED && !(sum > 0);
      float share = 1 / sum;
#pragma unroll
      for (int first = 0; first < DV / 8; first += 4) {
        float found[8];
#pragma unroll
        for (int k = 0; k < 8; ++k)
          found[k] = none ? 0 : out[first + k / 2][2 * half + k % 2] * share;
        tw_swap_columns(found);
        if (row + half * 8 < M) store(row + half * 8, (first + lane % 4) * 8, found);
      }
    }
  }
};
