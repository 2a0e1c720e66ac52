// Enough of a GPU to run generated kernels on the CPU: each thread of a block is a fiber.
// Barriers and shuffles yield until all that are concerned have arrived.
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>
#include <vector>
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
struct Index { unsigned x, y, z; };
static Index threadIdx, blockIdx, blockDim, gridDim;
alignas(1024) static unsigned char tw_shared[256 * 1024];

struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  bool done = false;
  int barriers = 0, shuffles = 0;
};
static std::vector<Fiber>* fibers;
static ucontext_t scheduler;
static unsigned current;
static uint32_t exchange[1024][2];

static void yield_now() {
  unsigned self = current;
  swapcontext(&(*fibers)[self].context, &scheduler);
  current = self;
  threadIdx.x = self;
}
static void wait_for(int Fiber::*counter, unsigned first, unsigned last) {
  int mine = ++((*fibers)[current].*counter);
  for (;;) {
    bool ready = true;
    for (unsigned k = first; k < last; ++k)
      ready = ready && ((*fibers)[k].done || (*fibers)[k].*counter >= mine);
    if (ready) return;
    yield_now();
  }
}
static void __syncthreads() { wait_for(&Fiber::barriers, 0, fibers->size()); }
static void tw_warp_barrier() {
  unsigned warp = current / 32 * 32;
  unsigned end = warp + 32 < fibers->size() ? warp + 32 : fibers->size();
  wait_for(&Fiber::shuffles, warp, end);
}
static void __syncwarp() { tw_warp_barrier(); }
static uint32_t __shfl_xor_sync(uint32_t, uint32_t value, int lanes) {
  static uint32_t slots[1024];
  slots[current] = value;
  tw_warp_barrier();
  uint32_t found = slots[current ^ lanes];
  tw_warp_barrier();
  return found;
}
static int atomicCAS(int* where, int expected, int value) {
  int old = *where;
  if (old == expected) *where = value;
  return old;
}
static float atomicAdd(float* where, float value) {
  float old = *where;
  *where += value;
  return old;
}
static unsigned atomicAdd(unsigned* where, unsigned value) {
  unsigned old = *where;
  *where += value;
  return old;
}
static void __threadfence() {}
static float tw_half_to_float(unsigned short x) {
  int e = x >> 10 & 31, m = x & 1023;
  float y = e == 31 ? (m ? NAN : INFINITY) : ldexpf((float)(e ? m + 1024 : m), (e ? e : 1) - 25);
  return x & 0x8000 ? -y : y;
}
static unsigned short tw_double_to_half(double x) {
  unsigned short sign = signbit(x) ? 0x8000 : 0;
  double a = fabs(x);
  if (x != x) return 0x7fff;
  if (a >= 65520.0) return sign | 0x7c00;
  int e = a < ldexp(1.0, -14) ? -14 : ilogb(a);
  return sign | (unsigned short)((int)rint(ldexp(a, 10 - e)) + (e + 14) * 1024);
}
static unsigned short tw_float_to_half(float x) { return tw_double_to_half(x); }

