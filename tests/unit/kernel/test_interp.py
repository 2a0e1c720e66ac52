"""The interpreter against NumPy, and what it must refuse or leave alone."""

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from tilewright.core import dtypes
from tilewright.core.dtypes import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT4,
    INT8,
    INT32,
    INT64,
    UINT8,
    DType,
)
from tilewright.core.errors import InternalError, OutOfRange
from tilewright.core.shape import Dim
from tilewright.kernel import interp_scope
from tilewright.kernel.interp import interpret
from tilewright.kernel.interp_ops import NUMPY_COMBINERS, NUMPY_OPS
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Expr,
    Kernel,
    Stage,
    Store,
    call,
    cast,
    constant,
    dim_value,
    reduce_over,
    select,
)
from tilewright.kernel.ops import COMBINERS, SCALAR_OPS

Array = npt.NDArray[Any]
N = Dim.symbol("n")
I = Axis("i", N)
RNG = np.random.default_rng(0)


def pure(out: Buffer, inputs: tuple[Buffer, ...], body: Callable[..., Expr]) -> Kernel:
    axes = tuple(Axis(f"i{k}", dim) for k, dim in enumerate(out.shape))
    index = tuple(axis.var for axis in axes)
    stage = Stage(axes, (Store(out.name, index, body(*index)),))
    return Kernel(name="test", inputs=inputs, outputs=(out,), stages=(stage,))


def of_one(function: Callable[[Expr], Expr], values: Array, result: DType) -> Array:
    """Applies a function of expressions to every element of an array."""
    x = Buffer("x", dtypes.from_numpy(values.dtype), (N,))
    out = Buffer("out", result, (N,))
    kernel = pure(out, (x,), lambda i: function(x[i]))
    return interpret(kernel, {"x": values}, {"n": len(values)})["out"]


def of_two(op: str, left: Array, right: Array) -> Array:
    """Applies an operation element by element."""
    a, b = (Buffer(name, dtypes.from_numpy(left.dtype), (N,)) for name in "ab")
    kernel = pure(Buffer("out", a.dtype, (N,)), (a, b), lambda i: call(op, a[i], b[i]))
    return interpret(kernel, {"a": left, "b": right}, {"n": len(left)})["out"]


def test_implements_the_whole_table() -> None:
    assert set(NUMPY_OPS) | {"select", "blend", "checked_index"} == set(SCALAR_OPS)
    assert set(NUMPY_COMBINERS) == set(COMBINERS)


# --- loops ----------------------------------------------------------------------------------------


def test_matrix_product_in_float32_and_float64() -> None:
    a, b = Buffer("a", FLOAT32, (N, Dim.of(5))), Buffer("b", FLOAT32, (Dim.of(5), N))
    kernel = pure(
        Buffer("c", FLOAT32, (N, N)),
        (a, b),
        lambda i, j: reduce_over("sum", [5], lambda k: a[i, k] * b[k, j]),
    )
    left, right = (RNG.standard_normal(s).astype(np.float32) for s in ((7, 5), (5, 7)))
    feeds, sizes = {"a": left, "b": right}, {"n": 7}
    narrow = interpret(kernel, feeds, sizes)["c"]
    wide = interpret(kernel, feeds, sizes, wide=True)["c"]
    assert narrow.dtype == np.float32
    assert wide.dtype == np.float64
    np.testing.assert_allclose(narrow, left @ right, rtol=1e-5)
    np.testing.assert_allclose(wide, left.astype(np.float64) @ right, rtol=1e-14)


def test_reduction_is_the_same_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Buffer("x", INT64, (N, Dim.of(6), Dim.of(7)))
    kernel = pure(
        Buffer("y", INT64, (N,)),
        (x,),
        lambda i: reduce_over("sum", [6, 7], lambda j, k: x[i, j, k] * (k + 1)) + i,
    )
    values = RNG.integers(-9, 9, (5, 6, 7))
    expected = (values * np.arange(1, 8)).sum((1, 2)) + np.arange(5)
    for points in (1, 10, 50, 10**6):
        monkeypatch.setattr(interp_scope, "BLOCK_POINTS", points)
        result = interpret(kernel, {"x": values}, {"n": 5})["y"]
        np.testing.assert_array_equal(result, expected)


