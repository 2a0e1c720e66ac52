"""SHA-256 of large data in pieces, which all processors compute at once.

Input -> Output: bytes -> the SHA-256 of up to one piece; of more, that of the hashes of all pieces.
Guarantees: the same for what is written bit by bit and for what is read as a whole; while data is
hashed the caller may do something else.
Not here: what is hashed, and what it should be (engine_file, weights_file).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

PIECE_BYTES = 16 << 20  # hashed in 10 ms, after which a thread waits for the interpreter
Data = bytes | memoryview


class PieceHash:
    """The hash of data that comes little by little."""

    def __init__(self) -> None:
        self._digests: list[bytes] = []
        self._piece = hashlib.sha256()
        self._left = PIECE_BYTES

    def update(self, data: Data) -> None:
        """Takes further bytes."""
        rest = memoryview(data)
        while rest:
            if not self._left:
                self._digests.append(self._piece.digest())
                self._piece, self._left = hashlib.sha256(), PIECE_BYTES
            self._piece.update(rest[: self._left])
            taken = min(len(rest), self._left)
            self._left -= taken
            rest = rest[taken:]

    def hexdigest(self) -> str:
        """The hash of what came so far."""
        return _whole([*self._digests, self._piece.digest()])


def start(data: Data) -> Callable[[], str]:
    """Begins to hash; what is returned waits for the hash."""
    pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
    if len(pieces) < 2:
        digest = hashlib.sha256(data).hexdigest()
        return lambda: digest
    pool = ThreadPoolExecutor(min(len(pieces), len(os.sched_getaffinity(0))))
    found = pool.map(lambda piece: hashlib.sha256(piece).digest(), pieces)
    pool.shutdown(wait=False)
    return lambda: _whole(list(found))


def _whole(digests: Sequence[bytes]) -> str:
    if len(digests) == 1:
        return digests[0].hex()
    return hashlib.sha256(b"".join(digests)).hexdigest()
