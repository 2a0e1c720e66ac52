"""Resize against ONNX's reference, with sizes and scales known and unknown when compiling."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference.ops.op_resize import Resize

from tilewright.kernel.ir import Kernel
from tilewright.lower.context import Unlowerable, View
from unit.lower.direct import Array, lower, run

SYMBOLIC = pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
_TRANSFORMS = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)


_RESIZE = Resize(
    helper.make_node("Resize", ["x"], ["y"]),
    {"log": lambda *_: None, "opsets": {"": 22}, "verbose": 0, "new_ops": None},
)


def _reference(x: Array, how: dict[str, Any], **inputs: Array | None) -> Array:
    defaults = {
        "antialias": 0,
        "axes": None,
        "coordinate_transformation_mode": "half_pixel",
        "cubic_coeff_a": -0.75,
        "exclude_outside": 0,
        "extrapolation_value": 0.0,
        "keep_aspect_ratio_policy": "stretch",
        "mode": "nearest",
        "nearest_mode": "round_prefer_floor",
    }
    with np.errstate(all="ignore"):
        (result,) = _RESIZE._run(x, **{"roi": None, **inputs, **defaults, **how})
    return np.asarray(result)


def _check(
    x: Array,
    how: dict[str, Any],
    symbolic: bool,
    *,
    scales: Any = None,
    sizes: Any = None,
    roi: Any = None,
) -> None:
    given = {
        "roi": None if roi is None else np.array(roi, np.float32),
        "scales": None if scales is None else np.array(scales, np.float32),
        "sizes": None if sizes is None else np.array(sizes, np.int64),
    }
    expected = _reference(x, how, **given)
    (found,) = run(
        "Resize",
        [x, given["roi"], given["scales"], given["sizes"]],
        [(x.dtype, expected.shape)],
        attributes=how,
        symbolic=symbolic,
        fixed=(1, 2, 3),
    )
    if x.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=str(how))
    else:
        np.testing.assert_array_equal(found, expected, err_msg=str(how))


@SYMBOLIC
@pytest.mark.parametrize("transform", _TRANSFORMS)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scales", [(2.0, 3.0), (0.6, 1.7), (0.5, 0.25), (2.5, 0.8)])
def test_scales(scales: tuple[float, float], mode: str, transform: str, symbolic: bool) -> None:
    x = np.random.default_rng(5).standard_normal((5, 8)).astype(np.float32)
    roi = (-0.2, 0.1, 0.8, 1.3) if transform == "tf_crop_and_resize" else None
    how: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": transform,
        "extrapolation_value": 7.5,
    }
    nearest = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    for rounding in nearest if mode == "nearest" else nearest[:1]:
        _check(x, {**how, "nearest_mode": rounding}, symbolic, scales=scales, roi=roi)


@SYMBOLIC
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize("sizes", [(3, 9), (10, 2), (1, 1), (5, 4)])
def test_sizes(
    sizes: tuple[int, int], antialias: int, exclude: int, mode: str, symbolic: bool
) -> None:
    x = np.random.default_rng(6).standard_normal((5, 8)).astype(np.float32)
    how = {"mode": mode, "antialias": antialias, "exclude_outside": exclude}
    _check(x, how, symbolic, sizes=sizes)


@SYMBOLIC
def test_antialias_with_scales_known_at_run_time(symbolic: bool) -> None:
    x = np.random.default_rng(7).standard_normal((9, 11)).astype(np.float32)
    for scales, mode in product([(0.31, 0.77), (0.99, 0.12)], ["linear", "cubic"]):
        _check(x, {"mode": mode, "antialias": 1}, symbolic, scales=scales)


@SYMBOLIC
@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("axes", [None, [1, 0], [1]])
def test_aspect_ratio_policies(policy: str, axes: list[int] | None, symbolic: bool) -> None:
    x = np.random.default_rng(8).standard_normal((5, 8)).astype(np.float32)
    how: dict[str, Any] = {"mode": "linear", "keep_aspect_ratio_policy": policy}
    if axes is not None:
        how["axes"] = axes
    # Sizes that avoid positions which the reference takes for one element too few.
    sizes = {(): (6, 7), (1, 0): (7, 6), (1,): (6,)}
    _check(x, how, symbolic, sizes=sizes[tuple(axes or ())])


@SYMBOLIC
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32, np.float16, np.float64])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_element_types_round_and_saturate(mode: str, dtype: Any, symbolic: bool) -> None:
    x = np.random.default_rng(9).integers(0, 120, (1, 1, 6, 7)).astype(dtype)
    x[..., 2, 3] = 127  # cubic overshoots
    expected = _reference(x, {"mode": mode}, scales=np.array([1, 1, 2, 1.5], np.float32))
    (found,) = run(
        "Resize",
        [x, None, np.array([1, 1, 2, 1.5], np.float32)],
        [(x.dtype, expected.shape)],
        attributes={"mode": mode},
        symbolic=symbolic,
        fixed=(2,),
    )
    assert found.dtype == dtype
    np.testing.assert_allclose(
        found.astype(np.float64),
        expected.astype(np.float64),
        rtol=2e-3 if dtype == np.float16 else 1e-9,
    )


@SYMBOLIC
def test_three_axes_of_cubic_go_one_by_one(symbolic: bool) -> None:
    x = np.random.default_rng(10).standard_normal((3, 4, 5)).astype(np.float32)
    _check(x, {"mode": "cubic"}, symbolic, scales=(2.0, 1.5, 0.7))


def test_an_empty_axis_stays_empty() -> None:
    x = np.zeros((0, 4), np.float32)
    (found,) = run(
        "Resize",
        [x, None, np.array([2, 2], np.float32)],
        [(x.dtype, (0, 8))],
        attributes={"mode": "linear"},
        symbolic=True,
        fixed=(2,),
    )
    assert found.shape == (0, 8)


def test_whole_factors_need_no_tables() -> None:
    x = np.zeros((1, 2, 4, 5), np.float32)
    lowering, _ = lower(
        "Resize",
        [x, None, np.array([1, 1, 2, 3], np.float32)],
        [(x.dtype, (1, 2, 8, 15))],
        attributes={"mode": "nearest"},
    )
    (kernel,) = lowering.items
    assert isinstance(kernel, Kernel)
    assert kernel.is_pure
    assert not lowering.constants


def test_a_resize_to_the_same_size_is_a_view() -> None:
    x = np.zeros((4, 5), np.float32)
    lowering, _ = lower(
        "Resize", [x, None, None, np.array([4, 5])], [(x.dtype, (4, 5))], attributes={}
    )
    assert [type(item) for item in lowering.items] == [View]


def test_booleans_are_not_interpolated() -> None:
    x, sizes = np.zeros((4,), np.bool_), np.array([5])
    with pytest.raises(Unlowerable, match="booleans"):
        lower("Resize", [x, None, None, sizes], [(x.dtype, (5,))], attributes={"mode": "linear"})
