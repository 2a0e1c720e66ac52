"""Hashes of large data: the same however it comes, and others for what is damaged."""

from __future__ import annotations

import hashlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.runtime import piece_hash
from tilewright.runtime.piece_hash import PieceHash, hash_of, hashing

SIZE = 8 * 3 * 2


@pytest.fixture(autouse=True, scope="module")
def _small_pieces() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(piece_hash, "ROWS", 3)
        patch.setattr(piece_hash, "COLUMNS", 2)
        patch.setattr(piece_hash, "PIECE_BYTES", SIZE)
        patch.setattr(piece_hash, "_GROUP", 2)
        yield


@given(parts=st.lists(st.binary(max_size=3 * SIZE), max_size=6))
def test_the_hash_does_not_depend_on_how_data_comes(parts: list[bytes]) -> None:
    written = PieceHash()
    for part in parts:
        written.update(part)
    whole = b"".join(parts)
    assert written.hexdigest() == hash_of(whole) == hash_of(memoryview(whole))


@pytest.mark.parametrize("size", [0, 1, SIZE - 1])
def test_what_is_less_than_a_piece_has_its_plain_hash(size: int) -> None:
    assert hash_of(bytes(size)) == hashlib.sha256(bytes(size)).hexdigest()


def test_every_byte_counts() -> None:
    data = bytes(3 * SIZE + 1)
    hashes = {hash_of(data[:at] + b"\1" + data[at + 1 :]) for at in range(len(data))}
    assert len(hashes | {hash_of(data), hash_of(data + b"\0")}) == len(data) + 2


def test_what_moves_is_found() -> None:
    words = np.arange(5 * SIZE // 8, dtype=np.uint64)
    before = hash_of(words.tobytes())
    for first in range(len(words)):
        for second in range(first):
            moved = words.copy()
            moved[[first, second]] = moved[[second, first]]
            assert hash_of(moved.tobytes()) != before


def test_every_whole_piece_is_forgotten_once_it_is_read() -> None:
    forgotten: list[tuple[int, int]] = []
    hash_of(bytes(5 * SIZE + 7), lambda first, size: forgotten.append((first, size)))
    assert sorted(forgotten) == [(0, 2 * SIZE), (2 * SIZE, 2 * SIZE), (4 * SIZE, SIZE)]


def test_groups_are_hashed_by_as_many_threads_as_there_are_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, count: int, names: str) -> None:
            asked.append(count)
            super().__init__(count, names)

    monkeypatch.setattr(piece_hash, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(3)))
    for size in (2 * SIZE, 4 * SIZE, 9 * SIZE):
        hash_of(bytes(size))
    assert asked == [2, 3]


def test_nothing_is_read_once_the_caller_has_given_up() -> None:
    """The data may be a mapped file, which the caller is free to shorten then."""
    names: list[str] = []
    with pytest.raises(LookupError), hashing(bytes(40 * SIZE), lambda *_: time.sleep(0.02)):
        names = [thread.name for thread in threading.enumerate()]
        raise LookupError
    assert any(name.startswith(piece_hash.THREADS) for name in names)
    left = [thread.name for thread in threading.enumerate()]
    assert not any(name.startswith(piece_hash.THREADS) for name in left)
