"""How large the blocks of a contraction are.

Input -> Output: rows, columns, depth, number of contractions -> ``Tile``.
Rule: the largest tile that still gives every multiprocessor a block; where there are few blocks,
warps share the depth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.core.shape import Dim

_MULTIPROCESSORS = 132
_STEP = 32  # depth of a warp's part of a tile
_PAD = 8
_IN_FLIGHT_BYTES = 96 * 1024
_MOST_STAGES = 8
_MOST_DEEP, _MOST_THREADS = 8, 512
_BUSY = 256  # threads of a multiprocessor that hide what they wait for
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


_TILES = (
    Tile(rows=128, columns=128, warps=(2, 4, 1)),
    Tile(rows=128, columns=64, warps=(4, 2, 1)),
    Tile(rows=64, columns=64, warps=(2, 2, 1)),
    Tile(rows=64, columns=32, warps=(2, 2, 1)),
    Tile(rows=32, columns=32, warps=(2, 2, 1)),
    Tile(rows=16, columns=32, warps=(1, 2, 1)),
)


def choose_tile(rows: Dim, columns: Dim, depth: Dim, count: Dim) -> Tile:
    """The tile for a contraction of these sizes."""
    m, n, k, batch = (d.const if d.is_const else _LARGE for d in (rows, columns, depth, count))
    chosen, blocks = _TILES[-1], 1
    for tile in _TILES:
        chosen = tile
        blocks = -(-m // tile.rows) * -(-n // tile.columns) * batch
        wasted = (tile.rows >= 2 * m) or (tile.columns >= 2 * n)
        if blocks >= _MULTIPROCESSORS and not wasted:
            break
    deep = 1
    while (
        deep < _MOST_DEEP
        and 2 * _STEP * deep <= k
        and blocks * chosen.threads * deep < _BUSY * _MULTIPROCESSORS
        and 2 * deep * chosen.threads <= _MOST_THREADS
    ):
        deep *= 2
    return Tile(
        rows=chosen.rows,
        columns=chosen.columns,
        warps=(*chosen.warps[:2], deep),
        stages=chosen.stages,
    )
