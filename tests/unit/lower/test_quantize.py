"""Quantisation: ONNX's cases, ties, limits, NaN, granularity, precision of the division."""

import ml_dtypes
import numpy as np
import pytest

from tilewright.core.dtypes import FLOAT16, FLOAT32
from tilewright.runtime.reference import evaluate
from unit.lower.harness import Case, check_case, node_cases, run_operator

CASES = node_cases("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("symbolic", [False, True])
def test_case(case: Case, symbolic: bool) -> None:
    check_case(case, symbolic=symbolic)


def test_ties_limits_and_nan() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, 1e30, -np.inf, np.nan], np.float32)
    feeds = {"x": x, "s": np.float32(1), "z": np.int8(10)}
    (result,) = run_operator("QuantizeLinear", feeds)
    np.testing.assert_array_equal(result, np.array([10, 12, 12, 10, 127, -128, 10], np.int8))


def test_rounding_comes_before_the_zero_point() -> None:
    feeds = {"x": np.array([0.5, 1.5], np.float32), "s": np.float32(1), "z": np.uint8(1)}
    np.testing.assert_array_equal(run_operator("QuantizeLinear", feeds)[0], [1, 3])


def test_the_division_has_the_precision_of_the_scale() -> None:
    x, scale = np.array([1.0], np.float32), np.float16(2 / 1025)
    exact = float(x[0]) / float(scale)
    half = np.float16(exact)
    assert np.rint(exact) != np.rint(half) or exact != half
    feeds = {"x": x, "s": scale, "z": np.int16(0)}
    (result,) = run_operator("QuantizeLinear", feeds)
    assert result == np.rint(half.astype(np.float32))
    (result,) = run_operator("QuantizeLinear", feeds, precision=FLOAT32.code)
    assert result == np.rint(np.float32(exact))
    (result,) = run_operator(
        "QuantizeLinear", {**feeds, "s": np.float32(scale)}, precision=FLOAT16.code
    )
    assert result == np.rint(half.astype(np.float32))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_per_axis_there_and_back(axis: int) -> None:
    rng = np.random.default_rng(12)
    x = rng.integers(-100, 100, (4, 6)).astype(np.float32)
    size = x.shape[axis]
    scale = np.ldexp(1.0, rng.integers(-2, 1, size)).astype(np.float32)
    zero = np.arange(size).astype(np.int16)
    feeds = {"s": scale, "z": zero}
    (quantized,) = run_operator("QuantizeLinear", {"x": x, **feeds}, axis=axis, symbolic=True)
    spread = (slice(None), None) if axis == 0 else (None, slice(None))
    np.testing.assert_array_equal(quantized, np.rint(x / scale[spread]) + zero[spread])
    (back,) = run_operator("DequantizeLinear", {"q": quantized, **feeds}, axis=axis, symbolic=True)
    np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize("block", [2, 3, 5])
def test_blocks_may_be_cut_short(block: int) -> None:
    rng = np.random.default_rng(13)
    x = rng.integers(-7, 7, (2, 5)).astype(ml_dtypes.int4)
    scale = rng.uniform(1, 2, (2, -(-5 // block))).astype(np.float32)
    (result,) = run_operator("DequantizeLinear", {"q": x, "s": scale}, axis=1, block_size=block)
    np.testing.assert_array_equal(
        result, x.astype(np.float32) * np.repeat(scale, block, axis=1)[:, :5]
    )


def test_int32_is_dequantised_exactly() -> None:
    q = np.array([2**24 + 1, -(2**31)], np.int32)
    (result,) = run_operator("DequantizeLinear", {"q": q, "s": np.float32(0.3)})
    exact = q * float(np.float32(0.3))
    np.testing.assert_array_equal(result, exact.astype(np.float32))


def test_float8_does_not_saturate_when_told_so() -> None:
    zero = np.array(0, ml_dtypes.float8_e4m3fn)
    feeds = {"x": np.array([1e6, 1], np.float32), "s": np.float32(1), "z": zero}
    (kept,) = run_operator("QuantizeLinear", feeds)
    (lost,) = run_operator("QuantizeLinear", feeds, saturate=0)
    np.testing.assert_array_equal(kept.astype(np.float32), [448, 1])
    np.testing.assert_array_equal(lost.astype(np.float32), [np.nan, 1])


def test_dynamic_quantisation_of_zeros() -> None:
    y, scale, zero = run_operator(
        "DynamicQuantizeLinear", {"x": np.zeros(4, np.float32)}, ("y", "s", "z")
    )
    np.testing.assert_array_equal(y, np.zeros(4, np.uint8))
    assert scale > 0
    assert zero == 0


@pytest.mark.parametrize("shape", [(), (300,), (3, 70, 5), (2, 4, 300), (40, 1, 512), (3, 0)])
@pytest.mark.parametrize("symbolic", [False, True])
def test_dynamic_quantisation_of_rows(shape: tuple[int, ...], symbolic: bool) -> None:
    x = np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32) + 0.5
    got = run_operator("DynamicQuantizeLinear", {"x": x}, ("y", "s", "z"), symbolic=symbolic)
    want = evaluate("", "DynamicQuantizeLinear", [x], {}, opset=11, num_outputs=3)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "values",
    [
        (np.nan, 1, -2), (-np.nan, 1, -2), (np.inf, 1, -2), (-np.inf, 1, 2), (np.inf, -np.inf),
        (-0.0,), (0.0, -0.0), (-1, -3), (2, 5), (1e-45, -1e-45), (3e38, -3e38), (np.nan, -np.nan),
    ],
)  # fmt: skip
def test_dynamic_quantisation_of_unusual_numbers(values: tuple[float, ...]) -> None:
    x = np.resize(np.asarray(values, np.float32), 40)
    got = run_operator("DynamicQuantizeLinear", {"x": x}, ("y", "s", "z"))
    with np.errstate(all="ignore"):
        want = evaluate("", "DynamicQuantizeLinear", [x], {}, opset=11, num_outputs=3)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.isnan(got[1]) == np.isnan(x).any()  # what is computed with the step shows it


def test_dynamic_quantisation_of_one_output() -> None:
    x = np.array([-1, 0, 2], np.float32)
    (y,) = run_operator("DynamicQuantizeLinear", {"x": x}, ("y", "", ""), symbolic=True)
    np.testing.assert_array_equal(y, np.array([0, 85, 255], np.uint8))
