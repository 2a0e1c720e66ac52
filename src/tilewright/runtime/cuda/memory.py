"""Blocks of GPU memory and pinned memory that runs take and give back.

Input -> Output: a size, a stream -> a ``Block``; it returns by itself when nothing refers to it.
Guarantees: a block is handed out only to a stream that is ordered behind everything known to use
it; idle blocks are bounded, and are freed before memory is called full.
Not here: what lies in a block (arrays), the arena of a run (context).
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.errors import OutOfMemory
from tilewright.runtime.cuda.driver import Device, bindings, check, pin

_MAX_IDLE = 8  # of one size,
_IDLE_BYTES = 1 << 18  # or as many as have so many bytes together
_SMALLEST = 512
_WORD_BYTES = 4
LEGACY = 1  # the handle of the default stream, which other streams of its kind wait for
UNKNOWN = -1  # a reader whose stream nobody told

Array = npt.NDArray[Any]


def order(first: int, then: int) -> None:
    """Has what is enqueued on one stream from now on wait for what is on another now."""
    if first == then:
        return
    driver = bindings()
    timing_off = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
    event = check(driver.cuEventCreate(timing_off), "making an event")
    check(driver.cuEventRecord(event, first), "recording an event")
    check(driver.cuStreamWaitEvent(then, event, 0), "waiting for an event")
    check(driver.cuEventDestroy(event), "dropping an event")


class Block:
    """GPU memory of one array.

    Attributes:
        stream: where it was last used; None when that has ended.
        readers: streams of others that may still read it.
        word: where the kernels that fill it report, which goes with it; made by ``report``.
    """

    __slots__ = ("address", "num_bytes", "pool", "readers", "stream", "word")

    def __init__(
        self, pool: BlockPool, address: int, num_bytes: int, stream: int | None, word: Word | None
    ) -> None:
        self.pool, self.address, self.num_bytes = pool, address, num_bytes
        self.stream, self.word = stream, word
        self.readers: set[int] = set()

    def __del__(self) -> None:
        kept = (self.address, self.stream, self.readers, self.word)
        self.pool.give_back(self.num_bytes, kept)

    def report(self, stream: int) -> Word:
        """The word, cleared on a stream."""
        if self.word is None:
            self.word = Word()
        check(bindings().cuMemsetD32Async(self.word.address, 0, 1, stream), "clearing the status")
        return self.word


class Word:
    """A word of the host that kernels write a number into where they fail."""

    __slots__ = ("_cell", "address")

    def __init__(self) -> None:
        self.address = pin(_WORD_BYTES)
        self._cell = ctypes.c_int32.from_address(self.address)
        self._cell.value = 0

    @property
    def value(self) -> int:
        """The number, when the kernels have ended; 0 where all went well."""
        return self._cell.value

    def close(self) -> None:
        """Frees it."""
        _free_pinned(self.address)


Kept = tuple[int, int | None, set[int], Word | None]  # address, stream, readers, word


class BlockPool:
    """Blocks of one GPU, kept by size for the next run."""

    def __init__(self, device: Device) -> None:
        self._device = device
        # Blocks return whenever Python drops them, also inside of these methods: so there is no
        # lock, and a deque's own operations, which are whole, do everything.
        self._idle: dict[int, deque[Kept]] = {}
        self._closed = False

    def take(self, num_bytes: int, stream: int | None, name: str) -> Block:
        """A block of at least so many bytes, for use on a stream; see ``take_size``."""
        return self.take_size(size_class(num_bytes), stream, name)

    def take_size(self, size: int, stream: int | None, name: str) -> Block:
        """A block of a size class, for use on a stream.

        Raises:
            OutOfMemory: there is no room, even without idle blocks.
        """
        idle = self._idle.get(size)
        try:
            kept = idle.pop() if idle else self._new(size, name)
        except IndexError:  # another thread was quicker
            kept = self._new(size, name)
        address, used_on, readers, word = kept
        if readers:
            self._wait(readers, stream)
        if used_on is not None and used_on != stream:
            self._wait({used_on}, stream)
        return Block(self, address, size, stream, word)

    def give_back(self, size: int, kept: Kept) -> None:
        """Keeps a block that nothing refers to any more, or frees it."""
        idle = self._idle.setdefault(size, deque())
        if self._closed or len(idle) >= max(_MAX_IDLE, _IDLE_BYTES // max(size, 1)):
            _free(kept)
        else:
            idle.append(kept)

    def free_idle(self) -> None:
        """Frees what nobody uses."""
        for idle in list(self._idle.values()):
            while idle:
                _free(idle.pop())

    def close(self) -> None:
        """Frees idle blocks now, and others when they return."""
        self._closed = True
        self.free_idle()

    def _new(self, size: int, name: str) -> Kept:
        purpose = f"the value {name}"
        try:
            address = self._device.allocate(size, purpose)
        except OutOfMemory:
            self.free_idle()
            address = self._device.allocate(size, purpose)
        return address, None, set(), None

    def _wait(self, streams: set[int], stream: int | None) -> None:
        if stream is None or UNKNOWN in streams:
            check(bindings().cuCtxSynchronize(), "waiting for the GPU")
            return
        for used_on in streams:
            order(used_on, stream)


def _free(kept: Kept) -> None:
    bindings().cuMemFree(kept[0])  # waits for what still uses it
    if kept[3] is not None:
        kept[3].close()


class Pinned:
    """Host memory that the GPU copies from and to at full speed, for one run at a time."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = size_class(num_bytes)
        self.address = pin(self.num_bytes)
        block = (ctypes.c_uint8 * self.num_bytes).from_address(self.address)
        self.bytes: Array = np.frombuffer(memoryview(block).cast("B"), dtype=np.uint8)

    def close(self) -> None:
        """Frees it."""
        _free_pinned(self.address)


class PinnedPool:
    """Pinned memory, kept by size."""

    def __init__(self) -> None:
        self._idle: dict[int, deque[Pinned]] = {}

    def take(self, num_bytes: int) -> Pinned:
        """Memory of at least so many bytes.

        Raises:
            OutOfMemory: the system refuses it.
        """
        try:
            return self._idle[size_class(num_bytes)].pop()
        except (KeyError, IndexError):
            return Pinned(num_bytes)

    def give_back(self, pinned: Pinned) -> None:
        """Keeps it; what copies from or to it must have ended."""
        idle = self._idle.setdefault(pinned.num_bytes, deque())
        if len(idle) >= _MAX_IDLE:
            pinned.close()
        else:
            idle.append(pinned)

    def close(self) -> None:
        """Frees what is idle."""
        for idle in self._idle.values():
            while idle:
                idle.pop().close()


def pinned_copy(array: Array) -> Array:
    """The same array in pinned memory, which is freed with it.

    Raises:
        OutOfMemory: the system refuses it.
    """
    pinned = Pinned(array.nbytes)
    weakref.finalize(pinned.bytes, _free_pinned, pinned.address)
    copy: Array = pinned.bytes[: array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _free_pinned(address: int) -> None:
    bindings().cuMemFreeHost(address)


def size_class(num_bytes: int) -> int:
    """The size that a block of so many bytes gets: at most an eighth more, above 4 KiB."""
    size = max(num_bytes, _SMALLEST)
    step = max(_SMALLEST, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step
