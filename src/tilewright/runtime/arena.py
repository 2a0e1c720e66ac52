"""Offsets in one arena for buffers that live at different times.

Input -> Output: (name, bytes, first use, last use) of each buffer -> its offset, and the arena's
size.
Guarantees: buffers whose lifetimes overlap do not share bytes; offsets are multiples of 64.
Method: largest first, into the lowest gap that is free for its whole lifetime. Which buffers meet
does not depend on their sizes, so it is found once for all of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer of ``size`` bytes used by calls ``first`` .. ``last``."""

    name: str
    size: int
    first: int
    last: int


def plan(buffers: Sequence[Lifetime]) -> tuple[dict[str, int], int]:
    """Returns offsets by name and the size of the arena in bytes."""
    timeline = Timeline([(item.name, item.first, item.last) for item in buffers])
    offsets, total = timeline.place([item.size for item in buffers])
    return {item.name: offset for item, offset in zip(buffers, offsets, strict=True)}, total


class Timeline:
    """Buffers of any sizes that live at fixed times.

    Args:
        spans: name, first and last call of each.
    """

    def __init__(self, spans: Sequence[tuple[str, int, int]]) -> None:
        first = np.array([span[1] for span in spans], dtype=np.int64)
        last = np.array([span[2] for span in spans], dtype=np.int64)
        self._meets = [
            array("i", np.flatnonzero((last >= begin) & (first <= end)).astype(np.intc).tobytes())
            for _, begin, end in spans
        ]
        # The order of buffers of equal size.
        self._order = sorted(range(len(spans)), key=lambda k: (spans[k][1], spans[k][0]))

    def place(self, sizes: Sequence[int]) -> tuple[list[int], int]:
        """The offset of each buffer, and the size of the arena in bytes."""
        offsets, total = [0] * len(sizes), 0
        taken: list[list[tuple[int, int]]] = [[] for _ in sizes]  # where those lie that it meets
        for number in sorted(self._order, key=lambda k: -sizes[k]):
            size = -(-sizes[number] // ALIGNMENT) * ALIGNMENT
            offsets[number] = offset = _lowest_gap(taken[number], size)
            span = offset, offset + size
            total = max(total, span[1])
            for other in self._meets[number]:
                taken[other].append(span)
        return offsets, total


def _lowest_gap(taken: list[tuple[int, int]], size: int) -> int:
    offset = 0
    taken.sort()
    for start, end in taken:
        if offset + size <= start:
            break
        if end > offset:
            offset = end
    return offset
