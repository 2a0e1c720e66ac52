"""Aligned memory for arenas and tensors.

Input -> Output: a size -> a NumPy array whose first byte is aligned for the widest vectors.
Guarantees: 64-byte alignment, page alignment from 1 MiB; ``Pages`` keep what they hold, and the
pages that were touched, when they grow; a size that cannot fit gives an
``OutOfMemory`` that says how much was asked for and how much there is, before memory is touched.
Not here: which tensor lives where (the memory plan).
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tilewright.core.errors import InternalError, OutOfMemory

ALIGNMENT = 64
LARGE_PAGE = 2 << 20
_PAGE = 4096
_PAGED_FROM = 1 << 20
_MOST_PREPARED = 16 << 20  # of results; the C library keeps blocks of up to 32 MiB
_CLEARED_FROM = 8 << 20  # new bytes, which another thread is started for
_POPULATE_WRITE = 23  # of Linux; Python has no name for it
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_REMEDY = "use smaller inputs or a smaller batch, or a machine with more memory"


def allocate(num_bytes: int, purpose: str = "a buffer") -> npt.NDArray[np.uint8]:
    """Uninitialised bytes; see ``allocate_at``."""
    return allocate_at(num_bytes, purpose)[0]


def allocate_at(num_bytes: int, purpose: str = "a buffer") -> tuple[npt.NDArray[np.uint8], int]:
    """Uninitialised bytes, and their address (which NumPy is slow to tell).

    Args:
        num_bytes: size; 0 gives an empty array.
        purpose: what it is for, in the error.

    Raises:
        OutOfMemory: more than this machine (or its container) has, or the system refuses.
    """
    if num_bytes < 0:
        raise InternalError(f"{purpose} of {num_bytes} bytes")
    alignment = alignment_of(num_bytes)
    check_fits(num_bytes, purpose)
    try:
        block = np.empty(num_bytes + alignment, np.uint8)
    except (MemoryError, ValueError) as error:  # ValueError: beyond the address space
        raise _too_much(num_bytes, purpose, "the system refuses it") from error
    address = address_of(block)
    start = -address % alignment
    return block[start : start + num_bytes], address + start


def alignment_of(num_bytes: int) -> int:
    """The alignment of memory of that size, in bytes."""
    return _PAGE if num_bytes >= _PAGED_FROM else ALIGNMENT


class Pages:
    """Memory of its own from the system, in large pages where there are any.

    New pages are cleared when they are touched first, which takes 0.09 ms a MiB: of many, another
    processor clears those that are not touched yet.

    Args:
        num_bytes: at least so many.
        purpose: what it is for, in the error.

    Attributes:
        address: of the first byte, which a growth may change.
        num_bytes: what there is.

    Raises:
        OutOfMemory: more than this machine (or its container) has, or the system refuses.
    """

    def __init__(self, num_bytes: int, purpose: str) -> None:
        check_fits(num_bytes, purpose)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        try:
            self._memory = mmap.mmap(-1, _whole_pages(num_bytes), flags=flags)
        except (OSError, OverflowError) as error:
            raise _too_much(num_bytes, purpose, "the system refuses it") from error
        self._purpose = purpose
        self._clearing: Thread | None = None
        self._look(0)

    def grow(self, num_bytes: int) -> None:
        """Makes it larger; what it holds stays, where it lies may change.

        Raises:
            OutOfMemory: as for new ones.
        """
        check_fits(num_bytes, self._purpose)
        if self._clearing is not None:
            self._clearing.join()  # it uses the present address
        before = self.num_bytes
        try:
            self._memory.resize(_whole_pages(num_bytes))
        except (OSError, OverflowError) as error:
            raise _too_much(num_bytes, self._purpose, "the system refuses it") from error
        self._look(before)

    def touch(self) -> None:
        """Has all pages, at once or by the other processor that clears them already."""
        if self._clearing is None:
            _clear(self._memory, 0)

    def _look(self, before: int) -> None:
        self.num_bytes = len(self._memory)
        self.address = address_of(self._memory)
        with suppress(OSError):  # a kernel without large pages
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        if self.num_bytes - before >= _CLEARED_FROM and len(os.sched_getaffinity(0)) > 1:
            thread = Thread(target=_clear, args=(self._memory, before), daemon=True)
            with suppress(
                RuntimeError
            ):  # no more threads: pages are cleared where they are touched
                thread.start()
                self._clearing = thread


def _clear(memory: mmap.mmap, first: int) -> None:
    """Has pages from there on; it fails without harm where the system does not know how."""
    _madvise()(address_of(memory) + first, len(memory) - first, _POPULATE_WRITE)


@cache
def _madvise() -> Callable[[int, int, int], int]:
    """The C library's: unlike Python's it lets other threads run."""
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return cast("Callable[[int, int, int], int]", function)


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // LARGE_PAGE) * LARGE_PAGE


def check_fits(num_bytes: int, purpose: str) -> None:
    """For memory that others allocate.

    Raises:
        OutOfMemory: it is more than this machine (or its container) has.
    """
    limit = memory_limit_bytes()
    if num_bytes > limit:
        raise _too_much(num_bytes, purpose, f"this machine has {_readable(limit)}")


def address_of(array: Any) -> int:
    """Where the first element of a NumPy array lies; Python's buffers tell it sooner than NumPy."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError, BufferError):  # read-only, empty, of a type that it lacks
        return int(array.ctypes.data)


