// What every generated kernel begins with: types, conversions, integer rules, reductions.
// Needs no header. The functions mean what kernel.ops and kernel.ir.Cast state.
typedef signed char s8;
typedef unsigned char u8;
typedef short s16;
typedef unsigned short u16;
typedef int s32;
typedef unsigned int u32;
typedef long long s64;
typedef unsigned long long u64;
#define TW_FN static __device__ __forceinline__

// A kernel may be started while the one before it still runs (once all its blocks have said so by
// tw_release), and waits in tw_begin until that has ended and its results can be seen. Where the
// launch does not allow it, both do nothing.
TW_FN void tw_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
TW_FN void tw_release() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// --- conversions

template <class T, class S> TW_FN T tw_bits(S x) {
  static_assert(sizeof(T) == sizeof(S), "another number of bits");
  T y;
  memcpy(&y, &x, sizeof(T));
  return y;
}
// Floats to integers truncate and saturate; `above` is the first value that is too large.
template <class T, class S> TW_FN T tw_saturate(S x, T low, T high, S above) {
  if (x != x) return 0;
  return x <= (S)low ? low : x >= above ? high : (T)x;
}
template <class T> TW_FN T tw_sign_extend(T x, int bits) {
  int kept = (int)x & ((1 << bits) - 1);
  return (T)(kept >= (1 << (bits - 1)) ? kept - (1 << bits) : kept);
}
#ifdef __CUDACC__
TW_FN float tw_half_to_float(u16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
TW_FN u16 tw_float_to_half(float x) {
  u16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
TW_FN u16 tw_double_to_half(double x) {
  u16 y;
  asm("cvt.rn.f16.f64 %0, %1;" : "=h"(y) : "d"(x));
  return y;
}
#endif
TW_FN float tw_bfloat_to_float(u16 x) { return tw_bits<float>((u32)x << 16); }
TW_FN u16 tw_float_to_bfloat(float x) {
  u32 bits = tw_bits<u32>(x);
  if (x != x) return (u16)((bits >> 16) | 0x40);
  return (u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
// Rounds to odd in between, so that the value is rounded once.
TW_FN u16 tw_double_to_bfloat(double x) {
  float y = (float)x;
  u32 bits = tw_bits<u32>(y);
  if (y == y && (double)y != x) {
    if (fabs((double)y) > fabs(x)) bits -= 1;
    bits |= 1;
  }
  return tw_float_to_bfloat(tw_bits<float>(bits));
}
// Formats of 8 bits and fewer. kind: 0 has infinities (e5m2), 1 has NaN only (e4m3fn), 2 has NaN
// at the negative zero (fnuz), 3 has numbers only (e2m1).
TW_FN float tw_small_to_float(u8 x, int ebits, int mbits, int bias, int kind) {
  int code = x & ((1 << (ebits + mbits)) - 1), negative = (x >> (ebits + mbits)) & 1;
  int e = code >> mbits, m = code & ((1 << mbits) - 1), top = (1 << ebits) - 1;
  float nan = tw_bits<float>(0x7fc00000u);
  if (kind == 2 && x == 0x80) return nan;
  if (kind == 1 && e == top && m == (1 << mbits) - 1) return nan;
  if (kind == 0 && e == top) return m ? nan : tw_bits<float>(negative ? 0xff800000u : 0x7f800000u);
  float y = ldexpf((float)(e ? m + (1 << mbits) : m), (e ? e : 1) - bias - mbits);
  return negative ? -y : y;
}
TW_FN u8 tw_float_to_small(double x, int ebits, int mbits, int bias, int kind, int saturate) {
  int sign = (int)(tw_bits<u64>(x) >> 63) << (ebits + mbits), full = (1 << (ebits + mbits)) - 1;
  int infinity = ((1 << ebits) - 1) << mbits;
  int most = kind == 0 ? infinity - 1 : kind == 1 ? full - 1 : full;
  int nan = kind == 0 ? infinity + (1 << (mbits - 1)) : kind == 2 ? 0x80 : full;
  if (x != x) return (u8)(kind == 2 ? nan : kind == 3 ? 0x8 : sign | nan);
  double a = fabs(x);
  int e = a < ldexp(1.0, 1 - bias) ? 1 - bias : a > 1e6 ? 20 : ilogb(a);
  int code = a > 1e6 ? most + 1 : (int)rint(ldexp(a, mbits - e)) + ((e - 1 + bias) << mbits);
  if (code > most) code = saturate || kind == 3 ? most : kind == 0 ? infinity : nan;
  if (kind == 2 && (code == 0 || code == 0x80)) return (u8)code;
  return (u8)(sign | code);
}
// The same for e4m3fn, saturating, in few operations; from sm_89 on there are instructions.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
TW_FN float tw_e4m3_to_float(u8 x) {
  u32 pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((u16)x));
  return tw_half_to_float((u16)pair);
}
TW_FN u8 tw_float_to_e4m3(float x) {
  u16 pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
  return (u8)pair;
}
#else
TW_FN float tw_e4m3_to_float(u8 x) {
  u32 code = x & 0x7f;
  float y = tw_bits<float>(code << 20) * 1.329227995784916e36f;  // 2^120
  return tw_bits<float>(tw_bits<u32>(code == 0x7f ? tw_bits<float>(0x7fc00000u) : y) |
                        (u32)(x & 0x80) << 24);
}
TW_FN u8 tw_float_to_e4m3(float x) {
  float a = fminf(fabsf(x), 448.0f);
  u32 bits = tw_bits<u32>(a);
  u32 code = a < 0.015625f ? tw_bits<u32>(a + 16384.0f) - 0x46800000u
                           : ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - 960;
  return (u8)((x != x ? 0x7fu : code) | (tw_bits<u32>(x) >> 24 & 0x80));
}
#endif
// Exponents without a sign: 255 is NaN, ties round up.
TW_FN float tw_scale_to_float(u8 x) {
  return x == 255 ? tw_bits<float>(0x7fc00000u) : ldexpf(1.0f, (int)x - 127);
}
TW_FN u8 tw_float_to_scale(double x, int saturate) {
  double a = fabs(x);
  if (x != x || a > 1e300) return 255;
  if (a == 0) return saturate ? 0 : 255;
  int e = ilogb(a), code = e + 127 + (ldexp(a, -e) >= 1.5);
  if (saturate) return (u8)(code < 0 ? 0 : code > 254 ? 254 : code);
  return (u8)(code < 0 || code > 254 ? 255 : code);
}

// --- integers: wrap, divide by zero to 0, shift out to 0

template <class T> TW_FN T tw_divide(T a, T b) {
  if (b == 0) return 0;
  if ((T)-1 < 0 && b == (T)-1) return (T)(0 - (u64)a);
  return (T)(a / b);
}
template <class T> TW_FN T tw_remainder(T a, T b) {
  return b == 0 || ((T)-1 < 0 && b == (T)-1) ? (T)0 : (T)(a % b);
}
template <class T> TW_FN T tw_modulo(T a, T b) {
  T r = tw_remainder(a, b);
  return r != 0 && ((r < 0) != (b < 0)) ? (T)(r + b) : r;
}
template <class T> TW_FN T tw_power(T a, T b) {
  if (b < 0) return a == 1 ? (T)1 : a == (T)-1 ? (T)((b & 1) ? -1 : 1) : (T)0;
  u64 result = 1, base = (u64)a;
  for (u64 n = (u64)b; n; n >>= 1) {
    if (n & 1) result *= base;
    base *= base;
  }
  return (T)result;
}
template <class T> TW_FN T tw_shl(T a, T b) {
  return b < 0 || (u64)b >= 8 * sizeof(T) ? (T)0 : (T)((u64)a << b);
}
template <class T> TW_FN T tw_shr(T a, T b) {
  return b < 0 || (u64)b >= 8 * sizeof(T) ? (T)0 : (T)(a >> b);
}
TW_FN s64 tw_checked(s64 i, s64 n, int* status, int call) {
  s64 k = i < 0 ? i + n : i;
  if (k >= 0 && k < n) return k;
  atomicCAS(status, 0, call + 1);
  return 0;
}

// Neighbours that are read and written together.
template <class T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) TwPack {
  T v[N];
};
// Bytes stay words of 4: an array of bytes would be taken apart and put together again.
template <class T> struct TwBytes {
  u32 words[2];
  struct Byte {
    u32& word;
    int at;
    __device__ __forceinline__ operator T() const { return (T)(word >> at); }
    __device__ __forceinline__ void operator=(T x) {
      word = (word & ~(0xffu << at)) | (u32)(u8)x << at;
    }
  };
  __device__ __forceinline__ T operator[](int e) const { return (T)(words[e / 4] >> e % 4 * 8); }
  __device__ __forceinline__ Byte operator[](int e) { return {words[e / 4], e % 4 * 8}; }
};
template <> struct alignas(8) TwPack<u8, 8> { TwBytes<u8> v; };
template <> struct alignas(8) TwPack<s8, 8> { TwBytes<s8> v; };

// --- floats

template <class T> TW_FN T tw_min(T a, T b) { return a < b || a != a ? a : b; }
template <class T> TW_FN T tw_max(T a, T b) { return a > b || a != a ? a : b; }
template <class T> TW_FN T tw_signum(T x) { return x != x ? x : (T)((x > 0) - (x < 0)); }
TW_FN float tw_gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

TW_FN double tw_gelu(double x) { return 0.5 * x * (1.0 + erf(x * 0.70710678118654752)); }

template <class T> TW_FN T tw_gelu_tanh(T x) {
  T inner = (T)0.79788456080286536 * (x + (T)0.044715 * (x * x * x));
  return (T)0.5 * x * ((T)1 + tanh(inner));
}
TW_FN float tw_sigmoid(float x) {
  float d = expf(-fabsf(x));
  return (x >= 0 ? 1.0f : d) / (1.0f + d);
}
TW_FN double tw_sigmoid(double x) {
  double d = exp(-fabs(x));
  return (x >= 0 ? 1.0 : d) / (1.0 + d);
}
#ifdef __CUDACC__
// One instruction each, NaN for NaN.
template <> __device__ __forceinline__ float tw_min<float>(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
template <> __device__ __forceinline__ float tw_max<float>(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
TW_FN float tw_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// A constant that is read before the kernel before this one has ended: a plain load stays where it
// is written.
template <class T> TW_FN T tw_read_early(const T* from) {
  static_assert(sizeof(T) % 16 == 0, "whole vectors");
  u32 words[sizeof(T) / 4];
  for (int k = 0; k < (int)sizeof(T) / 16; ++k)
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[4 * k]), "=r"(words[4 * k + 1]), "=r"(words[4 * k + 2]),
                   "=r"(words[4 * k + 3]) : "l"((const char*)from + 16 * k) : "memory");
  T found;
  memcpy(&found, words, sizeof(T));
  return found;
}
// A product that is rounded before anything is added to it.
TW_FN float tw_product(float a, float b) { return __fmul_rn(a, b); }
TW_FN float tw_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif
// Within 1e-6 of erf (Abramowitz and Stegun 7.1.26), for results that are rounded to 16 bits.
TW_FN float tw_rough_erf(float x) {
  float a = fabsf(x), t = tw_reciprocal(1.0f + 0.3275911f * a);
  float p = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f +
            t * 1.061405429f))));
  return copysignf(1.0f - p * tw_exp2(-1.4426950408889634f * a * a), x);
}
// x P(X < x) = max(x, 0) - a P(X > a) for a = |x| and a normal X, whose tail's logarithm is almost a
// polynomial: within 3e-7 for all x, and within 4e-7 |x|. OR_0: almost 0 for NaN.
template <bool OR_0 = false> TW_FN float tw_rough_gelu(float x) {
  float a = fminf(fabsf(x), 8.0f);
  float p = -1.0f + a * (-1.1511269298056728f + a * (-0.4590439215668659f +
            a * (-0.05294858398670941f + a * (0.007670805958619141f + a * (-0.0005757989069619427f +
            a * (-1.2794698246198167e-05f + a * 4.2783701813670665e-06f))))));
  return (OR_0 ? fmaxf(x, 0.0f) : tw_max(x, 0.0f)) - a * tw_exp2(p);
}
// Quantised values (exact.py). Numbers below 2^22 are rounded to the nearest, half to even.
TW_FN int tw_nearest(float x) { return tw_bits<int>(x + 12582912.0f) - 0x4b400000; }
TW_FN float tw_whole(float x) { return (x + 12582912.0f) - 12582912.0f; }
// byte - zero, both small.
TW_FN float tw_byte_to_float(u8 x, int zero) {
  return tw_bits<float>(0x4b000000u | x) - (8388608.0f + (float)zero);
}
TW_FN float tw_byte_to_float(s8 x, int zero) {
  return tw_bits<float>(0x4b000000u | (u32)(u8)(x ^ 0x80)) - (8388736.0f + (float)zero);
}
// Packs of bytes, without taking words apart. Chosen: 4 of 8 bytes, by their places.
TW_FN u32 tw_chosen(u32 a, u32 b, u32 places) {
#ifdef __CUDA_ARCH__
  return __byte_perm(a, b, places);
#else
  u64 both = (u64)b << 32 | a;
  u32 found = 0;
  for (int k = 0; k < 4; ++k) found |= (u32)(both >> (places >> 4 * k & 7) * 8 & 0xff) << 8 * k;
  return found;
#endif
}
template <class T> TW_FN float tw_byte_to_float(const TwPack<T, 8>& pack, int e, int zero) {
  constexpr bool SIGNED = (T)-1 < 0;
  u32 word = pack.v.words[e / 4] ^ (SIGNED ? 0x80808080u : 0u);
  return tw_bits<float>(tw_chosen(word, 0x4b000000u, 0x7440u | e % 4)) -
         (8388608.0f + (float)(zero + (SIGNED ? 128 : 0)));
}
// Bits whose last byte is x, a small number, rounded, and an integer.
TW_FN u32 tw_marked(float x, int zero) {
  if (zero % 2) return tw_bits<u32>(x + 12582912.0f) + (u32)zero;
  return tw_bits<u32>(x + (12582912.0f + (float)zero));
}
template <class T> TW_FN TwPack<T, 8> tw_last_bytes(const u32 (&from)[8]) {
  TwPack<T, 8> pack;
  for (int k = 0; k < 2; ++k)
    pack.v.words[k] = tw_chosen(tw_chosen(from[4 * k], from[4 * k + 1], 0x0040u),
                                tw_chosen(from[4 * k + 2], from[4 * k + 3], 0x0040u), 0x5410u);
  return pack;
}
// e4m3: pairs share an instruction.
TW_FN TwPack<u8, 8> tw_floats_to_e4m3(const float (&from)[8]) {
  TwPack<u8, 8> pack;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  for (int k = 0; k < 2; ++k)
    asm("{\n.reg .b16 l, h;\ncvt.rn.satfinite.e4m3x2.f32 l, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 h, %4, %3;\nmov.b32 %0, {l, h};\n}"
        : "=r"(pack.v.words[k])
        : "f"(from[4 * k]), "f"(from[4 * k + 1]), "f"(from[4 * k + 2]), "f"(from[4 * k + 3]));
#else
  for (int e = 0; e < 8; ++e) pack.v[e] = tw_float_to_e4m3(from[e]);
#endif
  return pack;
}
TW_FN void tw_e4m3_to_floats(float (&to)[8], const TwPack<u8, 8>& from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  for (int k = 0; k < 2; ++k)
    asm("{\n.reg .b32 p, q;\n.reg .b16 l, h;\nmov.b32 {l, h}, %4;\ncvt.rn.f16x2.e4m3x2 p, l;\n"
        "cvt.rn.f16x2.e4m3x2 q, h;\nmov.b32 {l, h}, p;\ncvt.f32.f16 %0, l;\n"
        "cvt.f32.f16 %1, h;\nmov.b32 {l, h}, q;\ncvt.f32.f16 %2, l;\ncvt.f32.f16 %3, h;\n}"
        : "=f"(to[4 * k]), "=f"(to[4 * k + 1]), "=f"(to[4 * k + 2]), "=f"(to[4 * k + 3])
        : "r"(from.v.words[k]));
#else
  for (int e = 0; e < 8; ++e) to[e] = tw_e4m3_to_float(from.v[e]);
#endif
}
// a / b by its inverse, cut off, and what was cut: quotients.py.
TW_FN float tw_quotient_by(float a, float high, float low) {
  return fmaf(a, high, tw_product(a, low));
}
// a / b, correctly rounded: an estimate, mended by its remainder, which is exact.
TW_FN float tw_quotient(float a, float b, float inverse) {
  float q = tw_product(a, inverse);
  return fmaf(fmaf(-q, b, a), inverse, q);
}
TW_FN float tw_quotient_or_limit(float a, float b, float inverse) {
  float q = tw_product(a, inverse);
  return fabsf(q) < 1e30f ? tw_quotient(a, b, inverse) : q;
}
TW_FN float tw_modulo(float a, float b) {
  float m = fmodf(a, b);
  return m == 0 ? copysignf(m, b) : (m < 0) != (b < 0) ? m + b : m;
}
TW_FN double tw_modulo(double a, double b) {
  double m = fmod(a, b);
  return m == 0 ? copysign(m, b) : (m < 0) != (b < 0) ? m + b : m;
}
template <class T> TW_FN T tw_add(T a, T b) { return a + b; }
template <class T> TW_FN T tw_times(T a, T b) { return a * b; }
template <class T> TW_FN T tw_and(T a, T b) { return a & b; }
template <class T> TW_FN T tw_or(T a, T b) { return a | b; }

