"""Stages in turns, some rows of each at a time, so that what they hand on stays in a cache.

Input -> Output: a kernel -> its ``Wave``: a run of stages, how many rows of each belong to each
band; the kernel with what the stages hand on folded to a few rows.
    for all rows r: t[r] = f(x, r);  for all rows y: out[y] = g(t[y], t[y + 1], t[y + 2])
    ->  for each band of y: the rows of t that it needs and that are not there yet, then its rows;
        t[r] lies at r mod 4
Requires: each stage of a wave stores a private buffer of known size that only the next one loads.
Guarantees: what a row needs is computed before it, whatever range of bands a thread is given: a
range has rings of its own, and begins with the rows of earlier bands that it needs.
Not here: which kernels are joined (lower.row_bands), the wave's code (wave_code).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.core.dtypes import FLOAT32, INT64
from tilewright.core.shape import Dim, product
from tilewright.kernel.affine import affine
from tilewright.kernel.counts import buffer_bytes
from tilewright.kernel.ir import (
    Buffer,
    Const,
    Expr,
    Kernel,
    Load,
    Stage,
    call,
    constant,
    load,
    loaded,
    transform,
)
from tilewright.kernel.nest import Nest
from tilewright.kernel.rows import ROWS, Hand, hand, rings
from tilewright.kernel.schedule import Schedule

_RING_BYTES = 640 << 10  # of what is handed on; the rest of a second cache is for all else
_SPANS = 16  # parts that threads may get
_LANES = 16  # rings of floats begin at lines of the cache


@dataclass(frozen=True, slots=True)
class Ring:
    """Where a buffer's rows lie: row r at ``r mod rows`` of a ring; each span has a ring.

    Attributes:
        buffer: as the kernel has it.
        rows: a power of two.
        offset: the place of the first row that is computed; borders are around it.
        has_border: some rows or columns are zeros that no row stores.
    """

    buffer: Buffer
    rows: int
    offset: int
    has_border: bool

    @property
    def shape(self) -> tuple[Dim, ...]:
        shape = self.buffer.shape
        return (*shape[:ROWS], Dim.of(self.rows), *shape[ROWS + 1 :])

    @property
    def size(self) -> int:
        """Elements of one ring, whole lines."""
        return product(self.shape).ceildiv(_LANES).const * _LANES


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Stages ``first ..`` that run in turns.

    Attributes:
        hands, rings: from each stage to the next.
        counts: rows of each stage.
        per_band: rows of the last stage in one band.
        num_spans: equal parts of the bands, a power of two; one thread runs at least one.
        borders: numbers of the stages that store the rings' borders; the wave does that.
    """

    first: int
    hands: tuple[Hand, ...]
    rings: tuple[Ring, ...]
    counts: tuple[int, ...]
    per_band: int
    num_spans: int
    borders: frozenset[int]

    @property
    def stages(self) -> range:
        """The numbers of its stages."""
        return range(self.first, self.first + len(self.counts))

    @property
    def num_bands(self) -> int:
        return -(-self.counts[-1] // self.per_band)

    def axis(self, number: int) -> str:
        """The axis of a stage's rows."""
        place = number - self.first
        last = self.hands[-1].reader
        return (self.hands[place].writer if place < len(self.hands) else last).name

    def bounds(self) -> list[tuple[list[int], list[int]]]:
        """For each stage: its first row in a range that begins with each band, and the rows before
        each band of a range that has begun earlier, rows of a last border included.
        """
        found = [([0] * self.num_bands, [0] * (self.num_bands + 1)) for _ in self.counts]
        for band in range(self.num_bands):
            low, high = band * self.per_band, (band + 1) * self.per_band
            for number in reversed(range(len(self.counts))):
                most = self.counts[number]
                if number < len(self.hands):
                    link, ring = self.hands[number], self.rings[number]
                    low = link.stride * low + link.first
                    high = link.stride * (high - 1) + link.last + 1
                    most = ring.buffer.shape[ROWS].const - ring.offset
                starts, ends = found[number]
                starts[band] = low = max(0, min(low, self.counts[number]))
                ends[band + 1] = high = max(ends[band], min(high, most))
                high = min(high, self.counts[number])
        return found


def find_wave(kernel: Kernel) -> Wave | None:
    """The first stages of a kernel that can run in turns and hand on what exceeds a ring."""
    if kernel.steps is not None or not kernel.temporaries:
        return None
    for first in range(len(kernel.stages) - 1):
        wave = _wave(kernel, first)
        if wave is not None:
            return wave
    return None


def _wave(kernel: Kernel, first: int) -> Wave | None:
    handed: list[tuple[Buffer, Hand]] = []
    for writer, reader in zip(kernel.stages[first:], kernel.stages[first + 1 :], strict=False):
        buffer = _between(kernel, writer, reader)
        link = hand(buffer, writer, reader) if buffer is not None else ""
        if buffer is None or isinstance(link, str):
            break
        if handed and handed[-1][1].reader is not link.writer:
            break
        handed.append((buffer, link))
    whole = sum((buffer_bytes(buffer) for buffer, _ in handed), Dim.of(0)).const
    last = first + len(handed)
    if whole <= _RING_BYTES or not _is_repeatable(kernel.stages[first : last + 1]):
        return None
    hands = [link for _, link in handed]
    counts = [*(link.writer.extent.const for link in hands), hands[-1].reader.extent.const]
    per_band = 1
    while _ring_bytes(handed, 2 * per_band) <= _RING_BYTES and 2 * _SPANS * per_band <= counts[-1]:
        per_band *= 2
    names = {buffer.name for buffer, _ in handed}
    borders = {
        number
        for number, stage in enumerate(kernel.stages)
        if number not in range(first, last + 1) and {s.buffer for s in stage.stores} <= names
    }
    bordered = {s.buffer for number in borders for s in kernel.stages[number].stores}
    own = [
        Ring(buffer, rows, _offset(kernel.stages[first + k]), buffer.name in bordered)
        for k, ((buffer, _), rows) in enumerate(zip(handed, rings(hands, per_band), strict=True))
    ]
    num_bands = -(-counts[-1] // per_band)
    spans = min(_SPANS, num_bands, *(r.buffer.shape[ROWS].const // r.rows for r in own))
    return Wave(
        first=first,
        hands=tuple(hands),
        rings=tuple(own),
        counts=tuple(counts),
        per_band=per_band,
        num_spans=1 << max(1, spans).bit_length() - 1,
        borders=frozenset(borders),
    )


def _ring_bytes(handed: Sequence[tuple[Buffer, Hand]], per_band: int) -> int:
    rows = rings([link for _, link in handed], per_band)
    return sum(
        count * (buffer_bytes(buffer).const // buffer.shape[ROWS].const)
        for (buffer, _), count in zip(handed, rows, strict=True)
    )


def _offset(writer: Stage) -> int:
    return affine(writer.stores[0].index[ROWS]).offset.const


def _between(kernel: Kernel, writer: Stage, reader: Stage) -> Buffer | None:
    """The private buffer of a known size that one stage alone computes, and only the next loads."""
    stored = {store.buffer for store in writer.stores}
    for buffer in kernel.temporaries:
        if stored != {buffer.name} or buffer.dtype is not FLOAT32:
            continue
        if not all(size.is_const for size in buffer.shape):
            return None
        users = [stage for stage in kernel.stages if buffer.name in loaded(*stage.roots)]
        others = [
            store
            for stage in kernel.stages
            for store in stage.stores
            if stage is not writer and store.buffer == buffer.name
        ]
        zeros = all(isinstance(store.value, Const) and store.value.value == 0 for store in others)
        return buffer if users == [reader] and zeros else None
    return None


def _is_repeatable(stages: Sequence[Stage]) -> bool:
    """True where no stage stores what itself or an earlier one loads, and none is in an order."""
    read: set[str] = set()
    for stage in stages:
        read.update(loaded(*stage.roots))
        if any(axis.ordered for axis in stage.axes) or any(s.buffer in read for s in stage.stores):
            return False
    return True


def folded(kernel: Kernel, wave: Wave) -> Kernel:
    """The kernel with the rows of what is handed on at their places in rings."""
    rows = {ring.buffer.name: ring.rows for ring in wave.rings}
    stages = list(kernel.stages)
    for number in wave.stages:
        stages[number] = _folded(stages[number], rows)
    shapes = {ring.buffer.name: ring.shape for ring in wave.rings}
    temporaries = tuple(replace(b, shape=shapes.get(b.name, b.shape)) for b in kernel.temporaries)
    return replace(kernel, stages=tuple(stages), temporaries=temporaries)


def _folded(stage: Stage, rows: Mapping[str, int]) -> Stage:
    def place(name: str, index: Sequence[Expr]) -> tuple[Expr, ...]:
        at = call("and", index[ROWS], constant(rows[name] - 1, INT64))
        return (*index[:ROWS], at, *index[ROWS + 1 :])

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer in rows:
            return load(node.buffer, node.dtype, place(node.buffer, node.index))
        return None

    stores = [store.mapped(lambda root: transform(root, rule)) for store in stage.stores]
    return Stage(
        stage.axes,
        tuple(
            replace(store, index=place(store.buffer, store.index))
            if store.buffer in rows
            else store
            for store in stores
        ),
    )


def by_rows(wave: Wave, number: int, nest: Nest, schedule: Schedule) -> Schedule | str:
    """The schedule of a stage with rows as the slowest digit of its iterations; or why it cannot
    be so.
    """
    axis = wave.axis(number)
    if axis not in {one.name for one in nest.axes}:
        return "its rows are one with another axis"
    if axis == schedule.vector:
        return "its vectors run across rows"
    if schedule.copies(axis) != 1:
        return "its tiles have several rows"
    if not all(one.extent.is_const for one in nest.axes):
        return "a size is not known"
    return replace(schedule, outer=(axis, *(name for name in schedule.outer if name != axis)))
