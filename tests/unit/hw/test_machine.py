"""The machine, read from a copy of the kernel's files."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.hw.machine import (
    Cache,
    Machine,
    describe_machine,
    machine_identity,
    working_sets,
)
from tilewright.hw.records import KIB, MIB

CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: A Processor @ 2.00GHz
stepping\t: 8
flags\t\t: fpu avx2 hypervisor

processor\t: 1
model name\t: another
"""


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Four logical processors on two cores, of which the process may use three."""
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    proc.mkdir()
    (proc / "cpuinfo").write_text(CPUINFO)
    cpus = sys / "devices/system/cpu"
    for number in range(4):
        _write(cpus / f"cpu{number}/topology", core_id=str(number % 2), physical_package_id="0")
    cache = cpus / "cpu0/cache"
    _write(cache / "index0", level="1", type="Data", size="48K", shared_cpu_list="0,2")
    _write(cache / "index1", level="1", type="Instruction", size="32K", shared_cpu_list="0,2")
    _write(cache / "index2", level="2", type="Unified", size="2048K", shared_cpu_list="0,2")
    _write(cache / "index3", level="3", type="Unified", size="60M", shared_cpu_list="0-47")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    return proc, sys


def _write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


def test_what_the_kernel_tells(roots: tuple[Path, Path]) -> None:
    found = describe_machine(*roots)
    assert found.cpu == "A Processor @ 2.00GHz"
    assert found.identity == "vendor_id GenuineIntel cpu family 6 model 143 stepping 8"
    assert found.is_virtual
    assert found.memory_bytes > 1 << 28


def test_one_processor_of_each_core_comes_first(roots: tuple[Path, Path]) -> None:
    found = describe_machine(*roots)
    assert found.processors == (0, 1, 2)  # 2 is the second of core 0
    assert found.num_cores == 2


def test_sharing_counts_usable_processors_only(roots: tuple[Path, Path]) -> None:
    found = describe_machine(*roots)
    assert found.caches == (
        Cache(level=1, size_bytes=48 << 10, shared_by=2),
        Cache(level=2, size_bytes=2 << 20, shared_by=2),
        Cache(level=3, size_bytes=60 << 20, shared_by=3),
    )
    assert found.cache(2) == found.caches[1]
    assert found.cache(4) is None


def test_a_kernel_that_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: 4096 if "SIZE" not in str(name) else 0)
    found = describe_machine(tmp_path, tmp_path)
    assert found.cpu
    assert found.caches == ()
    assert found.num_cores == len(found.processors) >= 1
    assert not found.is_virtual


def test_this_machine_has_an_identity() -> None:
    found = describe_machine()
    assert found.processors
    assert set(found.processors) <= set(range(4096))
    assert found.cpu in machine_identity()
    assert machine_identity() == machine_identity()


BIG = Machine(
    cpu="a CPU",
    identity="",
    processors=tuple(range(16)),
    num_cores=8,
    caches=(
        Cache(level=1, size_bytes=48 * KIB, shared_by=2),
        Cache(level=2, size_bytes=2 * MIB, shared_by=2),
        Cache(level=3, size_bytes=30 * MIB, shared_by=8),
    ),
    memory_bytes=1 << 36,
    is_virtual=False,
    system="",
)


def test_working_sets_lie_in_one_level() -> None:
    alone = working_sets(BIG, 1)
    assert alone == {"L1": 36 * KIB, "L2": 256 * KIB, "L3": 8 * MIB, "DRAM": 256 * MIB}


def test_a_shared_cache_may_be_too_small_for_every_thread() -> None:
    shared = working_sets(BIG, 16)
    assert list(shared) == ["L1", "L2", "DRAM"]  # 3.75 MiB of L3 each, 1 MiB of L2
    assert shared["L1"] == 18 * KIB
    assert shared["DRAM"] == 256 * MIB // 16  # two instances of 30 MiB, four times: 240 MiB


def test_dram_is_a_part_of_what_there_is() -> None:
    assert working_sets(BIG, 2, 64 * MIB)["DRAM"] == 32 * MIB
    small = replace(BIG, memory_bytes=256 * MIB)
    assert working_sets(small, 1)["DRAM"] == 32 * MIB
    assert working_sets(replace(BIG, caches=()), 1) == {"DRAM": 256 * MIB}
