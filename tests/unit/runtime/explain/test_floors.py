"""Bounds: which level a byte must come from, which resource limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.hw.lookup import find_board
from tilewright.hw.roofs import Level, Roofs, store_measured
from tilewright.runtime.explain.floors import Floors, Traffic, board_floors, cpu_floors

ROOFS = Roofs(
    device="test",
    threads=1,
    peaks_flops={"float32": 100e9, "int8": 400e9},
    levels=(
        Level(name="L1", bytes_per_s=100e9),
        Level(name="L2", bytes_per_s=50e9),
        Level(name="DRAM", bytes_per_s=10e9),
    ),
    source="measured by hand",
)
NEARER = {"L1": 0.0, "L2": 1e3, "DRAM": 1e6}


def floors(footprint: float = 0.0) -> Floors:
    return Floors(roofs=ROOFS, nearer_bytes=NEARER, footprint_bytes=footprint)


def traffic(weights: float = 0, reads: float = 0, writes: float = 0) -> Traffic:
    return Traffic(weights=weights, reads=reads, writes=writes)


def test_arithmetic_limits_where_it_takes_longest() -> None:
    found = floors().bound(1e9, "float32", traffic(reads=1000))
    assert found is not None
    assert found.limit == "float32 peak"
    assert found.time_s == pytest.approx(0.01)


def test_what_fits_a_cache_may_have_stayed_there() -> None:
    found = floors().bound(0, "float32", traffic(reads=900, writes=900))
    assert found is not None
    assert dict(found.times_s) == {"L1": pytest.approx(1800 / 100e9)}


def test_what_exceeds_the_caches_crosses_the_next_level() -> None:
    found = floors().bound(0, "float32", traffic(reads=5e6, writes=2e3))
    assert found is not None
    assert found.times_s["L2"] == pytest.approx((5e6 - 1e3 + 1e3) / 50e9)
    assert found.times_s["DRAM"] == pytest.approx(4e6 / 10e9)
    assert found.limit == "DRAM"


def test_weights_come_from_where_the_whole_run_does_not_fit() -> None:
    inside = floors(footprint=1e6).bound(0, "float32", traffic(weights=1e5))
    outside = floors(footprint=4e6).bound(0, "float32", traffic(weights=1e5))
    assert inside is not None
    assert outside is not None
    assert "DRAM" not in inside.times_s
    assert outside.times_s["DRAM"] == pytest.approx(0.75 * 1e5 / 10e9)


def two_ways() -> Floors:
    """Levels that write back while they are read."""
    levels = tuple(
        replace(one, patterns={"read": rate, "update": one.bytes_per_s})
        for one, rate in zip(ROOFS.levels, (60e9, 30e9, 6e9), strict=True)
    )
    return replace(floors(), roofs=replace(ROOFS, levels=levels))


def test_reads_are_bounded_by_themselves_where_writes_do_not_slow_them() -> None:
    reading = two_ways().bound(0, "float32", traffic(reads=900))
    assert reading is not None
    assert dict(reading.times_s) == {
        "L1": pytest.approx(900 / 100e9),
        "L1 read": pytest.approx(900 / 60e9),
    }
    assert reading.limit == "L1 read"
    updating = two_ways().bound(0, "float32", traffic(reads=900, writes=900))
    assert updating is not None
    assert updating.limit == "L1"
    writing = two_ways().bound(0, "float32", traffic(writes=900))
    assert writing is not None
    assert dict(writing.times_s) == {"L1": pytest.approx(900 / 100e9)}


def test_a_faster_direction_is_raised_by_itself() -> None:
    found = two_ways().raised({"L2 read": 1.5, "DRAM read": 3.0})
    assert found.rate_of("L2 read") == pytest.approx(45e9)
    assert found.rate_of("L2") == 50e9
    assert found.rate_of("DRAM read") == found.rate_of("DRAM") == pytest.approx(18e9)
    assert found.rate_of("L1 read") == 60e9


def test_fewer_threads_may_take_more_than_their_share_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    store_measured([replace(ROOFS, threads=4)])
    fewer, more = cpu_floors("anything", 1, 0.0), cpu_floors("anything", 8, 0.0)
    assert fewer.rate_of("DRAM") == 10e9
    assert fewer.rate_of("float32 peak") == 25e9
    assert more.rate_of("DRAM") == 20e9
    assert "scaled to 1" in fewer.note


def test_a_type_without_a_peak_is_bound_by_memory_alone() -> None:
    found = floors().bound(1e12, "int64", traffic(reads=10))
    assert found is not None
    assert found.limit == "L1"
    assert floors().bound(1e12, "int64", traffic()) is None


def test_narrow_floats_count_as_float32_on_a_cpu() -> None:
    found = floors().bound(1e9, "bfloat16", traffic())
    assert found is not None
    assert found.limit == "float32 peak"


def test_the_price_of_a_move_is_that_of_the_level_that_holds_it() -> None:
    for num_bytes, rate in ((500, 100e9), (1e5, 50e9), (1e7, 10e9)):
        once = floors().move_us(num_bytes, written=False)
        assert once == pytest.approx(num_bytes / rate * 1e6)
        assert floors().move_us(num_bytes, written=True) == pytest.approx(2 * (once or 0))
    assert two_ways().move_us(1e5, written=False) == pytest.approx(1e5 / 30e9 * 1e6)
    assert two_ways().move_us(1e5, written=True) == pytest.approx(2e5 / 50e9 * 1e6)


def test_a_board_has_its_documents_roofs() -> None:
    found = board_floors(find_board("H200"), 1e9)
    assert [level.name for level in found.model.levels] == ["DRAM"]
    assert not found.model.is_measured
    bound = found.bound(1e9, "bfloat16", traffic(reads=1e6))
    assert bound is not None
    assert bound.limit == "bfloat16 peak"


def test_measured_roofs_are_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    store_measured([ROOFS])
    found = cpu_floors("znver4", 1, 0.0)
    assert found is not None
    assert found.model.is_measured
    assert found.note == ""
    unknown = cpu_floors("no-such-processor", 1, 0.0)
    assert unknown is not None
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "empty"))
    guessed = cpu_floors("no-such-processor", 1, 0.0)
    assert guessed.roofs.peaks_flops["float32"] > 0
    assert "no-such-processor as the best one" in guessed.model.device
    assert "device --probe" in guessed.note


def test_the_tables_take_the_best_clock_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright.runtime.explain import floors as module

    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_MAX_CLOCK", tmp_path / "clock")
    monkeypatch.setattr(module, "_CPU_INFO", tmp_path / "cpuinfo")
    assert "6.00 GHz (assumed)" in cpu_floors("znver4", 2, 0.0).roofs.source
    (tmp_path / "cpuinfo").write_text("cpu MHz\t\t: 2600.5\ncpu MHz\t\t: unknown\n")
    assert "2.60 GHz (the clock as it is now)" in cpu_floors("znver4", 2, 0.0).roofs.source
    (tmp_path / "clock").write_text("4000000\n")
    found = cpu_floors("znver4", 2, 0.0)
    assert "tables at 4.00 GHz" in found.roofs.source
    assert found.roofs.peaks_flops["float32"] == pytest.approx(32 * 4e9 * 2)


def test_raised_roofs_are_named_and_only_they_are_higher() -> None:
    found = floors().raised({"float32 peak": 2.0, "L2": 1.5})
    assert found.roofs.peaks_flops == {"float32": 200e9, "int8": 400e9}
    assert [level.bytes_per_s for level in found.roofs.levels] == [100e9, 75e9, 10e9]
    assert found.rate_of("float32 peak") == 200e9
    assert found.rate_of("L2") == 75e9
    assert "raised" in found.model.source


@pytest.mark.parametrize(("undisturbed", "doubted"), [(0.13, True), (0.9, False), (None, False)])
def test_roofs_of_a_busy_machine_are_doubted_where_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: float | None, doubted: bool
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    store_measured([replace(ROOFS, undisturbed=undisturbed)])
    found = cpu_floors("anything", 1, 0.0)
    assert found is not None
    assert ("machine was busy" in found.note) == doubted


def test_the_fastest_pattern_of_a_level_is_its_roof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    level = Level(name="DRAM", bytes_per_s=61e9, patterns={"read": 33e9, "triad": 61e9})
    store_measured([replace(ROOFS, levels=(*ROOFS.levels[:2], level))])
    found = cpu_floors("anything", 1, 0.0)
    assert found is not None
    assert found.rate_of("DRAM") == 61e9
