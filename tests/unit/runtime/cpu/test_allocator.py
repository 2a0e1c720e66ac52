"""Alignment, and sizes that are refused before memory is touched."""

from __future__ import annotations

import mmap
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.core.errors import InternalError, OutOfMemory
from tilewright.runtime.cpu import allocator
from tilewright.runtime.cpu.allocator import (
    allocate,
    empty,
    is_aligned,
    memory_limit_bytes,
    prepare_results,
    put_side_by_side,
)


@pytest.mark.parametrize("num_bytes", [1, 63, 64, 1000, (1 << 20) - 1])
def test_small_buffers_are_aligned_for_vectors(num_bytes: int) -> None:
    for _ in range(10):
        block = allocate(num_bytes)
        assert block.size == num_bytes
        assert block.ctypes.data % 64 == 0


def test_nothing_is_an_empty_array() -> None:
    assert allocate(0).size == 0


def test_large_buffers_begin_a_page() -> None:
    block = allocate(3 << 20)
    assert block.ctypes.data % 4096 == 0
    block[:] = 7
    assert block[-1] == 7


def test_arrays_have_their_shape_and_type() -> None:
    array = empty((3, 0, 5), np.dtype(np.float32))
    assert array.shape == (3, 0, 5)
    array = empty((2, 3, 4), np.dtype(np.float64))
    assert array.flags.c_contiguous
    assert is_aligned(array)
    assert not is_aligned(array.transpose())
    assert not is_aligned(array.reshape(-1)[1:])


@pytest.mark.parametrize("num_bytes", [1 << 50, 1 << 62, 1 << 70])
def test_too_much_says_how_much(num_bytes: int) -> None:
    with pytest.raises(OutOfMemory, match=r"the arena needs [\d.]+ (T|P)iB.*this machine has"):
        allocate(num_bytes, "the arena")
    with pytest.raises(OutOfMemory, match="weights"):
        empty((num_bytes, 1 << 40), np.dtype(np.float32), "weights")


def test_limit_is_this_machines() -> None:
    assert 1 << 28 < memory_limit_bytes() < 1 << 48
    with pytest.raises(OutOfMemory):
        allocate(memory_limit_bytes() + 1)


def test_negative_size_is_our_mistake() -> None:
    with pytest.raises(InternalError):
        allocate(-1)


def test_arrays_move_into_one_aligned_block() -> None:
    texts = np.array(["a", "b"], dtype=object)
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "w": np.arange(21, dtype=np.float32).reshape(3, 7).T,
        "none": np.zeros((0, 4), np.float32),
        "flags": np.array([True, False]),
        "scalar": np.array(2.5),
        "texts": texts,
        "v": np.arange(5, dtype=np.int8)[1:],
    }
    before = {name: array.copy() for name, array in arrays.items()}
    put_side_by_side(arrays)
    assert list(arrays) == list(before)
    for name, array in arrays.items():
        assert array.dtype == before[name].dtype
        np.testing.assert_array_equal(array, before[name])
        assert array.dtype.hasobject or not array.size or is_aligned(array)
    assert arrays["texts"] is texts
    assert {id(arrays[name].base) for name in ("w", "flags", "scalar", "v")} == {
        id(arrays["w"].base)
    }
    put_side_by_side({})


def test_what_is_mapped_from_a_file_stays_there(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(range(64)))
    with (tmp_path / "w.bin").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "w": np.frombuffer(mapped, np.float32).reshape(4, 4),
        "m": np.memmap(tmp_path / "w.bin", np.uint8, "r")[8:],
        "v": np.ones(3, np.float32),
    }
    before = dict(arrays)
    put_side_by_side(arrays)
    assert arrays["w"] is before["w"]
    assert arrays["m"] is before["m"]
    assert arrays["v"] is not before["v"]


_FAULTS_OF_A_FIRST_RESULT = """
import resource, sys
from tilewright.runtime.cpu.allocator import allocate, prepare_results
prepare_results(list(map(int, sys.argv[1:])))
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
block = allocate(3 << 20)
block[::4096] = 1
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries keep no blocks")
def test_results_that_were_prepared_have_pages() -> None:
    def faults(*sizes: int) -> int:
        command = [sys.executable, "-c", _FAULTS_OF_A_FIRST_RESULT, *map(str, sizes)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert faults(1000, 4 << 20) < 20
    assert faults() > 700
    assert faults(17 << 20) > 700  # more than is prepared


def test_nothing_is_said_where_results_cannot_be_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: int) -> Any:
        raise OutOfMemory("none", remedy="none")

    monkeypatch.setattr(allocator, "allocate", none)
    prepare_results([100])