static void tw_copy8(unsigned short* to, const void* from) {
  if ((uintptr_t)from % 16 || (uintptr_t)to % 16) __builtin_trap();
  memcpy(to, from, 16);
}
static void tw_copy8_if(unsigned short* to, const void* from, bool wanted) {
  if (wanted) return tw_copy8(to, from);
  if ((uintptr_t)to % 16) __builtin_trap();
  memset(to, 0, 16);
}
template <class T> static T tw_read_early(const T* from) { return *from; }
static float tw_exp2(float x) { return exp2f(x); }
static float tw_product(float a, float b) { return a * b; }
static float tw_reciprocal(float x) { return 1 / x; }
static void tw_fence_copies() {}
static uintptr_t tw_shared_address(const void* p) { return (uintptr_t)p; }
static unsigned tw_rank() { return 0; }  // blocks have no neighbours here
static void tw_cluster_sync() {}
static void tw_cluster_meet() {}
static void tw_commit() {}
template <int LEFT> static void tw_wait() {}
static const unsigned short* rows_of[1024];
static unsigned registers[1024][6];
template <bool TRANSPOSE> static void tw_matrices(unsigned* r, const unsigned short* p, int count) {
  unsigned base = current / 32 * 32, lane = current % 32;
  rows_of[current] = p;
  tw_warp_barrier();
  for (int k = 0; k < count; ++k) {
    unsigned short low, high;
    if (TRANSPOSE) {
      low = rows_of[base + 8 * k + lane % 4 * 2][lane / 4];
      high = rows_of[base + 8 * k + lane % 4 * 2 + 1][lane / 4];
    } else {
      low = rows_of[base + 8 * k + lane / 4][lane % 4 * 2];
      high = rows_of[base + 8 * k + lane / 4][lane % 4 * 2 + 1];
    }
    r[k] = low | (unsigned)high << 16;
  }
  tw_warp_barrier();
}
template <bool T> static void tw_matrices4(unsigned* r, const unsigned short* p) {
  tw_matrices<T>(r, p, 4);
}
template <bool T> static void tw_matrices2(unsigned* r, const unsigned short* p) {
  tw_matrices<T>(r, p, 2);
}
// What tensor cores multiply, by the value of an element of 32 bits.
template <class SUM, int PER_PAIR, SUM (*LEFT)(unsigned, int), SUM (*RIGHT)(unsigned, int)>
struct Elements {
  typedef SUM Sum;
  static constexpr int PAIR = PER_PAIR;
  static void add(SUM* c, const unsigned* a, const unsigned* b) {
    unsigned base = current / 32 * 32, lane = current % 32;
    memcpy(registers[current], a, 16);
    memcpy(registers[current] + 4, b, 8);
    tw_warp_barrier();
    for (int k = 0; k < 4; ++k) {
      int row = lane / 4 + k / 2 * 8, column = lane % 4 * 2 + k % 2;
      for (int word = 0; word < 8; ++word) {
        unsigned left = registers[base + row % 8 * 4 + word % 4][row / 8 + word / 4 * 2];
        unsigned right = registers[base + column * 4 + word % 4][4 + word / 4];
        for (int d = 0; d < 2 * PAIR; ++d) c[k] += LEFT(left, d) * RIGHT(right, d);
      }
    }
    tw_warp_barrier();
  }
};
static float half_of(unsigned word, int place) { return tw_half_to_float(word >> (16 * place)); }
static float bfloat_of(unsigned word, int place) {
  unsigned bits = word >> (16 * place) << 16;
  float y;
  memcpy(&y, &bits, 4);
  return y;
}
static float float8_of(unsigned word, int place) {
  unsigned x = word >> (8 * place) & 255;
  int e = x >> 3 & 15, m = x & 7;
  float y = (x & 127) == 127 ? NAN : ldexpf((float)(e ? m + 8 : m), (e ? e : 1) - 10);
  return x & 128 ? -y : y;
}
static int u8_of(unsigned word, int place) { return word >> (8 * place) & 255; }
static int s8_of(unsigned word, int place) { return (signed char)(word >> (8 * place)); }
typedef Elements<float, 1, half_of, half_of> TwHalf;
typedef Elements<float, 1, bfloat_of, bfloat_of> TwBfloat;
typedef Elements<float, 2, float8_of, float8_of> TwFloat8;
static unsigned tw_two(TwHalf, float low, float high) {
  return tw_float_to_half(low) | (unsigned)tw_float_to_half(high) << 16;
}
static unsigned tw_two(TwBfloat, float low, float high) {
  unsigned words[2];
  memcpy(words, &low, 4);
  memcpy(words + 1, &high, 4);
  for (unsigned& word : words) word = (word + 0x7fff + (word >> 16 & 1)) >> 16;
  return words[0] | words[1] << 16;
}
typedef Elements<int, 2, u8_of, s8_of> TwU8S8;
typedef Elements<int, 2, s8_of, u8_of> TwS8U8;
typedef Elements<int, 2, s8_of, s8_of> TwS8S8;
typedef Elements<int, 2, u8_of, u8_of> TwU8U8;

template <class Body> struct Runner {
  static Body* body;
  static void enter() {
    (*body)();
    (*fibers)[current].done = true;
    swapcontext(&(*fibers)[current].context, &scheduler);
  }
};
template <class Body> Body* Runner<Body>::body;

template <class Body> static void tw_launch(const unsigned* grid, unsigned threads, Body body) {
  blockDim = {threads, 1, 1};
  gridDim = {grid[0], grid[1], grid[2]};
  std::vector<Fiber> made(threads);
  fibers = &made;
  Runner<Body>::body = &body;
  for (auto& fiber : made) fiber.stack.resize(1 << 18);
  for (unsigned z = 0; z < grid[2]; ++z)
    for (unsigned y = 0; y < grid[1]; ++y)
      for (unsigned x = 0; x < grid[0]; ++x) {
        blockIdx = {x, y, z};
        memset(tw_shared, 0xA5, sizeof tw_shared);
        for (auto& fiber : made) {
          fiber.done = false;
          fiber.barriers = fiber.shuffles = 0;
          getcontext(&fiber.context);
          fiber.context.uc_stack.ss_sp = fiber.stack.data();
          fiber.context.uc_stack.ss_size = fiber.stack.size();
          fiber.context.uc_link = nullptr;
          makecontext(&fiber.context, Runner<Body>::enter, 0);
        }
        for (bool running = true; running;) {
          running = false;
          for (unsigned k = 0; k < threads; ++k) {
            if (made[k].done) continue;
            running = true;
            current = k;
            threadIdx = {k, 0, 0};
            swapcontext(&scheduler, &made[k].context);
          }
        }
      }
}
