// What becomes of a tile's sums after the copy engine's part (tma.cuh), on the CPU: every output is
// stored once, with its sum and what was read for it. Follows emulate.h and the preludes.
#include <stdio.h>
static const int M0 = 128, N0 = 256;
static int seen[128][256], wrong;

// Sums that tell their place, as matrix instructions leave them with a thread.
template <class Matrix, bool MIXED>
static void fill(typename Matrix::Sum (&sums)[Matrix::MI][Matrix::NI][4]) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = 0; i < Matrix::MI; ++i)
    for (int j = 0; j < Matrix::NI; ++j)
      for (int k = 0; k < 4; ++k) {
        int row = Matrix::first_row() + i * 64 + warp % 4 * 16 + lane / 4 + k / 2 * 8;
        int column = j * 8 + lane % 4 * 2 + k % 2;  // of the 32 in shared memory
        if (MIXED) column = j / 4 * 32 + lane % 4 * 8 + j % 4 * 2 + k % 2;
        sums[i][j][k] = (M0 + row) * 1000 + N0 + column;
      }
}

// BYTES: of what is read for 8 outputs.
template <class ELEMENTS, int BM, int BN, int GROUPS, bool TURNS, int BYTES, bool MIXED = false,
          bool AHEAD = false>
static void check(int M, int N) {
  typedef TwMatrix<ELEMENTS, BM, BN, 128 * GROUPS + 32, 4, TURNS, true, MIXED, AHEAD, 1> Matrix;
  memset(seen, 0, sizeof seen);
  unsigned grid[3] = {1, 1, 1};
  tw_launch(grid, 128 * GROUPS, [&] {
    struct Got {
      unsigned char pad[BYTES - 4];
      int at;
    };
    auto read = [&](int m, int n) {
      wrong += m >= M || n + 8 > N;
      Got got;
      got.at = m * 1000 + n;
      return got;
    };
    auto store = [&](int m, int n, const typename Matrix::Sum* sum, const Got& got) {
      wrong += m >= M || n >= N || got.at != m * 1000 + n;
      for (int e = 0; e < 8; ++e) {
        wrong += (int)sum[e] != m * 1000 + n + e;
        ++seen[m - M0][n + e - N0];
      }
    };
    typename Matrix::Sum sums[Matrix::MI][Matrix::NI][4];
    fill<Matrix, MIXED>(sums);
    Got got[Matrix::ROUND];
    if (AHEAD || Matrix::template SOON<Got>) Matrix::read_round(got, 0, M0, N0, M, N, read);
    Matrix::finish(tw_shared, M0, N0, M, N, sums, got, read, store);
  });
  int times = TURNS ? GROUPS : 1;  // each group has the same tile here
  for (int row = 0; row < BM; ++row)
    for (int column = 0; column < BN; ++column)
      wrong += seen[row][column] != (M0 + row < M && N0 + column < N ? times : 0);
}

int main() {
  check<TwHalf, 128, 128, 2, false, 16>(256, 384);
  check<TwHalf, 128, 128, 2, false, 16>(200, 320);
  check<TwHalf, 128, 192, 2, false, 16>(250, 448);
  check<TwHalf, 64, 128, 2, true, 16>(192, 384);
  check<TwHalf, 64, 32, 1, false, 16>(190, 288);
  check<TwU8S8, 128, 128, 2, false, 8>(256, 384);
  check<TwU8S8, 128, 64, 2, false, 8>(201, 312);
  check<TwU8S8, 64, 128, 2, true, 8>(192, 384);
  check<TwU8S8, 128, 256, 2, false, 16>(256, 512);
  check<TwHalf, 128, 128, 2, false, 16, true>(256, 384);
  check<TwHalf, 128, 128, 2, true, 16, true, true>(256, 384);
  check<TwHalf, 128, 192, 2, false, 16, true, true>(250, 416);
  check<TwHalf, 64, 256, 2, true, 16, true, true>(180, 480);
  check<TwHalf, 64, 32, 1, false, 16, true, true>(190, 288);
  printf("%d wrong\n", wrong);
}
