"""Members of an engine file, without the copies and checks that ``zipfile`` makes of each.

Input -> Output: an open archive and a member -> its bytes as they lie in the file: read, read to
where arrays are aligned, or mapped.
Requires: what is read is compared with a hash afterwards; sizes were checked (engine_file).
Not here: what members mean.
"""

from __future__ import annotations

import mmap
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.core.errors import CorruptEngine
from tilewright.runtime.cpu.allocator import ALIGNMENT, allocate_at
from tilewright.runtime.mapped_file import MappedFile

MAPPED_FROM_BYTES = 16 << 20  # smaller ones are read into memory
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, lengths of name and extra
_SIGNATURE = b"PK\x03\x04"
_REMEDY = "build the engine again"


@dataclass(frozen=True, slots=True)
class Stored:
    """A member that is stored as it is.

    Attributes:
        data: its bytes.
        forget: lets go of the pages of so many bytes from the first one on; they are mapped again
            when they are read. None where they are memory of their own.
        file: whose pages they are, if they are.
    """

    data: memoryview
    forget: Callable[[int, int], None] | None = None
    file: MappedFile | None = None


def packed(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """A member as it lies in the file; ``unpacked`` makes its content of it."""
    return os.pread(_descriptor(archive), entry.compress_size, _start(archive, entry))


def unpacked(data: bytes, entry: zipfile.ZipInfo) -> bytes:
    """The content of a member.

    Raises:
        zlib.error: it is damaged.
    """
    if entry.compress_type == zipfile.ZIP_STORED:
        return data
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, entry.file_size + 1)


def stored(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Stored | None:
    """A member that is not packed, mapped when it is large; None for a packed one.

    What is at a multiple of 64 bytes of the file is so in memory.

    Raises:
        CorruptEngine: the member does not lie inside of the file.
        OutOfMemory: there is none for it.
    """
    if entry.compress_type != zipfile.ZIP_STORED:
        return None
    start, size = _start(archive, entry), entry.file_size
    if start + size > os.fstat(_descriptor(archive)).st_size:
        raise CorruptEngine(f"{entry.filename} goes beyond the end of the file", remedy=_REMEDY)
    if size >= MAPPED_FROM_BYTES:
        return _mapped(archive, start, size)
    block, _ = allocate_at(size + ALIGNMENT, "the weights")
    first = start % ALIGNMENT
    data = block[first : first + size].data
    if os.preadv(_descriptor(archive), [data], start) != size:
        raise CorruptEngine(f"{entry.filename} is cut off", remedy=_REMEDY)
    return Stored(data.toreadonly())


def _mapped(archive: zipfile.ZipFile, start: int, size: int) -> Stored:
    # The descriptor is that of the file which is checked, whatever has its name by now.
    file = MappedFile(_descriptor(archive), archive.filename)
    pages = file.pages

    def forget(first: int, num_bytes: int) -> None:
        begin = -(-(start + first) // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (start + first + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if begin < end:
            pages.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    return Stored(memoryview(pages)[start : start + size], forget, file)


def _start(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin in the file."""
    head = os.pread(_descriptor(archive), _LOCAL_HEADER.size, entry.header_offset)
    if len(head) < _LOCAL_HEADER.size or not head.startswith(_SIGNATURE):
        raise CorruptEngine(f"{entry.filename} has no header", remedy=_REMEDY)
    name_and_extra: tuple[int, int] = _LOCAL_HEADER.unpack(head)[1:]
    return entry.header_offset + _LOCAL_HEADER.size + sum(name_and_extra)


def _descriptor(archive: zipfile.ZipFile) -> int:
    if archive.fp is None:
        raise CorruptEngine("the file is closed", remedy=_REMEDY)
    return archive.fp.fileno()
