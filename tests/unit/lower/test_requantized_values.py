"""Arithmetic between fused quantised operators is shortened, and gives the same bits."""

import numpy as np
import pytest

from tilewright.core.dtypes import FLOAT32, INT8, INT32, UINT8, DType
from tilewright.core.shape import Dim
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Call,
    Expr,
    Kernel,
    Stage,
    Store,
    call,
    constant,
    walk,
)
from tilewright.lower.quantized import nearest
from tilewright.lower.requantized_values import simplify

COUNT = 4001
I = Axis("i0", Dim.of(COUNT))
ACC = Buffer("acc", INT32, (Dim.of(COUNT),))


def kernel(value: Expr) -> Kernel:
    out = Buffer("out", value.dtype, (Dim.of(COUNT),))
    stage = Stage((I,), (Store("out", (I.var,), value),))
    return Kernel(name="test", inputs=(ACC,), outputs=(out,), stages=(stage,))


def ops(made: Kernel) -> list[str]:
    return [node.op for node in walk(*made.roots) if isinstance(node, Call)]


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize(("dtype", "zero"), [(UINT8, 0), (UINT8, 131), (INT8, -7)])
def test_what_is_quantised_and_dequantised_stays_a_float(
    dtype: DType, zero: int, typed: bool
) -> None:
    point = constant(zero, dtype)
    q = nearest(ACC[I.var].cast(FLOAT32) * 0.25, point, dtype)
    own = point.cast(FLOAT32) if typed else constant(float(zero), FLOAT32)
    value = (q.cast(FLOAT32) - own) * 0.5 if zero else q.cast(FLOAT32) * 0.5
    before, after = kernel(value), simplify(kernel(value))
    assert "add" not in ops(after)
    assert "sub" not in ops(after)
    feeds = {"acc": np.arange(-2000, 2001, dtype=np.int32)}
    np.testing.assert_array_equal(
        interpret(before, feeds, {})["out"], interpret(after, feeds, {})["out"]
    )


def test_a_test_for_nan_goes_where_there_is_none() -> None:
    value = ACC[I.var].cast(UINT8).cast(FLOAT32) * 0.25
    made = simplify(kernel(call("select", call("isnan", value), 0.0, value)))
    assert "isnan" not in ops(made)
    unknown = value / ACC[I.var].cast(FLOAT32)
    kept = simplify(kernel(call("select", call("isnan", unknown), 0.0, unknown)))
    assert "isnan" in ops(kept)


def test_integers_that_wrap_are_left_alone() -> None:
    whole = call("round", ACC[I.var].cast(FLOAT32)).cast(INT32).cast(UINT8).cast(FLOAT32)
    assert simplify(kernel(whole)).roots == kernel(whole).roots