def test_nested_reductions_share_what_does_not_depend_on_them() -> None:
    x = Buffer("x", FLOAT64, (N, N))

    def body(i: Expr, j: Expr) -> Expr:
        largest = reduce_over("max", [N], lambda k: x[i, k])
        total = reduce_over("sum", [N], lambda k: call("exp", x[i, k] - largest))
        return call("exp", x[i, j] - largest) / total

    values = RNG.standard_normal((6, 6))
    result = interpret(pure(Buffer("y", FLOAT64, (N, N)), (x,), body), {"x": values}, {"n": 6})["y"]
    weights = np.exp(values)
    np.testing.assert_allclose(result, weights / weights.sum(1, keepdims=True), rtol=1e-13)


def test_empty_reductions_give_the_neutral_element() -> None:
    x = Buffer("x", INT8, (N,))
    for combiner, expected in (("sum", 0), ("prod", 1), ("max", -128), ("min", 127)):
        kernel = pure(
            Buffer("y", INT8, ()),
            (x,),
            lambda c=combiner: reduce_over(c, [N], lambda i: x[i]),
        )
        assert interpret(kernel, {"x": np.zeros(0, np.int8)}, {"n": 0})["y"] == expected


def test_ordered_axis_sees_earlier_iterations() -> None:
    x, y = Buffer("x", INT64, (N,)), Buffer("y", INT64, (N,))
    before = select(I.var.gt(0), y[I.var - 1], 0)
    stage = Stage((Axis("i", N, ordered=True),), (Store("y", (I.var,), before + x[I.var]),))
    kernel = Kernel(name="scan", inputs=(x,), outputs=(y,), stages=(stage,))
    values = np.arange(1, 6)
    np.testing.assert_array_equal(
        interpret(kernel, {"x": values}, {"n": 5})["y"], np.cumsum(values)
    )


def test_steps_run_all_stages_in_order() -> None:
    step = Axis("t", Dim.of(4), ordered=True)
    state, out = Buffer("state", INT64, ()), Buffer("out", INT64, (Dim.of(4),))
    first = select(step.var.eq(0), constant(1, INT64), state[()] * 2)
    kernel = Kernel(
        name="double",
        inputs=(),
        outputs=(out,),
        temporaries=(state,),
        stages=(
            Stage((), (Store("state", (), first),)),
            Stage((), (Store("out", (step.var,), state[()]),)),
        ),
        steps=step,
    )
    np.testing.assert_array_equal(interpret(kernel, {}, {})["out"], [1, 2, 4, 8])


def test_guard_leaves_elements_alone() -> None:
    y = Buffer("y", INT64, (N,))
    stages = (
        Stage((I,), (Store("y", (I.var,), constant(7, INT64)),)),
        Stage((I,), (Store("y", (I.var + 1,), I.var, (I.var + 1).lt(dim_value(N))),)),
    )
    kernel = Kernel(name="guarded", inputs=(), outputs=(y,), stages=stages)
    np.testing.assert_array_equal(interpret(kernel, {}, {"n": 4})["y"], [7, 0, 1, 2])


def test_buffers_start_as_rubbish() -> None:
    y = Buffer("y", FLOAT32, (N,))
    stage = Stage((I,), (Store("y", (I.var,), constant(1, FLOAT32), I.var.lt(1)),))
    kernel = Kernel(name="partial", inputs=(), outputs=(y,), stages=(stage,))
    assert np.isnan(interpret(kernel, {}, {"n": 3})["y"]).sum() == 2


# --- bounds ---------------------------------------------------------------------------------------


def gather(body: Callable[[Expr, Buffer], Expr], indices: list[int]) -> Array:
    index, data = Buffer("index", INT64, (N,)), Buffer("data", FLOAT32, (Dim.of(4),))
    kernel = pure(Buffer("y", FLOAT32, (N,)), (index, data), lambda i: body(index[i], data))
    feeds = {"index": np.array(indices), "data": np.arange(4, dtype=np.float32)}
    return interpret(kernel, feeds, {"n": len(indices)})["y"]


def test_load_out_of_bounds_names_buffer_and_index() -> None:
    with pytest.raises(InternalError, match=r"load of data\[4\] out of bounds: index \[9\]"):
        gather(lambda i, data: data[i], [1, 9, 2])


def test_lanes_not_chosen_may_be_out_of_bounds() -> None:
    result = gather(lambda i, data: select(i.lt(4), data[i], -1.0), [1, 9, 2])
    np.testing.assert_array_equal(result, [1, -1, 2])


