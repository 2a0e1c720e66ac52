"""Hashes of large data: SHA-256 of sums, which all processors compute as fast as memory is read.

Input -> Output: bytes -> their SHA-256 if they are fewer than a piece. Of more, each whole piece,
as a table of 64-bit words, gives the sums of its rows and columns, the rest gives itself, and
SHA-256 takes these in order.
Guarantees: the same for what is written bit by bit and for what is read as a whole; while data is
hashed the caller may do something else. Damage is found: a change goes unnoticed only where it
leaves the sums of its row and of its column as they were. A forger could do that, as it could
write another hash.
Not here: what is hashed, and what it should be (engine_file, weights_file).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

ROWS, COLUMNS = 512, 256
PIECE_BYTES = 8 * ROWS * COLUMNS
THREADS = "tilewright-hash"  # the names of threads begin so
_GROUP = 8  # pieces that a thread takes at once
Data = bytes | memoryview


class PieceHash:
    """The hash of data that comes little by little."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._left = bytearray()  # less than a piece

    def update(self, data: Data) -> None:
        """Takes further bytes."""
        rest = memoryview(data)
        if self._left:
            taken = min(PIECE_BYTES - len(self._left), len(rest))
            self._left += rest[:taken]
            rest = rest[taken:]
            if len(self._left) < PIECE_BYTES:
                return
            self._digest.update(_sums(self._left))
        whole = len(rest) // PIECE_BYTES * PIECE_BYTES
        self._digest.update(_sums(rest[:whole]))
        self._left = bytearray(rest[whole:])

    def hexdigest(self) -> str:
        """The hash of what came so far."""
        found = self._digest.copy()
        found.update(self._left)
        return found.hexdigest()


@contextmanager
def hashing(
    data: Data, forget: Callable[[int, int], None] | None = None
) -> Iterator[Callable[[], str]]:
    """Hashes while the caller does something else; what it is given waits for the hash.

    At the end nothing reads the data any more, be it a file that is about to change.

    Args:
        forget: called with the first byte and the number of bytes that were read last.
    """
    whole = len(data) // PIECE_BYTES * PIECE_BYTES
    size = _GROUP * PIECE_BYTES
    groups = [(at, min(at + size, whole)) for at in range(0, whole, size)]

    def read(group: tuple[int, int]) -> bytes:
        first, end = group
        sums = _sums(data[first:end])
        if forget is not None:
            forget(first, end - first)
        return sums

    def digest(found: Iterable[bytes]) -> str:
        total = hashlib.sha256()
        for sums in found:
            total.update(sums)
        total.update(data[whole:])
        return total.hexdigest()

    if len(groups) < 2:
        yield lambda: digest(map(read, groups))
        return
    pool = ThreadPoolExecutor(min(len(groups), len(os.sched_getaffinity(0))), THREADS)
    try:
        found = pool.map(read, groups)
        yield lambda: digest(found)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def hash_of(data: Data, forget: Callable[[int, int], None] | None = None) -> str:
    """The hash of all data (see ``hashing``)."""
    with hashing(data, forget) as wait:
        return wait()


def _sums(pieces: Data | bytearray) -> bytes:
    """Of whole pieces: 64-bit sums of the rows of each, then of its columns, modulo 2^64."""
    words = np.frombuffer(pieces, "<u8").reshape(-1, ROWS, COLUMNS)
    sums = [np.add.reduce(piece, axis=axis) for piece in words for axis in (1, 0)]
    return b"".join(part.astype("<u8").tobytes() for part in sums)
