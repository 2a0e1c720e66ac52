"""How large the blocks of a product are whose operands both run along the depth (deep.cuh).

Input -> Output: rows, columns, depth, number of products -> ``DeepTile``.
Method: the least time by a linear model, whose rates were fitted to 980 timed kernels of 48 sizes
on one H200 (its choices took 3 % longer than the best), and the last one to what blocks after the
first ones cost in networks. Not here: timing tiles on the GPU at hand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.core.shape import Dim

DEPTH = 64  # halves of a step
_MULTIPROCESSORS = 132
_LARGE = 4096  # what a symbolic size is taken for
_ALIGNMENT = 1024
_MOST_BYTES = 224 * 1024
_SHARED_BYTES = 112 * 1024  # with which two blocks share a multiprocessor
_CLUSTER_BYTES = 100 * 1024  # many clusters with more wait long until all blocks have room
_FEW_BLOCKS = 100
_MOST_STAGES = 12
_MOST_RESIDENT = 4
_SMALL, _FEW_STEPS = 128 * 128, 2  # outputs of blocks that read a matrix soon after they begin
_GROUP = 64  # rows that 4 warps multiply together on Hopper
_RATES_US = (
    *(0.5355, 0.3067, 0.2723, 0.2318, 1.1383, 0.1571, 1.2204),
    *(1.138, 2.642, 0.5676, 1.0805, 0.0631, 1.2),
)
SPLITS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepTile:
    """Outputs of a block, warps along rows and columns, blocks that share the depth."""

    rows: int
    columns: int
    warps: tuple[int, int]
    stages: int = 4
    split: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps[0] * self.warps[1]

    @property
    def text(self) -> str:
        """For reports."""
        shared = f", {self.split} blocks a sum" if self.split > 1 else ""
        return f"{self.rows}x{self.columns}x{DEPTH}, stages={self.stages}{shared}"

    @property
    def shared_bytes(self) -> int:
        """Shared memory: the steps in flight, or the sums after them."""
        return max(self.stages * self.stage_bytes, self.rows * (self.panel + 4) * 4) + _ALIGNMENT

    def holding(self, steps: int) -> DeepTile:
        """The tile as far as shared memory is concerned, where there are few steps."""
        return replace(self, stages=min(self.stages, max(1, -(-steps // self.split))))

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a step's operands."""
        return (self.rows + self.columns) * DEPTH * 2

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor has shared memory for at once."""
        return max(1, min(_MOST_RESIDENT, _MOST_BYTES // self.shared_bytes))

    @property
    def panel(self) -> int:
        """Columns that go through shared memory at once; a cluster's blocks read all of them."""
        return self.columns if self.split > 1 else min(self.columns, 64)


# Outputs of a block and its warps along rows and columns.
_SHAPES = (
    (128, 256, 2, 4),
    (128, 128, 2, 4),
    (128, 64, 4, 2),
    (64, 128, 2, 2),
    (64, 64, 2, 2),
    (64, 32, 2, 2),
    (32, 64, 2, 2),
    (32, 32, 2, 2),
)


def candidates(rows: int, columns: int, depth: int, count: int, split: bool) -> list[DeepTile]:
    """All tiles that fit."""
    found = []
    steps = -(-depth // DEPTH)
    for m, n, down, across in _SHAPES:
        blocks = -(-rows // m) * -(-columns // n) * count
        for parts in SPLITS if split else (1,):
            if parts > steps or (parts > 1 and blocks * parts > 2 * _MULTIPROCESSORS):
                continue
            alone = parts == 1 or blocks * parts <= _FEW_BLOCKS
            for limit in (_MOST_BYTES, _SHARED_BYTES) if alone else (_CLUSTER_BYTES,):
                bare = DeepTile(rows=m, columns=n, warps=(down, across), split=parts, stages=0)
                stages = min(limit // bare.stage_bytes, _MOST_STAGES, -(-steps // parts) + 2)
                tile = replace(bare, stages=max(3, stages))
                if tile.shared_bytes <= limit + _ALIGNMENT and tile not in found:
                    found.append(tile)
    return found


def choose_deep_tile(
    rows: Dim, columns: Dim, depth: Dim, count: Dim, split: bool, reads: bool = False
) -> tuple[DeepTile, float]:
    """The tile that should take the least time, and that time in microseconds.

    A symbolic size is taken to be large.

    Args:
        split: blocks may share a sum.
        reads: each output needs another value of memory; several blocks wait for them at once.
    """
    m, n, k, many = (d.const if d.is_const else _LARGE for d in (rows, columns, depth, count))
    found = candidates(m, n, k, many, split and depth.is_const)
    if reads and k <= _FEW_STEPS * DEPTH:
        found = [tile for tile in found if tile.rows * tile.columns <= _SMALL]
    timed = [(predict_us(t, m, n, k, many), t) for t in found]
    time, tile = min(timed, key=lambda item: item[0])
    return tile, time


def predict_us(tile: DeepTile, rows: int, columns: int, depth: int, count: int) -> float:
    """The model, by its terms: launch; each tile; what steps move, multiply, wait for, cost by
    themselves; sums that are stored; blocks that share a sum; rows too few for groups of warps;
    sums that are stored while no other blocks multiply.
    """
    blocks = -(-rows // tile.rows) * -(-columns // tile.columns) * count * tile.split
    together = min(tile.resident, -(-blocks // _MULTIPROCESSORS))
    waves = -(-blocks // (_MULTIPROCESSORS * together))
    steps = -(-depth // DEPTH)
    steps = -(-steps // tile.split)
    outputs = tile.rows * tile.columns * together
    flat = tile.rows < _GROUP
    terms = (
        1.0,
        waves,
        waves * steps * tile.stage_bytes * together * 1e-5,
        waves * steps * outputs * DEPTH * 1e-6,
        waves * outputs * 1e-4,
        waves * steps / max(1, min(tile.stages, steps) - 2),
        waves * steps * 0.1,
        tile.split > 1,
        (tile.split - 1) / 8,
        (tile.split > 1) * outputs * 1e-4,
        flat * waves * steps * 0.1,
        flat * waves * together,
        (waves - 1) * outputs * 1e-4,
    )
    return sum(rate * term for rate, term in zip(_RATES_US, terms, strict=True))
