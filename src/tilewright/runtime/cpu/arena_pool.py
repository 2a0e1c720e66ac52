"""Memory for arenas that the runs of an engine share, whatever their sizes.

Input -> Output: a number of bytes -> a block of at least that many, for one run at a time.
Guarantees: a block is given to one run at a time; a run of new sizes takes memory that earlier runs
have touched, as the first touch of a page costs more than the work of many a kernel; before memory
is asked for, idle blocks that are too small are let go.
Not here: what lies where in an arena (runtime.arena), the memory itself (allocator).
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy.typing as npt

from tilewright.core.forks import renew_in_child
from tilewright.runtime.cpu.allocator import allocate_at


@dataclass(slots=True, eq=False)
class Block:
    """Some memory, its address and size (which NumPy is slow to tell)."""

    memory: npt.NDArray[Any]
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
            self._idle.clear()
        return Block(*allocate_at(num_bytes, "the memory plan of a run"), num_bytes)

    def give(self, block: Block) -> None:
        """Makes a block available to other runs."""
        with self._lock:
            self._idle.append(block)
