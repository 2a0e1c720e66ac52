"""Roofs of boards, and measured roofs in the cache."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.core.cache_folder import cache_folder
from tilewright.core.errors import CacheError
from tilewright.hw.lookup import find_board
from tilewright.hw.roofs import (
    Level,
    Roofs,
    load_all_measured,
    load_measured,
    roofs_of_board,
    store_measured,
    with_earlier,
)

MEASURED = Roofs(
    device="a CPU",
    threads=1,
    peaks_flops={"float32": 1.5e9},
    levels=(
        Level(
            name="L1",
            bytes_per_s=2e9,
            patterns={"read": 2e9, "triad": 1e9},
            working_set_bytes=24576,
        ),
    ),
    source="measured on 2026-01-01",
    clock_hz=3e9,
    instructions={"float32": "fma 512-bit"},
    costs={"fork_join_us": 0.25},
    notes=("all quiet",),
)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))


def _file(tmp_path: Path) -> Path:
    return next((tmp_path / "roofs").glob("cpu-*.json"))


def test_nothing_was_measured_yet() -> None:
    assert load_measured() is None
    assert load_measured(2) is None
    assert load_all_measured("H200") == ()


def test_what_is_stored_is_loaded(tmp_path: Path) -> None:
    both = (MEASURED, replace(MEASURED, threads=8, peaks_flops={"float32": 9e9}))
    path = store_measured(both)
    assert path.parent == tmp_path / "roofs"
    assert load_all_measured() == both
    assert load_measured(1) == MEASURED
    assert load_measured() == both[1]  # the most threads
    assert load_measured(3) is None  # never interpolated
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_busy_measurement_does_not_replace_a_better_one() -> None:
    quiet, busy, busier = (replace(MEASURED, undisturbed=part) for part in (0.9, 0.4, 0.2))
    two = replace(quiet, threads=2)
    kept, (reason,) = with_earlier([busy], [two, quiet])
    assert kept == (quiet, two)
    assert "of 1 thread are kept: the machine was busier now (40% of" in reason
    assert "90% then" in reason
    for new, old in ((quiet, busy), (busy, busier), (quiet, quiet), (busy, MEASURED)):
        assert with_earlier([new], [old]) == ((new,), ())
    assert with_earlier([busy], []) == ((busy,), ())


def test_gpus_have_files_of_their_own() -> None:
    roofs = replace(MEASURED, threads=None, clock_hz=None)
    path = store_measured((roofs,), "NVIDIA H200 (MIG 1g)")
    assert path.name == "gpu-NVIDIA-H200-MIG-1g.json"
    assert load_measured(gpu="NVIDIA H200 (MIG 1g)") == roofs
    assert load_measured() is None


def test_another_format_counts_as_not_measured(tmp_path: Path) -> None:
    store_measured((MEASURED,))
    file = _file(tmp_path)
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "format": 0}))
    assert load_measured() is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": 2}',
        '{"format": 2, "roofs": [{}]}',
        '{"format": 2, "roofs": 5}',
    ],
)
def test_a_damaged_file_says_how_to_mend_it(tmp_path: Path, text: str) -> None:
    store_measured((MEASURED,))
    _file(tmp_path).write_text(text)
    with pytest.raises(CacheError, match="device --probe"):
        load_measured()


@pytest.mark.parametrize("number", [0, -1, "NaN", float("inf"), None])
def test_roofs_that_cannot_be_divided_by_are_damage(tmp_path: Path, number: object) -> None:
    store_measured((MEASURED,))
    file = _file(tmp_path)
    content = json.loads(file.read_text())
    content["roofs"][0]["peaks_flops"]["float32"] = number
    file.write_text(json.dumps(content))
    with pytest.raises(CacheError, match="cannot be read"):
        load_measured()


def test_a_folder_that_cannot_be_written_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "file"))
    with pytest.raises(CacheError, match="measured roofs cannot be kept"):
        store_measured((MEASURED,))
    assert load_all_measured() == (MEASURED,)  # this process knows them all the same


def test_the_users_cache_folder_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWRIGHT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/tilewright")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache/tilewright"


def test_a_board_takes_the_faster_kind_of_core() -> None:
    roofs = roofs_of_board(find_board("A100-SXM4-40GB"))
    assert roofs.peaks_flops["float64"] == 128 * 108 * 1.41e9  # tensor cores
    assert roofs.peaks_flops["float32"] == 128 * 108 * 1.41e9  # CUDA cores
    assert roofs.levels[-1] == Level(name="DRAM", bytes_per_s=1555e9)
    assert roofs.levels[0].bytes_per_s == 32 * 4 * 108 * 1.41e9  # 32 banks of 4 bytes
    assert "datasheet" in roofs.source


def test_a_disturbed_measurement_is_doubted_also_if_only_its_notes_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    level = Level(name="L1", bytes_per_s=1e9)
    one = Roofs(device="x", threads=1, peaks_flops={}, levels=(level,), source="measured")
    for undisturbed, doubted in ((0.13, True), (0.5, False), (None, False)):
        store_measured([replace(one, undisturbed=undisturbed)])
        (found,) = load_all_measured()
        assert found.undisturbed == undisturbed
        assert bool(found.doubt) == doubted
    path = store_measured([replace(one, notes=("13% of 900 batches were undisturbed",))])
    old = json.loads(path.read_text())
    del old["roofs"][0]["undisturbed"]
    path.write_text(json.dumps(old))
    assert "13%" in load_all_measured()[0].doubt
