"""How large the blocks of a contraction are.

Input -> Output: rows, columns, depth, number of contractions -> ``Tile``.
Method: the least time by a linear model, whose rates were fitted to 1280 timed kernels of 20 sizes
on one H200 (its choices took 5 % longer than the best of the same tiles). Not here: timing tiles on
the GPU at hand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.core.shape import Dim

_MULTIPROCESSORS = 132
_STEP = 32  # depth of a warp's part of a tile
_PAD = 8
_IN_FLIGHT_BYTES = 96 * 1024
_MOST_STAGES = 8
_WIDE = 64 * 64  # outputs of a block from which more than 256 threads were slower
_RATES_US = (1.593, 0.0813, 1.489, 0.0058, 0.0181, 0.0071, 0.0471)
_LARGE = 4096  # what a symbolic size is taken for


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Outputs of a block, and the warps along rows, columns and depth that share them."""

    rows: int
    columns: int
    warps: tuple[int, int, int]
    stages: int = 3

    @property
    def threads(self) -> int:
        """Threads of a block."""
        down, across, deep = self.warps
        return 32 * down * across * deep

    @property
    def depth(self) -> int:
        """Depth of a step."""
        return _STEP * self.warps[2]

    @property
    def parameters(self) -> str:
        """The first arguments of the template."""
        down, across, deep = self.warps
        return f"{self.rows}, {self.columns}, {_STEP}, {down}, {across}, {deep}, {self.stages}"

    @property
    def text(self) -> str:
        """For reports."""
        warps = "x".join(map(str, self.warps))
        return f"{self.rows}x{self.columns}, warps={warps}, stages={self.stages}"

    def stage_bytes(self, left_deep: bool, right_deep: bool) -> int:
        """Shared memory of the operands of one step."""
        depth = self.depth

        def halves(lines: int, deep: bool) -> int:
            return lines * (depth + _PAD) if deep else depth * (lines + _PAD)

        return 2 * (halves(self.rows, left_deep) + halves(self.columns, right_deep))

    def shared_bytes(self, left_deep: bool, right_deep: bool) -> int:
        """Shared memory: the steps in flight, or the sums after them."""
        sums = self.warps[2] * self.rows * (self.columns + 4) * 4
        return max(self.stages * self.stage_bytes(left_deep, right_deep), sums)

    def pipelined(self, depth: Dim, left_deep: bool, right_deep: bool) -> Tile:
        """With as many steps in flight as pay: loads take longer than what is done between them."""
        fitting = _IN_FLIGHT_BYTES // self.stage_bytes(left_deep, right_deep)
        steps = -(-(depth.const if depth.is_const else _LARGE) // self.depth)
        return replace(self, stages=max(2, min(fitting, _MOST_STAGES, steps + 1)))


# Outputs of a block and the warps that share them; warps that share the depth are added.
_SHAPES = (
    (128, 128, 2, 4),
    (128, 64, 4, 2),
    (64, 64, 2, 2),
    (64, 32, 2, 2),
    (32, 32, 2, 2),
    (16, 32, 1, 2),
)


def choose_tile(rows: Dim, columns: Dim, depth: Dim, count: Dim) -> Tile:
    """The tile for contractions of these sizes; a symbolic size is taken to be large."""
    sizes = (d.const if d.is_const else _LARGE for d in (rows, columns, depth, count))
    return best_tile(*sizes)[0]


def best_tile(rows: int, columns: int, depth: int, count: int) -> tuple[Tile, float]:
    """The tile that should take the least time, and that time in microseconds."""
    tiles = [
        Tile(rows=m, columns=n, warps=(down, across, deep))
        for m, n, down, across in _SHAPES
        for deep in (1, 2, 4, 8)
        if 32 * down * across * deep <= (256 if m * n >= _WIDE else 512)
    ]
    found = [(_time_us(tile, rows, columns, depth, count), k) for k, tile in enumerate(tiles)]
    time_us, number = min(found)
    return tiles[number], time_us


def _time_us(tile: Tile, rows: int, columns: int, depth: int, count: int) -> float:
    """The model: launch, bytes from L2, products, sums through shared memory, copies of each step,
    threads.
    """
    blocks = -(-rows // tile.rows) * -(-columns // tile.columns) * count
    waves = -(-blocks // _MULTIPROCESSORS)
    threads, steps = tile.threads, -(-depth // tile.depth)
    chunks = sum(-(-lines * tile.depth // 8 // threads) for lines in (tile.rows, tile.columns))
    outputs = tile.rows * tile.columns
    terms = (
        1.0,
        blocks * (tile.rows + tile.columns) * depth * 2e-6,
        waves * outputs * depth * 1e-6,
        waves * outputs * tile.warps[2] / threads,
        waves * steps * chunks * threads / 256,
        waves * steps * chunks,
        blocks * threads / 256 / _MULTIPROCESSORS,
    )
    return sum(rate * term for rate, term in zip(_RATES_US, terms, strict=True))
