"""A short probe of this machine gives plausible roofs; its loops are legal for every target."""

import math
import os

import numpy as np
import pytest

from tilewright.codegen.cpu import probe
from tilewright.codegen.cpu.objects import assembly, compile_module
from tilewright.codegen.cpu.probe import ProbeOptions, probe_cpu
from tilewright.codegen.cpu.probe_kernels import probe_module
from tilewright.codegen.cpu.target import host_target, known_targets, named_target
from tilewright.core.errors import BadOption
from tilewright.hw.records import MIB
from tilewright.hw.roofs import Roofs

QUICK = ProbeOptions(threads=(1,), seconds=0.3, batch_s=0.0005, rounds=1, dram_bytes=16 * MIB)


@pytest.fixture(scope="module")
def measured() -> Roofs:
    """One thread, as quickly as possible."""
    (roofs,) = probe_cpu(QUICK)
    return roofs


def test_peaks_are_plausible(measured: Roofs) -> None:
    assert {"float32", "float64"} <= set(measured.peaks_flops)
    assert set(measured.instructions) == set(measured.peaks_flops)
    for peak in measured.peaks_flops.values():
        assert 1e9 < peak < 1e14
    assert measured.clock_hz is not None
    assert 2e8 < measured.clock_hz < 1e10
    assert measured.threads == 1


def test_levels_are_plausible(measured: Roofs) -> None:
    assert measured.levels[-1].name == "DRAM"
    for level in measured.levels:
        assert {"read", "triad", "update"} <= set(level.patterns)
        assert level.bytes_per_s == max(level.patterns.values())
        assert 1e8 < level.bytes_per_s < 1e13
        assert level.working_set_bytes
    sizes = [level.working_set_bytes or 0 for level in measured.levels]
    assert sizes == sorted(sizes)
    assert "triad, streaming stores" in measured.levels[-1].patterns


def test_the_source_and_the_noise_are_stated(measured: Roofs) -> None:
    assert measured.source.startswith("measured on 20")
    assert "batches were undisturbed" in measured.notes[-1]
    assert measured.costs == {}  # one thread has nobody to join


def test_all_threads_fork_and_join() -> None:
    usable = len(os.sched_getaffinity(0))
    if usable < 2:
        pytest.skip("one processor")
    options = ProbeOptions(threads=(2,), seconds=0.3, batch_s=0.0005, rounds=1, dram_bytes=16 * MIB)
    said: list[str] = []
    (roofs,) = probe_cpu(options, said.append)
    assert roofs.threads == 2
    assert 0 < roofs.costs["fork_join_us"] < 1e5
    assert "round 1 of 1" in said  # a busy machine adds one more
    assert len(os.sched_getaffinity(0)) == usable  # the binding was undone


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ProbeOptions(threads=(0,)), "threads 0"),
        (ProbeOptions(threads=(1, 100_000)), "threads 1, 100000"),
        (ProbeOptions(seconds=0), "seconds=0"),
        (ProbeOptions(seconds=math.inf), "seconds=inf"),
        (ProbeOptions(rounds=-1), "rounds=-1"),
    ],
)
def test_bad_options_are_refused(options: ProbeOptions, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        probe_cpu(options)


@pytest.mark.parametrize("name", known_targets())
def test_loops_compile_for_every_target(name: str) -> None:
    target = named_target(name)
    loops = probe_module(target)
    assert compile_module(loops.text, target)
    assert {"float64", "float32"} <= {peak.dtype for peak in loops.peaks}
    for peak in loops.peaks:
        assert peak.symbol in loops.exports


def test_types_follow_the_targets_features() -> None:
    def types(name: str) -> set[str]:
        return {peak.dtype for peak in probe_module(named_target(name)).peaks}

    assert types("haswell") == {"float64", "float32"}
    assert types("alderlake") == {"float64", "float32", "int8"}
    assert types("znver4") == {"float64", "float32", "int8", "bfloat16"}
    assert types("sapphirerapids") == {"float64", "float32", "float16", "int8", "bfloat16"}


def _function(text: str, symbol: str) -> str:
    start = text.index(f"{symbol}:")
    return text[start : text.index(".Lfunc_end", start)]


@pytest.mark.parametrize("name", ["haswell", "skylake-avx512", "znver4"])
def test_multiply_adds_stay_in_registers(name: str) -> None:
    target = named_target(name)
    loops = probe_module(target)
    code = assembly(loops.text, target)
    for peak in loops.peaks:
        assert "rsp" not in _function(code, peak.symbol)


def test_arrays_are_read_in_ascending_order() -> None:
    """Descending reads are three times as slow from DRAM on some processors."""
    target = named_target("znver4")
    body = _function(assembly(probe_module(target).text, target), "probe_read")
    offsets = [
        int(line.split("(")[0].split()[-1] or 0)
        for line in body.splitlines()
        if "vaddps" in line and "(%r" in line and line.split("(")[0].split()[-1].isdigit()
    ]
    assert offsets == [64, 128, 192, 256, 320, 384, 448]


def test_a_target_counts_its_operations() -> None:
    loops = probe_module(named_target("znver4"))
    peaks = {peak.dtype: peak.flops_per_repeat for peak in loops.peaks}
    assert peaks["float32"] == 2 * 16 * 24 * 2  # lanes, sums, unrolled twice; 2 each
    assert peaks["float64"] == peaks["float32"] // 2
    assert peaks["int8"] == 4 * peaks["float32"]
    assert peaks["bfloat16"] == 2 * peaks["float32"]


@pytest.mark.parametrize("extent", [64, 128, 191, 192, 1000])
def test_parts_are_taken_in_turn_and_never_beyond_the_end(extent: int) -> None:
    rows = np.zeros((2, 8), np.int64)
    rows[:, 1] = (1000, 5000)
    seen: list[int] = []

    def call(_: int) -> None:
        assert rows[1, 1] == rows[0, 1] + 4000
        seen.append(int(rows[0, 1]) - 1000)

    in_turn = probe._in_turn(call, rows, 64, extent)
    for _ in range(40):
        in_turn(1)
    assert max(seen) + 64 <= extent
    parts = max(1, extent // 64)
    assert seen[: 2 * parts] == [64 * part for part in range(parts)] * 2


@pytest.mark.parametrize("dram_bytes", [1, 4096, 1 << 20, 3 << 20, 40 << 20])
def test_no_size_of_memory_makes_a_loop_leave_it(dram_bytes: int) -> None:
    options = ProbeOptions(
        threads=(1,), seconds=0.05, batch_s=0.0001, rounds=1, dram_bytes=dram_bytes
    )
    (roofs,) = probe_cpu(options)
    assert roofs.levels[-1].name == "DRAM"


def test_the_host_is_a_target() -> None:
    assert probe_module(host_target()).peaks
