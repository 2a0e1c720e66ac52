"""How large the blocks of a product of matrices are that the copy engine fetches (tma.cuh).

Input -> Output: rows, columns, depth -> ``TmaTile``.
Method: the least time by a linear model, whose rates were fitted to 279 timed kernels of 31 sizes
with what follows products in networks, on one H200 (its choices took 2 % longer than the best), and
for products of bytes to 201 of 42 kernels of networks (2 % longer).
Not here: timing tiles on the GPU at hand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

MULTIPROCESSORS = 132
_MOST_SHARING = {2: 132, 4: 112, 8: 96}  # blocks in clusters that find room at once
DEPTH = 64  # halves of a step
_FEW_OUTPUTS = 64 * 128
_ALIGNMENT, _BARRIERS = 1024, 16
_MOST_BYTES = 226 * 1024
_SHARED_BYTES = 112 * 1024  # with which two blocks share a multiprocessor
_MOST_STAGES = 12
_MOST_SUMS = 64  # of a thread, where two blocks share the registers
_SMALL, _FEW_STEPS = 128 * 128, 4  # outputs of blocks that store soon after they begin
_TURN_STEPS = 3  # from which there is something to multiply while another group stores
_REGISTERS, _MOST_REGISTERS = 16384, 255  # of a quarter of a multiprocessor, of a thread
_GIVEN_REGISTERS = 232  # of a thread, where the group that fetches gives the others its own
_WORKING_REGISTERS = 26  # of a thread, beside its sums and what it has read
_FEW_ROWS, _FAR_US = 256, 1.0  # whose constants no cache holds: threads fetch those sooner
_SHARED_US = (0.0826, 0.6826)
_RATES_US = (0.5782, 0.5557, 0.1661, 1.2879, 0.3932, 1.3627)
_RATES_IN_TURNS_US = (0.0, 0.0, 0.1741, 1.3786, 0.5279, 0.6518)
_READ_WORDS = 16  # of a thread, of what outputs of bytes need of memory
_BYTES_US = (1.9812, 0.1852, 0.2747, 0.4978, 0.5046, 0.0, 0.1543)
_BYTES_IN_TURNS_US = (1.0246, 0.315, 0.1814, 0.4766, 0.2633, 1.0499, 0.764)


@dataclass(frozen=True, slots=True, kw_only=True)
class TmaTile:
    """Outputs of a tile, groups of 4 warps that multiply, steps in flight.

    Attributes:
        resident: blocks of a multiprocessor.
        turns: each group has tiles of its own, instead of a part of each.
        split: blocks that share the depth.
        gives: the warp that fetches is one of a group, which gives registers to the others.
    """

    rows: int
    columns: int
    groups: int
    stages: int
    resident: int = 1
    turns: bool = False
    split: int = 1
    gives: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block: one more warp has the operands fetched, of a group where the others
        need its registers.
        """
        return 128 * self.groups + (128 if self.gives else 32)

    @property
    def sums(self) -> int:
        """Sums of a thread."""
        return self.rows * self.columns // (128 * (1 if self.turns else self.groups))

    @property
    def text(self) -> str:
        """For reports."""
        how = ", groups in turns" if self.turns else ""
        how += f", {self.split} blocks a sum" if self.split > 1 else ""
        return f"{self.rows}x{self.columns}x{DEPTH}, stages={self.stages}, copy engine{how}"

    def blocks(self, rows: int, columns: int) -> int:
        """Blocks of a launch: no more than find room at once; each takes tile after tile."""
        tiles = -(-rows // self.rows) * -(-columns // self.columns)
        return min(tiles * self.split, MULTIPROCESSORS * self.resident)

    def wastes(self, rows: int, columns: int) -> bool:
        """Whether few outputs have a multiprocessor that two blocks could share."""
        several = -(-rows // self.rows) * -(-columns // self.columns) > MULTIPROCESSORS
        few = self.rows * self.columns <= _FEW_OUTPUTS and not self.turns
        return several and few and self.resident == 1

    def reads_ahead(self, bytes_each: int) -> bool:
        """Whether a thread has registers for what its outputs need of memory, beside its sums."""
        read = self.sums // self.split * bytes_each // 4
        return 0 < read <= self.free_registers

    @property
    def free_registers(self) -> int:
        """Registers of a thread beside its sums and what it works with."""
        warps = -(-self.threads // 128) * self.resident  # of a quarter
        room = _GIVEN_REGISTERS if self.gives else _REGISTERS // (32 * warps) // 8 * 8
        return min(room, _MOST_REGISTERS) - self.sums - _WORKING_REGISTERS

    @property
    def shared_bytes(self) -> int:
        """Shared memory: the steps in flight and their barriers."""
        return self.stages * (self.stage_bytes + _BARRIERS) + _BARRIERS + _ALIGNMENT

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a step's operands."""
        return (self.rows + self.columns) * DEPTH * 2


# Outputs of a tile, groups of warps, whether they take turns; of equals, the first is taken.
_SHAPES = (
    (64, 256, 1, False),
    (64, 192, 1, False),
    (64, 128, 1, False),
    (64, 64, 1, False),
    (64, 32, 1, False),
    (128, 256, 2, False),
    (128, 192, 2, False),
    (128, 128, 2, False),
    (128, 64, 2, False),
    (128, 128, 2, True),
    (64, 256, 2, True),
    (64, 128, 2, True),
)


def candidates(rows: int, columns: int, depth: int, *, of_bytes: bool = False) -> list[TmaTile]:
    """All tiles, each with as many steps in flight as fit.

    Args:
        of_bytes: for products of bytes, which were checked with fewer tiles: only those.
    """
    found = []
    for m, n, groups, turns in _SHAPES:
        for limit, resident in ((_MOST_BYTES, 1), (_SHARED_BYTES, 2)):
            bare = TmaTile(
                rows=m,
                columns=n,
                groups=groups,
                stages=0,
                resident=resident,
                turns=turns,
                gives=groups > 1 and resident == 1,
            )
            tile = _filled(bare, limit, (rows, columns, depth))
            if tile is not None and tile not in found:
                found.append(tile)
        found += _shared(m, n, groups, (rows, columns, depth)) if not turns else []
    if of_bytes:
        long = depth > _FEW_STEPS * DEPTH
        found = [tile for tile in found if tile.split == 1 and (long or not tile.turns)]
        found = [tile for tile in found if not tile.wastes(rows, columns)]
    return found


def _shared(m: int, n: int, groups: int, size: tuple[int, int, int]) -> list[TmaTile]:
    """Tiles whose depth several blocks share, where all of them are at work at once."""
    rows, columns, depth = size
    tiles, steps = -(-rows // m) * -(-columns // n), -(-depth // DEPTH)
    found = []
    for split, most in _MOST_SHARING.items():
        packs = m * n // (128 * groups) // 8
        if tiles * split > most or steps < _FEW_STEPS * split or packs % split:
            continue
        bare = TmaTile(rows=m, columns=n, groups=groups, stages=0, split=split, gives=groups > 1)
        stages = (_MOST_BYTES - bare.shared_bytes) // (bare.stage_bytes + _BARRIERS)
        tile = replace(bare, stages=min(stages, _MOST_STAGES, -(-steps // split)))
        if tile.stages * tile.stage_bytes >= 4 * m * n:  # where the sums are exchanged
            found.append(tile)
    return found


def _filled(bare: TmaTile, limit: int, size: tuple[int, int, int]) -> TmaTile | None:
    """The tile with as many steps in flight as fit, or None."""
    rows, columns, depth = size
    if bare.resident > 1 and bare.sums > _MOST_SUMS:
        return None
    tiles = -(-rows // bare.rows) * -(-columns // bare.columns)
    alone = tiles <= MULTIPROCESSORS * bare.resident
    if bare.turns and (alone or depth <= (_TURN_STEPS - 1) * DEPTH):
        return None
    stages = (limit - bare.shared_bytes) // (bare.stage_bytes + _BARRIERS)
    most = -(-depth // DEPTH) if alone else _MOST_STAGES
    stages = min(stages, _MOST_STAGES, most)
    return replace(bare, stages=stages) if stages >= min(3, most) else None


def choose_tma_tile(
    rows: int,
    columns: int,
    depth: int,
    reads: bool = False,
    cost: float = 0,
    of_bytes: bool = False,
) -> tuple[TmaTile, float]:
    """The tile that should take the least time, and that time in microseconds.

    Args:
        reads: each output needs another value of memory; several blocks wait for them at once.
        cost: as for ``predict_us``.
        of_bytes: as for ``candidates``; those with a cost are.
    """
    found = candidates(rows, columns, depth, of_bytes=of_bytes or cost > 0)
    if reads and not cost and depth <= _FEW_STEPS * DEPTH:
        found = [tile for tile in found if tile.rows * tile.columns <= _SMALL]
    if reads and cost:
        found = [tile for tile in found if tile.free_registers >= _READ_WORDS]
    timed = [(predict_us(t, rows, columns, depth, cost, reads), t) for t in found]
    # Of equals, with few steps, blocks that share a multiprocessor: one stores, one multiplies.
    shared = bool(cost) and depth <= 2 * _FEW_STEPS * DEPTH
    time, tile = min(timed, key=lambda item: (item[0], -item[1].resident * shared))
    return tile, time


def predict_us(
    tile: TmaTile, rows: int, columns: int, depth: int, cost: float = 0, reads: bool = False
) -> float:
    """The model, by its terms: launch; each tile; what steps multiply; sums that are stored; what
    steps wait for, cost by themselves; what sums of bytes need of memory; few rows; blocks that
    share a sum.

    Args:
        cost: of products of bytes: what follows each sum, relative to its scale and rounding alone.
        reads: as for ``choose_tma_tile``.
    """
    blocks = -(-rows // tile.rows) * -(-columns // tile.columns) * tile.split
    steps = -(-depth // DEPTH)
    steps = -(-steps // tile.split)
    together = min(tile.resident, -(-blocks // MULTIPROCESSORS))
    waves = -(-blocks // (MULTIPROCESSORS * together))
    outputs = tile.rows * tile.columns * together
    terms = (
        1.0,
        waves,
        waves * steps * outputs * DEPTH * 1e-6,
        waves * outputs * 1e-4 * (cost or 1),
        waves * steps / min(tile.stages, steps),
        waves * steps * 0.1,
        waves * outputs * 1e-4 * reads,
    )
    if cost:
        rates = _BYTES_IN_TURNS_US if tile.turns else _BYTES_US
    else:
        rates = (*(_RATES_IN_TURNS_US if tile.turns else _RATES_US), 0.0)
    time = sum(rate * term for rate, term in zip(rates, terms, strict=True))
    if not cost and rows <= _FEW_ROWS:
        time += _FAR_US
    if tile.split > 1:
        time += _SHARED_US[0] + _SHARED_US[1] * (tile.split - 1) / 8
    return time
