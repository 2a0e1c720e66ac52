"""Binary, variadic and logical element-wise operators.

Guarantees: integers wrap, integer division truncates and gives 0 for a zero divisor; Min, Max and
Clip keep NaN.
Not here: unary functions and activations (math)."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from tilewright.runtime.reference import dtypes
from tilewright.runtime.reference.dtypes import Array
from tilewright.runtime.reference.registry import Call, Outputs, operator


def _register_binary(name: str, function: Callable[[Any, Any], Any]) -> None:
    def run(_call: Call, a: Array, b: Array) -> Outputs:
        return (function(a, b),)

    operator(name)(run)


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return np.asarray(np.divide(a, b))
    quotient = np.floor_divide(a, b)
    remainder = a - quotient * b
    quotient = quotient + ((remainder != 0) & ((a < 0) != (b < 0))).astype(a.dtype)
    return np.asarray(np.where(b == 0, a.dtype.type(0), quotient))


def _equal(a: Array, b: Array) -> Array:
    return np.asarray(a == b, bool)


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _divide,
    "Equal": _equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
}
for _name, _function in _BINARY.items():
    _register_binary(_name, _function)


@operator("Not")
def logical_not(_call: Call, x: Array) -> Outputs:
    return (np.logical_not(x),)


@operator("BitwiseNot")
def bitwise_not(_call: Call, x: Array) -> Outputs:
    return (np.bitwise_not(x),)


@operator("BitShift")
def bit_shift(call: Call, x: Array, y: Array) -> Outputs:
    direction = call.choice("direction", "", ("LEFT", "RIGHT"))
    bits = x.dtype.itemsize * 8
    inside = (y >= 0) & (y < bits)
    amount = np.where(inside, y, 0).astype(x.dtype)
    if direction == "LEFT":
        return (np.where(inside, np.left_shift(x, amount), x.dtype.type(0)),)
    fill = np.where(x < 0, -1, 0).astype(x.dtype)
    return (np.where(inside, np.right_shift(x, amount), fill),)


@operator("Mod")
def modulo(call: Call, a: Array, b: Array) -> Outputs:
    return (np.fmod(a, b) if call.integer("fmod", 0) else np.mod(a, b),)


@operator("Pow", own_precision=True)
def power(_call: Call, x: Array, y: Array) -> Outputs:
    """The result has the type of the base; the exponent may be of any numeric type."""
    base = x.astype(dtypes.accumulator(x.dtype))
    exponent = y.astype(dtypes.accumulator(y.dtype))
    if base.dtype.kind in "iu" and exponent.dtype.kind in "iu":
        if exponent.dtype.kind == "i" and np.any(exponent < 0):
            result = np.power(base.astype(np.float64), exponent)
        else:
            result = np.power(base, exponent.astype(base.dtype))
    elif base.dtype.kind in "iu":
        result = np.power(base.astype(np.float64), exponent)
    else:
        if exponent.dtype.kind in "iu" and base.dtype == np.float32:
            base = base.astype(np.float64)
        result = np.power(base, exponent)
    return (np.asarray(result).astype(x.dtype),)


@operator("Where", own_precision=True)
def where(_call: Call, condition: Array, x: Array, y: Array) -> Outputs:
    return (np.where(condition, x, y),)


@operator("PRelu")
def prelu(_call: Call, x: Array, slope: Array) -> Outputs:
    return (np.where(x < 0, slope * x, x).astype(x.dtype),)


def _register_variadic(name: str, function: Callable[[Any, Any], Any]) -> None:
    def run(call: Call, *inputs: Array) -> Outputs:
        if not inputs:
            raise call.error("needs at least one input")
        return (reduce(function, inputs),)

    operator(name)(run)


_register_variadic("Sum", np.add)
_register_variadic("Max", np.maximum)
_register_variadic("Min", np.minimum)


@operator("Mean")
def mean(call: Call, *inputs: Array) -> Outputs:
    if not inputs:
        raise call.error("needs at least one input")
    return (reduce(np.add, inputs) / len(inputs),)


def _clip(x: Array, low: Any, high: Any) -> Array:
    if low is not None:
        x = np.maximum(x, np.asarray(low).reshape(()).astype(x.dtype))
    if high is not None:
        x = np.minimum(x, np.asarray(high).reshape(()).astype(x.dtype))
    return x


@operator("Clip")
def clip_attributes(call: Call, x: Array) -> Outputs:
    return (_clip(x, call.get("min"), call.get("max")),)


@operator("Clip", since=11)
def clip(_call: Call, x: Array, low: Array | None = None, high: Array | None = None) -> Outputs:
    return (_clip(x, low, high),)
