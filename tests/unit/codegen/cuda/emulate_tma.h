// What tma.cuh has instructions for, on the CPU: barriers that count, boxes that are copied at once.
struct TwMap {
  const unsigned short* from;  // row 0
  long long rows, stride, columns, box, mixed;  // of halves
};
struct Barrier {
  unsigned char expected, pending, phase, unused;
  int bytes;
};
static void tw_settle(Barrier* b) {
  if (b->pending || b->bytes) return;
  b->phase ^= 1;
  b->pending = b->expected;
}
static void tw_barrier_init(u64* barrier, int arrivals) {
  *(Barrier*)barrier = {(unsigned char)arrivals, (unsigned char)arrivals, 0, 0, 0};
}
static void tw_barrier_arrive(u64* barrier) {
  Barrier* b = (Barrier*)barrier;
  if (!b->pending) __builtin_trap();  // one arrival too many
  --b->pending;
  tw_settle(b);
}
static void tw_barrier_expect(u64* barrier, int bytes) {
  ((Barrier*)barrier)->bytes += bytes;
  tw_barrier_arrive(barrier);
}
static void tw_barrier_wait(u64* barrier, int phase) {
  while (((Barrier*)barrier)->phase == phase) yield_now();
}
static void tw_fetch(u16* to, const TwMap* map, int k, int row, u64* barrier, bool mixed) {
  if ((uintptr_t)to % 1024) __builtin_trap();
  for (int r = 0; r < map->box; ++r) {
    int moved = mixed ? r % 2 + r / 2 % 4 * 8 + r / 8 % 4 * 2 + r / 32 * 32 : r;
    for (int c = 0; c < 64; ++c) {
      bool inside = row + moved < map->rows && k + c < map->columns;
      to[r * 64 + (c / 8 ^ r % 8) * 8 + c % 8] = inside ? map->from[(row + moved) * map->stride + k + c] : 0;
    }
  }
  ((Barrier*)barrier)->bytes -= map->box * 128;
  tw_settle((Barrier*)barrier);
}
static void tw_fetch_box(u16* to, const TwMap* map, int k, int row, u64* barrier) {
  tw_fetch(to, map, k, row, barrier, false);
}
static void tw_fetch_mixed(u16* to, const TwMap* map, int k, int row, u64* barrier) {
  tw_fetch(to, map, k, row, barrier, true);
}
template <class T> static void tw_pin(T&) {}