def empty(
    shape: Sequence[int], dtype: np.dtype[Any], purpose: str = "a tensor"
) -> npt.NDArray[Any]:
    """An uninitialised, aligned, row-major array.

    Raises:
        OutOfMemory: as ``allocate``.
    """
    return empty_at(shape, dtype, purpose)[0]


def empty_at(
    shape: Sequence[int], dtype: np.dtype[Any], purpose: str = "a tensor"
) -> tuple[npt.NDArray[Any], int]:
    """``empty``, and the address."""
    block, address = allocate_at(math.prod(shape) * dtype.itemsize, purpose)
    return np.ndarray(shape, dtype, block), address


def prepare_results(sizes: Sequence[int]) -> None:
    """Has the C library keep touched pages for results of these sizes, at most 16 MiB in all.

    It gives a large block back to the system when it is freed, but keeps later ones of that size:
    without this the first result of each larger size would be of new pages.

    Args:
        sizes: bytes of each result of a run.
    """
    if not sizes or sum(sizes) > _MOST_PREPARED:
        return
    with suppress(OutOfMemory):
        for _ in range(2):
            blocks = [allocate(size) for size in sizes]
            for block in blocks:
                block[::_PAGE] = 0
            del block, blocks


def put_side_by_side(arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Moves arrays into one block, in place of the old ones; Python's objects stay where they are.

    A large block has large pages where there are any, many small arrays have not: a product that
    reads its weights once takes up to a tenth longer then. What is mapped from a file stays there:
    it takes no memory until it is read.

    Raises:
        OutOfMemory: as ``allocate``.
    """
    moving = {
        name: array
        for name, array in arrays.items()
        if not array.dtype.hasobject and not _is_mapped(array)
    }
    sizes = {name: -(-array.nbytes // ALIGNMENT) * ALIGNMENT for name, array in moving.items()}
    block, start = allocate(sum(sizes.values()), "constants"), 0
    for name, size in sizes.items():
        array = moving.pop(name)
        arrays[name] = np.ndarray(array.shape, array.dtype, block, start)
        arrays[name][...] = array
        start += size


def _is_mapped(array: npt.NDArray[Any]) -> bool:
    """Whether the elements are those of a file."""
    owner: Any = array
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return isinstance(owner, mmap.mmap)


def is_aligned(array: npt.NDArray[Any], alignment: int = ALIGNMENT) -> bool:
    """Whether code that was compiled for aligned accesses may use the array's memory."""
    return array.ctypes.data % alignment == 0 and array.flags.c_contiguous


@cache
def memory_limit_bytes() -> int:
    """Memory of this machine, or the limit of its container when that is lower."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        text = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return physical
    return min(physical, int(text)) if text.isdigit() else physical


def refused(error: MemoryError, purpose: str) -> OutOfMemory:
    """The error to raise where NumPy found no memory."""
    reason = str(error) or "the system refuses memory"
    return OutOfMemory(f"{purpose} does not fit: {reason}", remedy=_REMEDY)


def _too_much(num_bytes: int, purpose: str, reason: str) -> OutOfMemory:
    return OutOfMemory(f"{purpose} needs {_readable(num_bytes)}, {reason}", remedy=_REMEDY)


def _readable(num_bytes: int) -> str:
    amount = float(num_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            return f"{amount:.1f} {unit}" if unit != "bytes" else f"{num_bytes} bytes"
        amount /= 1024
    return f"{amount:.1f} PiB"
