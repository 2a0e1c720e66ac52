"""Bounds hold, and say no more than is known."""

import math

import pytest

from tilewright.core.dtypes import FLOAT32, INT8, INT32, UINT8
from tilewright.kernel.bounds import Bounds, bounds
from tilewright.kernel.ir import Expr, call, cast, constant, load, select

X = load("x", FLOAT32, ())
BYTE = load("q", UINT8, ()).cast(FLOAT32)


def clamped(value: Expr, low: float, high: float) -> Expr:
    value = select(value.lt(high), value, high)
    return select(value.gt(low), value, low)


def test_a_clamped_number_is_no_nan() -> None:
    assert bounds(clamped(X, -3.0, 4.0)) == Bounds(-3.0, 4.0, maybe_nan=False)
    assert bounds(select(X.lt(4.0), X, 4.0)) == Bounds(-math.inf, 4.0, maybe_nan=False)
    assert bounds(X).maybe_nan


def test_arithmetic_of_bytes_is_bounded() -> None:
    value = (BYTE - 128.0) * 0.5 + load("p", INT8, ()).cast(FLOAT32) / 2.0
    found = bounds(value)
    assert found.is_finite
    assert found.low <= -128 * 0.5 - 64
    assert found.high >= 127 * 0.5 + 63.5
    assert found.high < 130


@pytest.mark.parametrize(
    "value",
    [
        X + 1.0,
        BYTE * X,
        call("exp", BYTE),
        BYTE / load("y", FLOAT32, ()),
        BYTE / 0.0,
        BYTE * 1e38 * 1e38,
        cast(load("n", INT32, ()), FLOAT32, bits=True),
        constant(math.nan, FLOAT32) + 0.0,
    ],
)
def test_what_may_be_anything_has_no_bounds(value: Expr) -> None:
    assert not bounds(value).is_finite