// --- combining the partial results of a block: lanes of a warp, then warps, in a fixed order

template <class T> TW_FN T tw_across(T x, int lanes) {
  u32 words[2] = {0, 0}, others[2];
  memcpy(words, &x, sizeof(T));
  for (int k = 0; k < (int)(sizeof(T) + 3) / 4; ++k)
    others[k] = __shfl_xor_sync(0xffffffffu, words[k], lanes);
  T y;
  memcpy(&y, others, sizeof(T));
  return y;
}
#define TW_REDUCE(NAME, COMBINE)                                                       \
  template <class T, int WARPS> TW_FN T NAME(T x) {                                    \
    for (int lanes = 16; lanes > 0; lanes >>= 1) x = COMBINE(x, tw_across(x, lanes));  \
    if (WARPS == 1) return x;                                                          \
    __shared__ T parts[WARPS];                                                         \
    __syncthreads();                                                                   \
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;                            \
    __syncthreads();                                                                   \
    x = parts[0];                                                                      \
    for (int k = 1; k < WARPS; ++k) x = COMBINE(x, parts[k]);                          \
    return x;                                                                          \
  }
TW_REDUCE(tw_reduce_sum, tw_add)
TW_REDUCE(tw_reduce_prod, tw_times)
TW_REDUCE(tw_reduce_min, tw_min)
TW_REDUCE(tw_reduce_max, tw_max)
TW_REDUCE(tw_reduce_and, tw_and)
TW_REDUCE(tw_reduce_or, tw_or)
