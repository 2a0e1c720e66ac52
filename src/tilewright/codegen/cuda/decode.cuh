// Attention of few queries: the blocks of a cluster share the keys of a head, CHUNKS threads a key.
// Keys before `early` are read before the kernel before has ended.
struct TwDecodeHalf {
  TW_FN float wide(u16 x) { return tw_half_to_float(x); }
};
struct TwDecodeBfloat {
  TW_FN float wide(u16 x) { return tw_bfloat_to_float(x); }
};
template <class E, int WIDTH, int GROUP, int SPLIT> struct TwDecode {
  static constexpr int THREADS = 256, CHUNKS = WIDTH / 8, TOGETHER = THREADS / CHUNKS, STEPS = 8,
                       OUTPUTS = GROUP * WIDTH, PADDED = (GROUP + 3) / 4 * 4;
  struct Shared {
    float parts[THREADS / 32][OUTPUTS];
    float sums[OUTPUTS];
    float highest[PADDED], total[PADDED];
  };
  template <class EARLY, class ROW>
  TW_FN void fetch(TwPack<u16, 8>* to, int from, int count, int at, EARLY early, ROW row) {
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      int j = from + s * TOGETHER;
      j = j < count ? j : count - 1;
      if (early(j)) to[s] = tw_stream8(row(j) + at);
    }
  }
  template <class Q, class K, class V, class SCORE, class STORE>
  TW_FN void run(int rank, int keys, int early, Q q_at, K k_at, V v_at, SCORE score,
                        STORE store) {
    Shared& own = *(Shared*)tw_shared;
    float* scores = (float*)(tw_shared + sizeof(Shared));
    const int per = (keys + SPLIT - 1) / SPLIT, first = rank * per;
    const int count = keys - first < per ? keys - first : per;  // of this block
    const int chunk = threadIdx.x % CHUNKS * 8, mine = threadIdx.x / CHUNKS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    auto k_row = [&](int j) { return k_at(first + j); };
    auto v_row = [&](int j) { return v_at(first + j); };
    auto is_early = [&](int j) { return first + j < early; };
    auto is_late = [&](int j) { return first + j >= early; };
    auto always = [](int) { return true; };
    TwPack<u16, 8> k[STEPS], v[STEPS];
    fetch(k, mine, count, chunk, is_early, k_row);
    fetch(v, mine, count, chunk, is_early, v_row);
    tw_begin();
    fetch(k, mine, count, chunk, is_late, k_row);
    fetch(v, mine, count, chunk, is_late, v_row);
    float q[GROUP][8];
#pragma unroll
    for (int g = 0; g < GROUP; ++g)
#pragma unroll
      for (int e = 0; e < 8; ++e) q[g][e] = q_at(g, chunk + e);
    for (int from = mine; from - mine < count; from += STEPS * TOGETHER) {
      if (from != mine) fetch(k, from, count, chunk, always, k_row);
#pragma unroll
      for (int s = 0; s < STEPS; ++s) {
        const int j = from + s * TOGETHER;
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
          float sum = 0;
#pragma unroll
          for (int e = 0; e < 8; ++e) sum += q[g][e] * E::wide(k[s].v[e]);
#pragma unroll
          for (int lanes = CHUNKS / 2; lanes > 0; lanes >>= 1) sum += tw_across(sum, lanes);
          if (threadIdx.x % CHUNKS == g && j < count)
            scores[g * per + j] = score(g, first + j, sum);
        }
      }
    }
    __syncthreads();
    for (int g = warp; g < GROUP; g += THREADS / 32) {
      float* line = scores + g * per;
      float highest = -tw_bits<float>(0x7f800000), total = 0;
      for (int j = lane; j < count; j += 32) highest = tw_max(highest, line[j]);
      highest = tw_reduce_max<float, 1>(highest);
      for (int j = lane; j < count; j += 32) {
        line[j] = tw_exp2((line[j] - highest) * 1.4426950408889634f);
        total += line[j];
      }
      total = tw_reduce_sum<float, 1>(total);
      if (lane == 0) own.highest[g] = highest, own.total[g] = total;
    }
    __syncthreads();
    float sums[GROUP][8] = {};
    for (int from = mine; from - mine < count; from += STEPS * TOGETHER) {
      if (from != mine) fetch(v, from, count, chunk, always, v_row);
#pragma unroll
      for (int s = 0; s < STEPS; ++s) {
        const int j = from + s * TOGETHER;
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
          const float weight = j < count ? scores[g * per + j] : 0;
#pragma unroll
          for (int e = 0; e < 8; ++e) sums[g][e] += weight * E::wide(v[s].v[e]);
        }
      }
    }
#pragma unroll
    for (int g = 0; g < GROUP; ++g)
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        float sum = sums[g][e];
#pragma unroll
        for (int lanes = CHUNKS; lanes < 32; lanes <<= 1) sum += tw_across(sum, lanes);
        if (lane < CHUNKS) own.parts[warp][g * WIDTH + chunk + e] = sum;
      }
    __syncthreads();
    for (int at = threadIdx.x; at < OUTPUTS; at += THREADS) {
      float sum = 0;
      for (int k = 0; k < THREADS / 32; ++k) sum += own.parts[k][at];
      if (SPLIT == 1) store(at / WIDTH, at % WIDTH, sum / own.total[at / WIDTH]);
      own.sums[at] = sum;
    }
    if (SPLIT > 1) combine(own, rank, store);
  }
  // Each block of a cluster adds what all have of some outputs, in the order of the blocks.
  template <class STORE> TW_FN void combine(Shared& own, int rank, STORE store) {
#if TW_CLUSTERS
    tw_cluster_sync();
    constexpr int SHARE = OUTPUTS / SPLIT;
    static_assert(SHARE % 4 == 0, "four outputs a thread");
    if ((int)threadIdx.x < SHARE / 4) {
      const int at = rank * SHARE + threadIdx.x * 4, g = at / WIDTH;
      TwPack<float, 4> sums[SPLIT];
      float highest[SPLIT], total[SPLIT], top = -tw_bits<float>(0x7f800000);
#pragma unroll
      for (int k = 0; k < SPLIT; ++k) {
        sums[k] = tw_remote4(own.sums + at, k);
        const auto h = tw_remote4(own.highest + g / 4 * 4, k);
        const auto t = tw_remote4(own.total + g / 4 * 4, k);
        highest[k] = g % 4 == 0 ? h.v[0] : g % 4 == 1 ? h.v[1] : g % 4 == 2 ? h.v[2] : h.v[3];
        total[k] = g % 4 == 0 ? t.v[0] : g % 4 == 1 ? t.v[1] : g % 4 == 2 ? t.v[2] : t.v[3];
        top = tw_max(top, highest[k]);
      }
      float whole = 0, found[4] = {};
#pragma unroll
      for (int k = 0; k < SPLIT; ++k) {
        const float share = tw_exp2((highest[k] - top) * 1.4426950408889634f);
        whole += total[k] * share;
        for (int e = 0; e < 4; ++e) found[e] += sums[k].v[e] * share;
      }
      for (int e = 0; e < 4; ++e) store(g, at % WIDTH + e, found[e] / whole);
    }
    tw_cluster_meet();  // others read this block's memory
#endif
  }
};
