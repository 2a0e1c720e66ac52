"""How large the blocks of a product of matrices are that the copy engine fetches (tma.cuh).

Input -> Output: rows, columns, depth -> ``TmaTile``.
Method: the least time by a linear model, whose rates were fitted to 493 timed kernels of 36 sizes
on one H200 (its choices took 2 % longer than the best). Not here: timing tiles on the GPU at hand.
"""

from __future__ import annotations

from dataclasses import dataclass

MULTIPROCESSORS = 132
DEPTH = 64  # halves of a step
_ALIGNMENT, _BARRIERS = 1024, 16
_MOST_BYTES = 226 * 1024
_SHARED_BYTES = 112 * 1024  # with which two blocks share a multiprocessor
_MOST_STAGES = 12
_SMALL, _FEW_STEPS = 128 * 128, 2  # outputs of blocks that read a matrix soon after they begin
_RATES_US = (1.271, 0.1114, 0.2, 0.1945, 1.1715, 0.1814, 0.9145)


@dataclass(frozen=True, slots=True, kw_only=True)
class TmaTile:
    """Outputs of a block, groups of 4 warps that multiply, steps in flight."""

    rows: int
    columns: int
    groups: int
    stages: int
    resident: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block: one more warp has the operands fetched."""
        return 128 * self.groups + 32

    @property
    def text(self) -> str:
        """For reports."""
        return f"{self.rows}x{self.columns}x{DEPTH}, stages={self.stages}, copy engine"

    @property
    def shared_bytes(self) -> int:
        """Shared memory: the steps in flight and their barriers."""
        return self.stages * (self.stage_bytes + _BARRIERS) + _ALIGNMENT

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a step's operands."""
        return (self.rows + self.columns) * DEPTH * 2


# Outputs of a block, and its groups of warps; of equals, the first is taken.
_SHAPES = (
    (64, 256, 1),
    (64, 192, 1),
    (64, 128, 1),
    (64, 64, 1),
    (64, 32, 1),
    (128, 256, 2),
    (128, 192, 2),
    (128, 128, 2),
    (128, 64, 2),
)


def candidates(rows: int, columns: int, depth: int) -> list[TmaTile]:
    """All tiles, each with as many steps in flight as fit."""
    steps = -(-depth // DEPTH)
    found = []
    for m, n, groups in _SHAPES:
        blocks = -(-rows // m) * -(-columns // n)
        for limit, resident in ((_MOST_BYTES, 1), (_SHARED_BYTES, 2)):
            bare = TmaTile(rows=m, columns=n, groups=groups, stages=0)
            stages = (limit - bare.shared_bytes) // (bare.stage_bytes + _BARRIERS)
            most = steps if blocks <= MULTIPROCESSORS * resident else _MOST_STAGES
            stages = min(stages, _MOST_STAGES, most)
            tile = TmaTile(rows=m, columns=n, groups=groups, stages=stages, resident=resident)
            if stages >= min(3, most) and tile not in found:
                found.append(tile)
    return found


def choose_tma_tile(
    rows: int, columns: int, depth: int, reads: bool = False
) -> tuple[TmaTile, float]:
    """The tile that should take the least time, and that time in microseconds.

    Args:
        reads: each output needs another value of memory; several blocks wait for them at once.
    """
    found = candidates(rows, columns, depth)
    if reads and depth <= _FEW_STEPS * DEPTH:
        found = [tile for tile in found if tile.rows * tile.columns <= _SMALL]
    timed = [(predict_us(t, rows, columns, depth), t) for t in found]
    time, tile = min(timed, key=lambda item: item[0])
    return tile, time


def predict_us(tile: TmaTile, rows: int, columns: int, depth: int) -> float:
    """The model, by its terms: launch; each tile; what steps move, multiply, wait for, cost by
    themselves; sums that are stored.
    """
    blocks = -(-rows // tile.rows) * -(-columns // tile.columns)
    steps = -(-depth // DEPTH)
    together = min(tile.resident, -(-blocks // MULTIPROCESSORS))
    waves = -(-blocks // (MULTIPROCESSORS * together))
    outputs = tile.rows * tile.columns * together
    terms = (
        1.0,
        waves,
        waves * steps * tile.stage_bytes * together * 1e-5,
        waves * steps * outputs * DEPTH * 1e-6,
        waves * outputs * 1e-4,
        waves * steps / min(tile.stages, steps),
        waves * steps * 0.1,
    )
    return sum(rate * term for rate, term in zip(_RATES_US, terms, strict=True))
