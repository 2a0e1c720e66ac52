"""Members of an engine file: read to where arrays are aligned, or mapped, or kept packed."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tilewright.core.errors import CorruptEngine
from tilewright.runtime import archive as members

DATA = bytes(range(256)) * 65


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[zipfile.ZipFile]:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as written:
        written.writestr("first", b"1234567")
        written.writestr("plain", DATA)
        written.writestr("packed", DATA, compress_type=zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(path) as opened:
        yield opened


def _file(archive: zipfile.ZipFile) -> bytes:
    return Path(str(archive.filename)).read_bytes()


def _residue(data: memoryview) -> int:
    return int(np.frombuffer(data, np.uint8).ctypes.data) % 64


@pytest.mark.parametrize("name", ["plain", "packed"])
def test_a_member_is_kept_as_it_lies_in_the_file(archive: zipfile.ZipFile, name: str) -> None:
    entry = archive.getinfo(name)
    raw = members.packed(archive, entry)
    assert len(raw) == entry.compress_size
    assert raw in _file(archive)
    assert members.unpacked(raw, entry) == DATA


def test_what_is_aligned_in_the_file_is_aligned_in_memory(archive: zipfile.ZipFile) -> None:
    found = members.stored(archive, archive.getinfo("plain"))
    assert found is not None
    assert bytes(found.data) == DATA
    assert found.data.readonly
    assert found.forget is None
    assert _residue(found.data) == _file(archive).index(DATA) % 64


def test_a_large_member_is_mapped_not_read(
    archive: zipfile.ZipFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "MAPPED_FROM_BYTES", len(DATA))
    found = members.stored(archive, archive.getinfo("plain"))
    assert found is not None
    assert found.forget is not None
    assert bytes(found.data) == DATA
    assert _residue(found.data) == _file(archive).index(DATA) % 64
    found.forget(0, len(DATA))  # pages that are let go come back
    found.forget(5, 100)  # less than a page: stays
    archive.close()
    assert bytes(found.data) == DATA


def test_a_packed_member_is_not_stored(archive: zipfile.ZipFile) -> None:
    assert members.stored(archive, archive.getinfo("packed")) is None


def test_a_member_beyond_the_end_is_refused(archive: zipfile.ZipFile) -> None:
    entry = archive.getinfo("plain")
    entry.file_size = 1 << 40
    with pytest.raises(CorruptEngine, match="beyond the end"):
        members.stored(archive, entry)


def test_a_member_without_header_is_refused(archive: zipfile.ZipFile) -> None:
    entry = archive.getinfo("plain")
    for place in (entry.header_offset + 1, 1 << 40):
        entry.header_offset = place
        with pytest.raises(CorruptEngine, match="plain has no header"):
            members.packed(archive, entry)


def test_a_closed_file_is_refused(archive: zipfile.ZipFile) -> None:
    archive.close()
    with pytest.raises(CorruptEngine, match="closed"):
        members.packed(archive, archive.getinfo("plain"))
