"""Offsets in one arena for buffers that live at different times.

Input -> Output: (name, bytes, first use, last use) of each buffer -> its offset, and the arena's
size.
Guarantees: buffers whose lifetimes overlap do not share bytes; offsets are multiples of 64.
Method: largest first, into the lowest gap that is free for its whole lifetime.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    order = sorted(buffers, key=lambda item: (-item.size, item.first, item.name))
    first = np.array([item.first for item in order], dtype=np.int64)
    last = np.array([item.last for item in order], dtype=np.int64)
    starts, ends = np.zeros(len(order), dtype=object), np.zeros(len(order), dtype=object)
    offsets: dict[str, int] = {}
    total = 0
    for number, buffer in enumerate(order):
        size = -(-buffer.size // ALIGNMENT) * ALIGNMENT
        meets = np.flatnonzero((last[:number] >= buffer.first) & (first[:number] <= buffer.last))
        offset = _lowest_gap(zip(starts[meets], ends[meets], strict=True), size)
        starts[number], ends[number] = offset, offset + size
        offsets[buffer.name] = offset
        total = max(total, offset + size)
    return offsets, total


def _lowest_gap(taken: Iterable[tuple[int, int]], size: int) -> int:
    offset = 0
    for start, end in sorted(taken):
        if offset + size <= start:
            break
        offset = max(offset, end)
    return offset
