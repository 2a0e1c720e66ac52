"""Hashes of large data: the same however it comes."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.runtime import piece_hash
from tilewright.runtime.piece_hash import PieceHash, start

SIZE = 5


@pytest.fixture(autouse=True, scope="module")
def _small_pieces() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(piece_hash, "PIECE_BYTES", SIZE)
        yield


@given(parts=st.lists(st.binary(max_size=13), max_size=6))
def test_the_hash_does_not_depend_on_how_data_comes(parts: list[bytes]) -> None:
    written = PieceHash()
    for part in parts:
        written.update(part)
    assert written.hexdigest() == start(b"".join(parts))() == start(memoryview(b"".join(parts)))()


@pytest.mark.parametrize("size", [0, 1, SIZE])
def test_what_fits_a_piece_has_its_plain_hash(size: int) -> None:
    assert start(bytes(size))() == hashlib.sha256(bytes(size)).hexdigest()


def test_every_byte_counts() -> None:
    data = bytes(3 * SIZE + 1)
    hashes = {start(data[:at] + b"\1" + data[at + 1 :])() for at in range(len(data))}
    assert len(hashes | {start(data)(), start(data + b"\0")()}) == len(data) + 2


def test_pieces_are_hashed_by_as_many_threads_as_there_are_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, count: int) -> None:
            asked.append(count)
            super().__init__(count)

    monkeypatch.setattr(piece_hash, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(3)))
    for size in (SIZE, 2 * SIZE, 9 * SIZE):
        start(bytes(size))()
    assert asked == [2, 3]
