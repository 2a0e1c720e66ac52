"""Offsets in one arena for buffers that live at different times.

Input -> Output: (name, bytes, first use, last use) of each buffer -> its offset, and the arena's
size.
Guarantees: buffers whose lifetimes overlap do not share bytes; offsets are multiples of 64.
Method: largest first, into the lowest gap that is free for its whole lifetime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    placed: list[tuple[int, int, Lifetime]] = []
    offsets: dict[str, int] = {}
    total = 0
    for buffer in sorted(buffers, key=lambda item: (-item.size, item.first, item.name)):
        size = -(-buffer.size // ALIGNMENT) * ALIGNMENT
        offset = 0
        for start, end, other in placed:
            if other.last < buffer.first or other.first > buffer.last:
                continue
            if offset + size <= start:
                break
            offset = max(offset, end)
        offsets[buffer.name] = offset
        total = max(total, offset + size)
        placed.append((offset, offset + size, buffer))
        placed.sort(key=lambda item: item[0])
    return offsets, total
