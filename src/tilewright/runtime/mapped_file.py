"""A file whose pages are in use as memory, and whether it is still what was loaded.

Input -> Output: an open file -> its pages; ``check`` -> nothing, or an error.
Guarantees: what was computed between two checks was computed from what was loaded. A file that is
replaced by another (as ``whole_file`` does, and ``mv``) or removed stays as it was; one that is
written over (as ``cp`` does) changes under those who use it, or takes pages away from them, which
ends the process.
Not here: which part of a file is mapped, and what it means (archive, engine_file).
"""

from __future__ import annotations

import mmap
import os
import weakref

from tilewright.core.errors import CorruptEngine
from tilewright.runtime import piece_hash


class MappedFile:
    """The pages of a file from its beginning to its end now.

    Args:
        descriptor: of the file; another one of the same file is kept.
        name: of the file, for messages.
    """

    def __init__(self, descriptor: int, name: str | None) -> None:
        self._name = name
        self._descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self._descriptor)
        self._seen = self._stamp()  # before anything of it is read
        self.pages = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        self._size = len(self.pages)
        self._part, self._hash = memoryview(b""), ""

    def watch(self, part: memoryview, expected: str) -> None:
        """Makes ``check`` look at a part of the pages, whose ``piece_hash`` is ``expected``."""
        self._part, self._hash = part, expected

    def check(self) -> None:
        """Looks whether the file is as it was; the part is hashed where it may have changed.

        Takes a microsecond, but where somebody wrote the file or set its time.

        Raises:
            CorruptEngine: it has been written over.
        """
        now = self._stamp()
        if now == self._seen:
            return
        if now[0] < self._size or piece_hash.hash_of(self._part) != self._hash:
            raise CorruptEngine(
                "the file was written over while its engine is in use, so that the weights are "
                "others now",
                file=self._name,
                remedy="load it again; mv, Engine.save and `tilewright compile` replace a file and "
                "leave the one in use alone, cp writes over it",
            )
        self._seen = now

    def _stamp(self) -> tuple[int, int]:
        facts = os.fstat(self._descriptor)
        return facts.st_size, facts.st_mtime_ns