def test_lanes_not_chosen_in_a_reduction_may_be_out_of_bounds() -> None:
    def windowed(i: Expr, data: Buffer) -> Expr:
        def term(k: Expr) -> Expr:
            place = i + k - 1
            return select(place.ge(0) & place.lt(4), data[place.max(0)], 0.0)

        return reduce_over("sum", [3], term)

    np.testing.assert_array_equal(gather(windowed, [0, 3]), [1, 5])


def test_a_reduction_with_a_lane_out_of_bounds_may_be_left_out() -> None:
    def total(i: Expr, data: Buffer) -> Expr:
        return select(i.gt(0), reduce_over("sum", [5], lambda k: data[k]), -1.0)

    np.testing.assert_array_equal(gather(total, [0]), [-1])
    with pytest.raises(InternalError, match="out of bounds"):
        gather(total, [0, 1])


def test_checked_index_wraps_once_and_raises() -> None:
    def body(i: Expr, data: Buffer) -> Expr:
        return data[call("checked_index", i, 4)]

    np.testing.assert_array_equal(gather(body, [-1, -4, 3]), [3, 0, 3])
    for bad in (4, -5):
        with pytest.raises(OutOfRange, match=rf"index \[{bad}, 4\]"):
            gather(body, [0, bad])


def test_checked_index_into_rows_raises() -> None:
    index, data = Buffer("index", INT64, (N,)), Buffer("data", FLOAT32, (Dim.of(4), Dim.of(2)))
    kernel = pure(
        Buffer("y", FLOAT32, (N, Dim.of(2))),
        (index, data),
        lambda i, j: data[call("checked_index", index[i], 4), j],
    )
    feeds = {"index": np.array([0, 9]), "data": np.zeros((4, 2), np.float32)}
    with pytest.raises(OutOfRange, match="index"):
        interpret(kernel, feeds, {"n": 2})


def test_store_out_of_bounds_raises() -> None:
    y = Buffer("y", INT64, (N,))
    stage = Stage((I,), (Store("y", (I.var + 1,), I.var),))
    kernel = Kernel(name="beyond", inputs=(), outputs=(y,), stages=(stage,))
    with pytest.raises(InternalError, match="store to y"):
        interpret(kernel, {}, {"n": 3})


def test_feeds_must_fit() -> None:
    x = Buffer("x", FLOAT32, (N,))
    kernel = pure(Buffer("y", FLOAT32, (N,)), (x,), lambda i: x[i])
    with pytest.raises(InternalError, match="no feed for x"):
        interpret(kernel, {}, {"n": 2})
    with pytest.raises(InternalError, match=r"x is float32\[2\], fed float32\[3\]"):
        interpret(kernel, {"x": np.zeros(3, np.float32)}, {"n": 2})


# --- scalar operations ----------------------------------------------------------------------------


def test_integers_wrap_and_divide_toward_zero() -> None:
    a = np.array([127, -128, 7, -7, 7, -7, 5], np.int8)
    b = np.array([1, -1, 2, 2, -2, -2, 0], np.int8)
    np.testing.assert_array_equal(of_two("add", a, b)[:2], [-128, 127])
    np.testing.assert_array_equal(of_two("div", a, b)[1:], [-128, 3, -3, -3, 3, 0])
    np.testing.assert_array_equal(of_two("mod", a, b)[2:], [1, 1, -1, -1, 0])
    np.testing.assert_array_equal(of_two("fmod", a, b)[2:], [1, -1, 1, -1, 0])


def test_shifts_beyond_the_width_give_zero() -> None:
    a, b = np.array([3, 3, -128], np.int8), np.array([1, 8, 100], np.int8)
    np.testing.assert_array_equal(of_two("shl", a, b), [6, 0, 0])
    np.testing.assert_array_equal(of_two("shr", a, b), [1, 0, 0])


def test_extremes_propagate_nan() -> None:
    a, b = np.array([np.nan, 1, 2]), np.array([1, np.nan, 3])
    np.testing.assert_array_equal(of_two("max", a, b), [np.nan, np.nan, 3])
    np.testing.assert_array_equal(of_two("min", a, b), [np.nan, np.nan, 2])


