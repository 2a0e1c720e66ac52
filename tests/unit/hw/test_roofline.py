"""The roofline, with numbers worked by hand."""

import math

import pytest

from tilewright.core.errors import BadOption
from tilewright.hw.lookup import find_board
from tilewright.hw.roofline import (
    Work,
    attainable_flops,
    bound,
    level,
    peak_flops,
    peak_key,
    ridge_intensity,
)
from tilewright.hw.roofs import Level, Roofs, roofs_of_board

CPU = Roofs(
    device="a CPU",
    threads=1,
    peaks_flops={"float32": 100e9, "int8": 400e9},
    levels=(
        Level(name="L1", bytes_per_s=400e9),
        Level(name="L2", bytes_per_s=100e9),
        Level(name="DRAM", bytes_per_s=20e9),
    ),
    source="worked by hand",
)


def test_the_flat_roof_has_a_slope_and_a_ceiling() -> None:
    assert attainable_flops(CPU, "float32", 1.0) == 20e9
    assert attainable_flops(CPU, "float32", 5.0) == 100e9
    assert attainable_flops(CPU, "float32", 50.0) == 100e9
    assert attainable_flops(CPU, "float32", 0.25, "L1") == 100e9


def test_the_ridge_is_where_they_meet() -> None:
    assert ridge_intensity(CPU, "float32") == 5.0
    assert ridge_intensity(CPU, "float32", "L1") == 0.25
    assert ridge_intensity(CPU, "int8") == 20.0


def test_a_matrix_product_of_an_h200() -> None:
    """8192³ in bf16: 1.0995e12 operations at 989.43e12, 3 * 134.2e6 bytes at 4.8e12."""
    size = 8192
    work = Work(flops={"bfloat16": 2.0 * size**3}, num_bytes={"DRAM": 3 * 2.0 * size**2})
    found = bound(work, roofs_of_board(find_board("H200")))
    assert found.limit == "bfloat16 peak"
    assert found.time_s == pytest.approx(1.1113e-3, rel=1e-3)
    assert found.times_s["DRAM"] == pytest.approx(83.9e-6, rel=1e-3)
    assert found.intensity == pytest.approx(2730.67, rel=1e-4)
    assert found.fraction_of_roof(1.6e-3) == pytest.approx(0.6946, rel=1e-3)


def test_reading_weights_once_is_bound_by_memory() -> None:
    """117 MB at 4.8 TB/s: 24.4 us."""
    work = Work(flops={"bfloat16": 117e6}, num_bytes={"DRAM": 117e6})
    found = bound(work, roofs_of_board(find_board("H200")))
    assert (found.limit, found.intensity) == ("DRAM", 1.0)
    assert found.time_s == pytest.approx(24.375e-6)


def test_the_hierarchy_names_the_level_that_limits() -> None:
    work = Work(flops={"float32": 1e9}, num_bytes={"L1": 12e9, "L2": 2e9, "DRAM": 0.1e9})
    found = bound(work, CPU)
    assert found.times_s == {
        "float32 peak": pytest.approx(0.01),
        "L1": pytest.approx(0.03),
        "L2": pytest.approx(0.02),
        "DRAM": pytest.approx(0.005),
    }
    assert found.limit == "L1"
    assert found.time_s == pytest.approx(0.03)
    assert found.flops_per_s == pytest.approx(1e9 / 0.03)
    assert found.intensity == pytest.approx(10.0)  # of the farthest level
    assert found.source == "worked by hand"


def test_work_without_bytes_has_no_intensity() -> None:
    found = bound(Work(flops={"int8": 4e9}), CPU)
    assert (found.limit, found.time_s, found.intensity) == ("int8 peak", 0.01, math.inf)


def test_narrow_types_go_by_their_family() -> None:
    assert peak_flops(CPU, "uint8") == 400e9
    names = {"float8_e4m3fn": "float8", "float4_e2m1": "float4", "uint4": "int4", "tf32": "tf32"}
    for name, family in names.items():
        assert peak_key(name) == family


def test_what_the_roofs_lack_is_listed() -> None:
    with pytest.raises(BadOption, match=r"no known peak of float64(?s:.*)float32, int8"):
        peak_flops(CPU, "float64")
    with pytest.raises(BadOption, match=r"no known memory level L3(?s:.*)L1, L2, DRAM"):
        level(CPU, "L3")
    with pytest.raises(BadOption, match="no known memory level"):
        bound(Work(num_bytes={"tape": 1.0}), CPU)


@pytest.mark.parametrize(
    "work", [Work(), Work(flops={"float32": -1.0}), Work(num_bytes={"L1": math.nan})]
)
def test_empty_or_senseless_work_is_refused(work: Work) -> None:
    with pytest.raises(BadOption, match="work without"):
        bound(work, CPU)


def test_a_measured_time_must_be_positive() -> None:
    with pytest.raises(BadOption, match="measured time of 0"):
        bound(Work(flops={"float32": 1.0}), CPU).fraction_of_roof(0)
