// Rows of weights times one vector: each is read once, past the first cache. No load of constants
// (.nc): those would be moved to where they are needed, after the kernel before has ended.
#ifdef __CUDACC__
TW_FN TwPack<u16, 8> tw_stream8(const u16* p) {
  TwPack<u32, 4> x;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.v[0]), "=r"(x.v[1]), "=r"(x.v[2]), "=r"(x.v[3]) : "l"(p) : "memory");
  return tw_bits<TwPack<u16, 8>>(x);
}
#else
TW_FN TwPack<u16, 8> tw_stream8(const u16* p) {
  if ((uintptr_t)p % 16) __builtin_trap();
  return *(const TwPack<u16, 8>*)p;
}
#endif
// The sum over the lanes of WARPS warps, for the first of them; WARPS of TOTAL work together.
template <int WARPS, int TOTAL> TW_FN float tw_sum_of_warps(float x, float* parts) {
  x = tw_reduce_sum<float, 1>(x);
  if (WARPS == 1) return x;
  int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) parts[warp] = x;
  __syncthreads();
  x = 0;
  for (int k = 0; k < WARPS; ++k) x += parts[warp / WARPS * WARPS + k];
  return x;
}