def test_powers_of_integers() -> None:
    a = np.array([2, 3, -1, -1, 1, 5, 0], np.int32)
    b = np.array([10, 0, -3, -2, -7, -1, -1], np.int32)
    np.testing.assert_array_equal(of_two("pow", a, b), [1024, 1, -1, 1, 1, 0, 0])


def test_round_is_half_to_even() -> None:
    values = np.array([0.5, 1.5, 2.5, -0.5, -1.5])
    np.testing.assert_array_equal(
        of_one(lambda x: call("round", x), values, FLOAT64), [0, 2, 2, -0.0, -2]
    )


# --- conversions ----------------------------------------------------------------------------------


def test_floats_to_integers_truncate_and_saturate() -> None:
    values = np.array([1.9, -1.9, 300, -300, np.nan, np.inf, -np.inf], np.float32)
    for dtype, expected in (
        (INT8, [1, -1, 127, -128, 0, 127, -128]),
        (UINT8, [1, 0, 255, 0, 0, 255, 0]),
        (INT4, [1, -1, 7, -8, 0, 7, -8]),
        (INT64, [1, -1, 300, -300, 0, 2**63 - 1, -(2**63)]),
    ):
        result = of_one(partial(cast, dtype=dtype), values, dtype)
        np.testing.assert_array_equal(result.astype(np.int64), expected, err_msg=str(dtype))


def test_integers_wrap_when_narrowed() -> None:
    values = np.array([200, -200, 9, 16], np.int32)
    for dtype, expected in ((INT8, [-56, 56, 9, 16]), (INT4, [-8, -8, -7, 0])):
        result = of_one(partial(cast, dtype=dtype), values, dtype)
        np.testing.assert_array_equal(result.astype(np.int64), expected, err_msg=str(dtype))


def test_to_bool_means_not_zero() -> None:
    values = np.array([0.5, 0.0, -0.0, np.nan])
    np.testing.assert_array_equal(
        of_one(lambda x: cast(x, BOOL), values, BOOL), [True, False, False, True]
    )


def test_narrow_floats_round_once() -> None:
    # Just above a tie of bfloat16, which a detour through float32 would turn into the tie.
    values = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8])
    result = of_one(lambda x: cast(x, BFLOAT16), values, BFLOAT16).astype(np.float64)
    np.testing.assert_array_equal(result, [1 + 2.0**-7, 1])


@pytest.mark.parametrize(
    ("name", "saturated", "overflowed"),
    [
        ("float8_e4m3fn", 448, np.nan),
        ("float8_e5m2", 57344, np.inf),
        ("float8_e5m2fnuz", 57344, np.nan),
    ],
)
def test_float8_saturates_on_demand(name: str, saturated: float, overflowed: float) -> None:
    target = dtypes.BY_NAME[name]
    values = np.array([1e6, 1.0], np.float32)
    kept = of_one(lambda x: cast(x, target), values, target).astype(np.float32)
    lost = of_one(lambda x: cast(x, target, saturate=False), values, target).astype(np.float32)
    np.testing.assert_array_equal(kept, [saturated, 1])
    np.testing.assert_array_equal(lost, [overflowed, 1])


def test_bits_are_kept() -> None:
    values = np.array([1.0, -0.0], np.float32)
    result = of_one(lambda x: cast(x, INT32, bits=True), values, INT32)
    np.testing.assert_array_equal(result, values.view(np.int32))


def test_wide_keeps_what_half_precision_would_round() -> None:
    x = Buffer("x", FLOAT16, ())
    kernel = pure(Buffer("y", FLOAT16, ()), (x,), lambda: cast(x[()].cast(FLOAT32) + 1e-5, FLOAT16))
    feed = {"x": np.array(1, np.float16)}
    assert interpret(kernel, feed, {})["y"] == 1
    assert interpret(kernel, feed, {}, wide=True)["y"] == 1 + float(np.float32(1e-5))


def test_low_precision_is_loaded_stored_and_chosen() -> None:
    x = Buffer("x", BFLOAT16, (N,))
    kernel = pure(Buffer("y", BFLOAT16, (N,)), (x,), lambda i: select(i.lt(1), x[i], 0.5))
    values = np.array([3, 4], ml_dtypes.bfloat16)
    result = interpret(kernel, {"x": values}, {"n": 2})["y"]
    assert result.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(result.astype(np.float32), [3, 0.5])
