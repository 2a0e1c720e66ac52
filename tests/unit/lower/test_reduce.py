"""Reductions: ONNX's cases, axes and sizes known at run time, empties, NaN, halves, integers."""

import ml_dtypes
import numpy as np
import pytest

from unit.lower.harness import Case, check_case, node_cases, run_operator

REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum ReduceSumSquare"
).split()
CASES = node_cases(*REDUCTIONS, "ArgMax", "ArgMin")


@pytest.mark.parametrize("case", CASES)
def test_case(case: Case) -> None:
    check_case(case)


@pytest.mark.parametrize("case", CASES)
def test_case_with_constant_axes(case: Case) -> None:
    check_case(case, constant=[1])


@pytest.mark.parametrize("case", CASES)
def test_case_with_unknown_sizes(case: Case) -> None:
    check_case(case, constant=[1], symbolic=True)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_axes_known_at_run_time(op_type: str, keepdims: int) -> None:
    x = np.random.default_rng(3).uniform(0.5, 2, (3, 4, 5)).astype(np.float32)
    for axes in ([1], [0, 2], [-1, 0, 1]):
        feeds = {"x": x, "axes": np.array(axes)}
        (known,) = run_operator(op_type, feeds, constant=["axes"], keepdims=keepdims)
        (found,) = run_operator(op_type, feeds, keepdims=keepdims)
        assert known.shape == found.shape
        np.testing.assert_allclose(found, known, rtol=1e-6)


def test_half_means_of_large_values_do_not_overflow() -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16):
        x = np.full((4, 1000), 60000, dtype)
        (result,) = run_operator(
            "ReduceMean", {"x": x, "axes": np.array([1])}, constant=["axes"], keepdims=0
        )
        np.testing.assert_array_equal(result, np.full(4, 60000, dtype))


def test_half_sums_are_accumulated_in_float32() -> None:
    (result,) = run_operator("ReduceSum", {"x": np.ones(4096, np.float16)}, keepdims=0)
    assert result == np.float16(4096)  # in float16, 2048 + 1 would stay 2048


def test_integer_sums_wrap_and_means_truncate() -> None:
    x = np.array([2**31 - 1, 1, -5], np.int32)
    (total,) = run_operator("ReduceSum", {"x": x[:2]}, keepdims=0)
    assert total == -(2**31)
    (mean,) = run_operator("ReduceMean", {"x": np.array([-5, -2], np.int32)}, keepdims=0)
    assert mean == -3
    (large,) = run_operator("ReduceMean", {"x": x[[0, 0]]}, keepdims=0)
    assert large == 2**31 - 1


def test_roots_and_logarithms_of_integers_are_computed_as_reals() -> None:
    x = np.array([3, 4], np.int32)
    assert run_operator("ReduceL2", {"x": x}, keepdims=0)[0] == 5
    assert run_operator("ReduceLogSum", {"x": x}, keepdims=0)[0] == 1


@pytest.mark.parametrize(
    ("op_type", "expected"),
    [
        ("ReduceSum", 0),
        ("ReduceProd", 1),
        ("ReduceMax", -np.inf),
        ("ReduceMin", np.inf),
        ("ReduceMean", np.nan),
        ("ReduceL1", 0),
        ("ReduceL2", 0),
        ("ReduceSumSquare", 0),
        ("ReduceLogSum", -np.inf),
        ("ReduceLogSumExp", -np.inf),
    ],
)
@pytest.mark.parametrize("symbolic", [False, True])
def test_reductions_over_nothing(op_type: str, expected: float, symbolic: bool) -> None:
    feeds = {"x": np.zeros((2, 0), np.float32), "axes": np.array([1])}
    (result,) = run_operator(op_type, feeds, constant=["axes"], symbolic=symbolic, keepdims=0)
    np.testing.assert_array_equal(result, np.full(2, expected, np.float32))


def test_no_axes_and_noop_still_transform() -> None:
    x = np.array([-2.0, 3.0], np.float32)
    (result,) = run_operator("ReduceSumSquare", {"x": x}, noop_with_empty_axes=1)
    np.testing.assert_array_equal(result, [4, 9])


def test_extremes_keep_nan() -> None:
    x = np.array([[1, np.nan, 3], [1, 2, 3]], np.float32)
    for op_type, expected in (("ReduceMax", [np.nan, 3]), ("ReduceMin", [np.nan, 1])):
        feeds = {"x": x, "axes": np.array([1])}
        (result,) = run_operator(op_type, feeds, constant=["axes"], keepdims=0)
        np.testing.assert_array_equal(result, expected)


def test_log_sum_exp_of_extreme_values() -> None:
    x = np.array([[1000, 999], [-np.inf, -np.inf], [np.inf, 0], [np.nan, 0]], np.float32)
    feeds = {"x": x, "axes": np.array([1])}
    (result,) = run_operator("ReduceLogSumExp", feeds, constant=["axes"], keepdims=0)
    np.testing.assert_allclose(result, [1000.31326, -np.inf, np.inf, np.nan], rtol=1e-6)


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_positions_of_extremes(op_type: str, last: int) -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(0, 3, (6, 9)).astype(np.float32)
    x[2, [3, 5]] = np.nan
    function = np.argmax if op_type == "ArgMax" else np.argmin
    expected = 8 - function(x[:, ::-1], axis=1) if last else function(x, axis=1)
    for dtype in (np.float32, np.float16):
        (result,) = run_operator(
            op_type, {"x": x.astype(dtype)}, axis=1, keepdims=0, select_last_index=last
        )
        np.testing.assert_array_equal(result, expected)
    (result,) = run_operator(
        op_type,
        {"x": np.array([[1, 3], [3, 1]], np.uint8)},
        axis=-1,
        keepdims=1,
        select_last_index=last,
    )
    np.testing.assert_array_equal(result, [[1], [0]] if op_type == "ArgMax" else [[0], [1]])
