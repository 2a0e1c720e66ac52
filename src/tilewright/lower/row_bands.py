"""Chains of kernels as one kernel, so that its stages can run in turns, some rows at a time.

Input -> Output: a segment's kernels -> the same with some chains as one kernel of several stages,
and a decision for each.
    t[.., h, ..] = f(x, h);  y[.., h, ..] = g(t[.., 2*h .. 2*h + 2, ..])  ->  both in one kernel
Requires: layouts are chosen; each kernel has one stage that computes, others only store constants.
Guarantees: values are unchanged; only values with one reader disappear; a large value that stays
apart has a reason.
Why: an expanded image of a network is larger than the caches, and would be written to memory and
read again; some rows of it stay in the second cache until they are read.
Not here: what a row needs (kernel.rows), how stages take turns (codegen.cpu.waves).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.core.dtypes import FLOAT32
from tilewright.core.record import DecisionLog
from tilewright.kernel.counts import buffer_bytes, count
from tilewright.kernel.ir import Buffer, Kernel, Stage, loaded
from tilewright.kernel.rows import ROWS, Hand, hand, rings
from tilewright.lower.context import Item, View

_CACHE_BYTES = 1 << 20  # the second cache of one processor
_ROOM_BYTES = 640 << 10  # of it, for the rows that a chain hands on
_LARGE_BYTES = 4 << 20  # what is no longer read as fast as from the second cache
# Operations of the writer and the reader for each byte that is handed on: with more of them the
# memory keeps up, and joined kernels read their weights again for each band.
_MOST_WORK = 20


@dataclass(frozen=True, slots=True)
class _Link:
    """A value that a kernel of a chain hands to the next one."""

    value: Buffer
    hand: Hand
    flops: int
    is_copy: bool

    @property
    def waits(self) -> bool:
        """The value takes as long to move as to compute with; a copy is nothing but moved."""
        is_little = self.is_copy or self.flops <= _MOST_WORK * self.num_bytes
        return self.num_bytes > _CACHE_BYTES and is_little

    @property
    def num_bytes(self) -> int:
        return buffer_bytes(self.value).const

    @property
    def row_bytes(self) -> int:
        return self.num_bytes // self.value.shape[ROWS].const


def in_row_bands(items: Sequence[Item], keep: Collection[str], log: DecisionLog) -> list[Item]:
    """Joins the kernels of each chain that hand on more than the second cache holds."""
    joined: dict[int, Kernel] = {}
    gone: set[int] = set()
    for chain, links in _chains(items, keep, log):
        for part in _parts(links):
            numbers = chain[part.start : part.stop]
            kernels = [_kernel(items[number]) for number in numbers]
            values = [link.value for link in links[part.start : part.stop - 1]]
            joined[numbers[-1]] = kernel = _joined(kernels, values)
            gone.update(numbers[:-1])
            log.add("bands", "+".join(kernel.sources), f"{len(numbers)} kernels, row by row")
    return [joined.get(n, item) for n, item in enumerate(items) if n not in gone]


def _kernel(item: Item) -> Kernel:
    assert isinstance(item, Kernel)
    return item


def _chains(
    items: Sequence[Item], keep: Collection[str], log: DecisionLog
) -> list[tuple[list[int], list[_Link]]]:
    """Numbers of kernels that hand on a value by rows, each to the next, with their links."""
    users: dict[str, int] = {}
    for item in items:
        for name in [item.source.name] if isinstance(item, View) else [b.name for b in item.inputs]:
            users[name] = users.get(name, 0) + 1
    ends: dict[str, tuple[list[int], list[_Link]]] = {}  # by what the last kernel writes
    found: list[tuple[list[int], list[_Link]]] = []
    for number, item in enumerate(items):
        if isinstance(item, View):
            continue
        chain = _best(item, items, ends, log)
        if chain is None:
            chain = ([], [])
            found.append(chain)
        chain[0].append(number)
        names = [buffer.name for buffer in item.outputs]
        if len(names) == 1 and users.get(names[0]) == 1 and names[0] not in keep:
            ends[names[0]] = chain
    return [chain for chain in found if chain[1]]


def _best(
    kernel: Kernel,
    items: Sequence[Item],
    ends: dict[str, tuple[list[int], list[_Link]]],
    log: DecisionLog,
) -> tuple[list[int], list[_Link]] | None:
    """The chain that the kernel continues: of several values, the largest is handed on."""
    links: list[tuple[int, str, _Link]] = []
    for buffer in kernel.inputs:
        chain = ends.pop(buffer.name, None)
        if chain is None:
            continue
        writer = _kernel(items[chain[0][-1]])
        link = _link(buffer, writer, kernel)
        if isinstance(link, _Link):
            links.append((link.num_bytes, buffer.name, link))
            ends[buffer.name] = chain
        elif _is_large(buffer):
            subject = f"{'+'.join(writer.sources)} -> {'+'.join(kernel.sources)}"
            log.add("bands", subject, "separate kernels", (("row by row", link),))
    if not links:
        return None
    _, name, link = max(links, key=lambda found: found[:2])
    chain = ends.pop(name)
    chain[1].append(link)
    return chain


def _is_large(buffer: Buffer) -> bool:
    size = buffer_bytes(buffer)
    return size.is_const and size.const > _CACHE_BYTES


def _link(value: Buffer, writer: Kernel, reader: Kernel) -> _Link | str:
    if value.dtype is not FLOAT32:
        return f"it holds {value.dtype.name}"
    if not all(size.is_const for size in value.shape):
        return "its size is not known"
    stages = [_computing(kernel) for kernel in (writer, reader)]
    if stages[0] is None or stages[1] is None:
        return "a kernel has steps or several stages"
    found = hand(value, stages[0], stages[1])
    if isinstance(found, str):
        return found
    flops = [count(kernel).flops for kernel in (writer, reader)]
    if not all(one.is_const for one in flops):
        return "its work is not known"
    return _Link(value, found, flops[0].const + flops[1].const, is_copy=flops[0].const == 0)


def _computing(kernel: Kernel) -> Stage | None:
    """The one stage that loads something; the others are borders."""
    if kernel.steps is not None or kernel.temporaries:
        return None
    stages = [stage for stage in kernel.stages if loaded(*stage.roots)]
    return stages[0] if len(stages) == 1 else None


def _parts(links: Sequence[_Link]) -> list[range]:
    """Cuts a chain where it costs least, so that one row of each part fits the room.

    Returns:
        The kernels of each part with several.
    """
    best: list[tuple[int, list[range]]] = [(0, [])]  # cost and parts of the first kernels
    for end in range(1, len(links) + 2):
        options: list[tuple[int, list[range]]] = []
        for start in range(end):
            inside = links[start : end - 1]
            if _room(inside) > _ROOM_BYTES or not all(link.waits for link in inside):
                continue
            if inside and not any(link.num_bytes > _LARGE_BYTES for link in inside):
                continue
            cut = links[start - 1].num_bytes if start and links[start - 1].waits else 0
            cost, parts = best[start]
            own = [range(start, end)] if inside else []
            options.append((cost + cut, [*parts, *own]))
        best.append(min(options, key=lambda option: (option[0], len(option[1]))))
    return best[-1][1]


def _room(links: Sequence[_Link]) -> int:
    """Bytes of all values that one row of the last kernel needs."""
    rows = rings([link.hand for link in links], 1)
    return sum(count * link.row_bytes for count, link in zip(rows, links, strict=True))


def _joined(kernels: Sequence[Kernel], values: Sequence[Buffer]) -> Kernel:
    """One kernel: borders of the values, all that is computed, borders of the result."""
    last = kernels[-1]
    names = {value.name for value in values}
    inputs = {b.name: b for kernel in kernels for b in kernel.inputs if b.name not in names}
    borders: Mapping[bool, list[Stage]] = {True: [], False: []}
    for kernel in kernels:
        for stage in kernel.stages:
            if not loaded(*stage.roots):
                borders[kernel is last].append(stage)
    computing = [stage for kernel in kernels for stage in kernel.stages if loaded(*stage.roots)]
    sources = dict.fromkeys(source for kernel in kernels for source in kernel.sources)
    return replace(
        last,
        name=f"{last.name} in bands",
        inputs=tuple(inputs.values()),
        temporaries=tuple(values),
        stages=(*borders[False], *computing, *borders[True]),
        sources=tuple(sources),
    )
