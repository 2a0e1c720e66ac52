"""Arithmetic, comparison, logic and choice: ONNX's cases, and what they leave out."""

import ml_dtypes
import numpy as np
import pytest

from tilewright.kernel.ir import Call, Kernel, walk
from tilewright.lower.context import Unlowerable
from unit.lower.harness import (
    Array,
    Case,
    case_named,
    check_case,
    lower_operator,
    node_cases,
    run_operator,
)

OPERATORS = (
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr "
    "BitwiseXor Ceil Clip Cos Cosh Div Equal Erf Exp Floor Greater GreaterOrEqual IsInf IsNaN Less "
    "LessOrEqual Log Max Mean Min Mod Mul Neg Not Or Pow Reciprocal Round Sign Sin Sinh Sqrt Sub "
    "Sum Tan Tanh Where Xor"
).split()
STRINGS = ("test_equal_string", "test_equal_string_broadcast")
CASES = node_cases(*OPERATORS, without=STRINGS)


@pytest.mark.parametrize("case", CASES)
def test_case(case: Case) -> None:
    check_case(case)


@pytest.mark.parametrize("case", CASES)
def test_case_with_unknown_sizes(case: Case) -> None:
    check_case(case, symbolic=True)


@pytest.mark.parametrize("name", STRINGS)
def test_strings_are_refused(name: str) -> None:
    with pytest.raises(Unlowerable, match="string"):
        check_case(case_named(name))


# --- what the cases leave out ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right"), [((3, 1), (4,)), ((1,), (2, 3)), ((), (2,)), ((0, 1), (3,)), ((1, 1), (1,))]
)
def test_a_size_of_one_is_found_at_run_time(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal(left), rng.standard_normal(right)
    (result,) = run_operator("Add", {"a": a, "b": b}, symbolic=True)
    np.testing.assert_array_equal(result, a + b)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("op_type", ["Max", "Min"])
def test_extremes_keep_nan(op_type: str, dtype: type) -> None:
    a: Array = np.array([np.nan, 1, 2], dtype)
    b: Array = np.array([1, np.nan, 3], dtype)
    (result,) = run_operator(op_type, {"a": a, "b": b})
    assert np.isnan(result.astype(np.float64)).tolist() == [True, True, False]


def test_clip_keeps_nan_and_lets_the_upper_bound_win() -> None:
    x = np.array([np.nan, -5, 5], np.float32)
    bounds = {"low": np.float32(3), "high": np.float32(2)}
    (result,) = run_operator("Clip", {"x": x, **bounds})
    np.testing.assert_array_equal(result, [np.nan, 2, 2])
    (result,) = run_operator("Clip", {"x": x, "low": None, "high": np.float32(2)})
    np.testing.assert_array_equal(result, [np.nan, -5, 2])


@pytest.mark.parametrize("constant", [(), ("low",), ("high",), ("low", "high")])
def test_bounds_of_clip_that_are_known_are_in_the_code(constant: tuple[str, ...]) -> None:
    """Of a bound that is loaded, code has to ask whether it is NaN."""
    x = np.array([np.nan, -9, 0.25, 9], np.float32)
    feeds = {"x": x, "low": np.float32(-1), "high": np.float32(6)}
    (kernel,) = lower_operator("Clip", feeds, constant=constant).items
    assert isinstance(kernel, Kernel)
    assert {buffer.name for buffer in kernel.inputs} == set(feeds) - set(constant)
    (result,) = run_operator("Clip", feeds, constant=constant)
    np.testing.assert_array_equal(result, [np.nan, -1, 0.25, 6])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64, np.int8, np.uint64])
def test_known_bounds_have_the_type_of_what_they_bound(dtype: type) -> None:
    x: Array = np.array([0, 3, 100], dtype)
    feeds = {"x": x, "low": dtype(2), "high": dtype(7)}
    (result,) = run_operator("Clip", feeds, constant=("low", "high"))
    np.testing.assert_array_equal(result, np.array([2, 3, 7], dtype))


def test_a_known_bound_that_is_nan_leaves_nothing_else() -> None:
    feeds = {"x": np.ones(3, np.float32), "low": np.float32(np.nan)}
    (result,) = run_operator("Clip", feeds, constant=("low",))
    assert np.isnan(result).all()


def test_integers_wrap_and_divide_toward_zero() -> None:
    a, b = np.array([-7, 127, 7], np.int8), np.array([2, 1, 0], np.int8)
    np.testing.assert_array_equal(run_operator("Div", {"a": a, "b": b})[0], [-3, 127, 0])
    np.testing.assert_array_equal(run_operator("Add", {"a": a, "b": b})[0], [-5, -128, 7])


def test_an_operator_on_halves_rounds_once() -> None:
    a, b = np.float16(1), np.float16(2.0**-11)
    (result,) = run_operator("Sum", {"a": a, "b": b, "c": b})
    assert result == np.float16(1 + 2.0**-10)  # step by step, both addends would be lost


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0, -1.0, 0.5, 1.5])
@pytest.mark.parametrize("constant", [(), ("b",)])
def test_powers(exponent: float, constant: tuple[str, ...]) -> None:
    x = np.array([-np.inf, -2, -0.0, 0, 0.5, 3, np.inf, np.nan])
    feeds = {"x": x, "b": np.float64(exponent)}
    (result,) = run_operator("Pow", feeds, constant=constant)
    with np.errstate(all="ignore"):
        expected = np.power(x, np.full(x.shape, exponent))
    np.testing.assert_allclose(result, expected, rtol=1e-15)
    np.testing.assert_array_equal(np.signbit(result[:-1]), np.signbit(expected[:-1]))


def test_a_square_is_a_product() -> None:
    feeds = {"x": np.ones(3, np.float32), "b": np.array([2], np.int64)}
    lowering = lower_operator("Pow", feeds, constant=["b"])
    kernel = lowering.items[0]
    assert isinstance(kernel, Kernel)
    value = kernel.stages[0].stores[0].value
    assert [node.op for node in walk(value) if isinstance(node, Call)] == ["mul"]


def test_powers_of_integers_by_floats_and_of_floats_by_integers() -> None:
    whole = np.array([1, 2, 3], np.int32)
    (result,) = run_operator("Pow", {"x": whole, "b": np.array([0.5, 2.5, 2.0], np.float32)})
    np.testing.assert_array_equal(result, np.array([1, 5, 9], np.int32))
    (result,) = run_operator("Pow", {"x": np.float32(1.5), "b": np.int64(3)})
    assert result == 3.375
    assert result.dtype == np.float32


def test_where_moves_elements_as_they_are() -> None:
    condition = np.array([True, False])
    a, b = np.array([1, 2], ml_dtypes.bfloat16), np.array([np.nan, 3], ml_dtypes.bfloat16)
    (result,) = run_operator("Where", {"c": condition, "a": a, "b": b})
    np.testing.assert_array_equal(result.astype(np.float32), [1, 3])


def test_the_sign_of_infinity() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 1], np.float32)
    for negative, positive, expected in (
        (1, 1, [1, 1, 0, 0]),
        (1, 0, [0, 1, 0, 0]),
        (0, 0, [0] * 4),
    ):
        (result,) = run_operator(
            "IsInf", {"x": x}, detect_negative=negative, detect_positive=positive
        )
        np.testing.assert_array_equal(result, np.array(expected, bool))
