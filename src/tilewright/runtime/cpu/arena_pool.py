"""Memory for arenas that the runs of an engine share, whatever their sizes.

Input -> Output: a number of bytes -> a block of at least that many, for one run at a time.
Guarantees: a block is given to one run at a time; a run of new sizes takes memory that earlier runs
have touched, as the first touch of a page costs more than the work of many a kernel: where no idle
block is large enough, the largest one grows, and the others are let go.
Not here: what lies where in an arena (runtime.arena), the memory itself (allocator).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy.typing as npt

from tilewright.core.errors import OutOfMemory
from tilewright.core.forks import renew_in_child
from tilewright.runtime.cpu.allocator import LARGE_PAGE, Pages, allocate_at

_MOST_PREPARED = 128 << 20
_PURPOSE = "the memory plan of a run"


@dataclass(slots=True, eq=False)
class Block:
    """Some memory, its address and size (which NumPy is slow to tell)."""

    memory: Pages | npt.NDArray[Any]
    address: int
    num_bytes: int


class ArenaPool:
    """The blocks that no run uses at the moment."""

    def __init__(self) -> None:
        self._idle: list[Block] = []
        self._lock = Lock()
        renew_in_child(self, "_lock")

    def take(self, num_bytes: int, address: int) -> Block:
        """A block for one run; give it back.

        Args:
            num_bytes: that it must have.
            address: of the block to prefer; 0 for none.

        Raises:
            OutOfMemory: there is none, and the system gives none.
        """
        with self._lock:
            for position, block in enumerate(self._idle):
                if block.address == address and block.num_bytes >= num_bytes:
                    return self._idle.pop(position)
            fitting = [block for block in self._idle if block.num_bytes >= num_bytes]
            if fitting:
                found = min(fitting, key=lambda block: block.num_bytes)
                self._idle.remove(found)
                return found
            largest = max(self._idle, key=lambda block: block.num_bytes, default=None)
            self._idle.clear()
        return _block(num_bytes, None if largest is None else largest.memory)

    def prepare(self, num_bytes: int) -> None:
        """Has touched pages for later runs, at most 128 MiB; none where the system gives none."""
        num_bytes = min(num_bytes, _MOST_PREPARED)
        if num_bytes < LARGE_PAGE:
            return
        with suppress(OutOfMemory):
            block = self.take(num_bytes, 0)
            if isinstance(block.memory, Pages):
                block.memory.touch()
            self.give(block)

    def give(self, block: Block) -> None:
        """Makes a block available to other runs."""
        with self._lock:
            self._idle.append(block)


def _block(num_bytes: int, memory: Pages | npt.NDArray[Any] | None) -> Block:
    """A block of that size, of memory that there is where it can grow."""
    if num_bytes < LARGE_PAGE:
        return Block(*allocate_at(num_bytes, _PURPOSE), num_bytes)
    if isinstance(memory, Pages):
        memory.grow(num_bytes)
    else:
        memory = Pages(num_bytes, _PURPOSE)
    return Block(memory, memory.address, memory.num_bytes)
