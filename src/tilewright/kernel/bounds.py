"""Bounds of what an expression computes, from types, constants and choices in it.

Input -> Output: an expression -> ``Bounds``.
Guarantees: never too narrow, rounding included; without ``maybe_nan`` the value is a number.
Not here: bounds of indices (kernel.ranges).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from tilewright.core.dtypes import BOOL, DType
from tilewright.kernel.ir import Call, Cast, Const, Expr

_LARGE = 1e30  # beyond this, sums and products may overflow float32
_MAX_HEIGHT = 40
_LEAST_GELU = -0.16998
_SLACK = 1 + 2.0**-20  # more than what rounding adds


@dataclass(frozen=True, slots=True)
class Bounds:
    """``low <= value <= high``, or the value is NaN where it may be."""

    low: float
    high: float
    maybe_nan: bool = True

    @property
    def is_finite(self) -> bool:
        """A number of moderate size."""
        return not self.maybe_nan and self.low > -_LARGE and self.high < _LARGE


ANYTHING = Bounds(-math.inf, math.inf)


@lru_cache(maxsize=1 << 14)
def bounds(expr: Expr) -> Bounds:
    """Bounds of a value; ``ANYTHING`` where nothing is known."""
    if isinstance(expr, Const):
        value = float(expr.value)
        return ANYTHING if math.isnan(value) else Bounds(value, value, maybe_nan=False)
    if expr.height > _MAX_HEIGHT:
        return _of_type(expr.dtype)
    if isinstance(expr, Cast) and not expr.bits and expr.dtype.is_float:
        found = bounds(expr.arg)
        return _widened(found.low, found.high, found) if expr.dtype.bits >= _FLOAT else ANYTHING
    if isinstance(expr, Call):
        return _call(expr)
    return _of_type(expr.dtype)


_FLOAT = 32


def _of_type(dtype: DType) -> Bounds:
    if dtype is BOOL or not dtype.is_integer:
        return ANYTHING
    bits = dtype.bits - (1 if dtype.is_signed else 0)
    return Bounds(-float(1 << bits) if dtype.is_signed else 0.0, float(1 << bits), maybe_nan=False)


def _call(expr: Call) -> Bounds:
    if not expr.dtype.is_float:
        return _of_type(expr.dtype)
    if expr.op == "select":
        return _select(expr)
    if expr.op == "gelu":
        found = bounds(expr.args[0])
        return Bounds(_LEAST_GELU, max(0.0, found.high * _SLACK), not found.is_finite)
    if expr.op not in ("add", "sub", "mul", "div", "neg", "round"):
        return ANYTHING
    args = [bounds(arg) for arg in expr.args]
    if expr.op in ("mul", "div") and isinstance(expr.args[1], Const) and args[1].is_finite:
        return _scaled(args[0], float(expr.args[1].value), expr.op)
    if not all(arg.is_finite for arg in args):
        return ANYTHING
    left, right = args[0], args[-1]
    match expr.op:
        case "neg":
            return Bounds(-left.high, -left.low, maybe_nan=False)
        case "round":
            return Bounds(left.low - 1, left.high + 1, maybe_nan=False)
        case "add":
            ends = [left.low + right.low, left.high + right.high]
        case "sub":
            ends = [left.low - right.high, left.high - right.low]
        case "mul":
            ends = [x * y for x in (left.low, left.high) for y in (right.low, right.high)]
        case _:
            if not isinstance(expr.args[1], Const) or abs(right.low) < 1 / _LARGE:
                return ANYTHING
            ends = [left.low / right.low, left.high / right.low]
    return _widened(min(ends), max(ends), Bounds(min(ends), max(ends), maybe_nan=False))


def _scaled(found: Bounds, factor: float, op: str) -> Bounds:
    """Of a product with a number or a quotient by it, of what may be infinite or NaN too."""
    if not 1 / _LARGE < abs(factor) < _LARGE:
        return ANYTHING
    ends = [end * factor if op == "mul" else end / factor for end in (found.low, found.high)]
    ends = [end if abs(end) < _LARGE else math.copysign(math.inf, end) for end in ends]
    return _widened(min(ends), max(ends), found)


def _widened(low: float, high: float, like: Bounds) -> Bounds:
    """With room for rounding."""
    low, high = min(low * _SLACK, low / _SLACK), max(high * _SLACK, high / _SLACK)
    return Bounds(low, high, like.maybe_nan)


def _select(expr: Call) -> Bounds:
    """``select(x < c, x, c)`` is at most c, and no NaN; another choice is one or the other."""
    test, value, other = expr.args
    found = bounds(value)
    if isinstance(test, Call) and test.args == (value, other) and isinstance(other, Const):
        limit = bounds(other)
        if test.op == "lt" and not limit.maybe_nan:
            return Bounds(found.low, min(found.high, limit.high), maybe_nan=False)
        if test.op == "gt" and not limit.maybe_nan:
            return Bounds(max(found.low, limit.low), found.high, maybe_nan=False)
    rest = bounds(other)
    maybe = found.maybe_nan or rest.maybe_nan
    return Bounds(min(found.low, rest.low), max(found.high, rest.high), maybe)
