"""Operators of the domain ``tilewright`` that compute nonlinear functions in int32 alone.

    y = IntegerSoftmax(x)          x, y: 8-bit integers or int16, each with a scale and a zero point
Attributes: ``x_scale``, ``x_zero``, ``y_scale``, ``y_zero``, ``y_type`` (an ONNX type's code);
``axis`` of IntegerSoftmax and IntegerLayerNormalization; ``size``, ``norm_bits``, ``gamma_bits``,
``epsilon`` of the latter, whose inputs gamma and beta are fixed point (``weights_of``).
Guarantees: see fixed_point; the kernels give the same integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.runtime.reference import fixed_point
from tilewright.runtime.reference.dtypes import INTEGER_RANGES, Array, dtype_of
from tilewright.runtime.reference.fixed_point import Affine, Integers, Scales, affine_bits
from tilewright.runtime.reference.registry import Call, Outputs, operator

DOMAIN = "tilewright"
ELEMENTWISE: Mapping[str, Callable[[Integers, Any, Scales], Any]] = {
    "IntegerExp": fixed_point.exponential,
    "IntegerSqrt": fixed_point.square_root,
    "IntegerSigmoid": fixed_point.sigmoid,
    "IntegerGelu": fixed_point.gelu,
}
_TYPES = {np.dtype(np.int8): 9, np.dtype(np.uint8): 9, np.dtype(np.int16): 16}
_LARGEST = 11_000.0  # of a value, so that it fits 2**29 in Q15 after a product with log2(e)


class ArrayIntegers:
    """``Integers`` of NumPy arrays of a signed type."""

    def right(self, x: Any, count: Any) -> Any:
        return np.right_shift(x, count)

    def left(self, x: Any, count: Any) -> Any:
        return np.left_shift(x, count)

    def low(self, x: Any, bits: int) -> Any:
        return np.bitwise_and(x, (1 << bits) - 1)

    def less(self, x: Any, y: Any) -> Any:
        return np.less(x, y)

    def choose(self, condition: Any, x: Any, y: Any) -> Any:
        return np.where(condition, x, y)

    def lesser(self, x: Any, y: Any) -> Any:
        return np.minimum(x, y)

    def greater(self, x: Any, y: Any) -> Any:
        return np.maximum(x, y)

    def over(self, x: Any, divisor: int) -> Any:
        return x // divisor


@dataclass(frozen=True, slots=True)
class Rows:
    """Reduces arrays along axes."""

    values: Array
    axes: tuple[int, ...]

    def reduce(self, combiner: str, change: Callable[[Any], Any]) -> Array:
        """One integer a row, as many dims as before."""
        changed = change(self.values)
        if combiner == "max":
            found: Array = np.max(changed, axis=self.axes, keepdims=True)
            return found
        return np.asarray(np.sum(changed, axis=self.axes, keepdims=True, dtype=changed.dtype))


def reason_against(
    op_type: str, x: np.dtype[Any], y: np.dtype[Any], scales: Scales, x_zero: int
) -> str | None:
    """Why these types and scales have no integer function, or None."""
    if x not in _TYPES:
        return f"the input is {x}: int8, uint8 and int16 are known"
    if y not in INTEGER_RANGES:
        return f"the result is {y}: integers of at most 16 bits are known"
    if x == np.int16 and x_zero:
        return "an input of int16 has a zero point"
    if not (0 < scales.x_scale < math.inf and 0 < scales.y_scale < math.inf):
        return "a scale is no positive number"
    if scales.x_scale * 2.0 ** (scales.x_bits - 1) > _LARGEST:
        return f"values beyond {_LARGEST:g} do not fit"
    if op_type == "IntegerSqrt" and fixed_point.sqrt_digits(scales) < 0:
        return "roots are beyond 2**15 steps of the result"
    return None


def scales_of(attributes: Mapping[str, Any], x: np.dtype[Any]) -> Scales:
    """The parameters of a call."""
    low, high = INTEGER_RANGES[dtype_of(int(attributes["y_type"]))]
    return Scales(
        x_scale=float(attributes["x_scale"]),
        y_scale=float(attributes["y_scale"]),
        x_bits=_TYPES.get(x, 16),
        zero=int(attributes["y_zero"]),
        low=low,
        high=high,
    )


def weights_of(
    gamma: Array, beta: Array, y_scale: float, size: int
) -> tuple[Array, Array, Affine] | None:
    """Gamma and beta of a layer normalisation as int32, and their bits; None where none fit."""
    g, b = gamma.astype(np.float64) / y_scale, beta.astype(np.float64) / y_scale
    affine = affine_bits(size, float(np.abs(g).max(initial=0)), float(np.abs(b).max(initial=0)))
    if affine is None:
        return None
    whole = np.rint(np.ldexp(g, affine.gamma)), np.rint(np.ldexp(b, affine.norm + affine.gamma))
    return whole[0].astype(np.int32), whole[1].astype(np.int32), affine


def affine_of(attributes: Mapping[str, Any]) -> Affine:
    """The bits that a call of IntegerLayerNormalization states."""
    return Affine(norm=int(attributes["norm_bits"]), gamma=int(attributes["gamma_bits"]))


def _centred(call: Call, x: Array) -> Array:
    return x.astype(np.int32) - np.int32(call.integer("x_zero", 0))


def _result(call: Call, values: Array) -> Outputs:
    return (values.astype(dtype_of(call.integer("y_type"))),)


def _define(op_type: str, function: Callable[[Integers, Any, Scales], Any]) -> None:
    @operator(op_type, DOMAIN, own_precision=True)
    def evaluate(call: Call, x: Array) -> Outputs:
        scales = scales_of(call.attributes, x.dtype)
        return _result(call, function(ArrayIntegers(), _centred(call, x), scales))


for _op_type, _function in ELEMENTWISE.items():
    _define(_op_type, _function)


@operator("IntegerSoftmax", DOMAIN, own_precision=True)
def integer_softmax(call: Call, x: Array) -> Outputs:
    axis = call.integer("axis", -1) % x.ndim
    values = _centred(call, x)
    if not values.size:
        return _result(call, values)
    row = Rows(values, (axis,))
    scales = scales_of(call.attributes, x.dtype)
    found = fixed_point.softmax(ArrayIntegers(), values, row.reduce, x.shape[axis], scales)
    return _result(call, found)


@operator("IntegerLayerNormalization", DOMAIN, own_precision=True)
def integer_layer_normalization(call: Call, x: Array, gamma: Array, beta: Array) -> Outputs:
    axis = call.integer("axis", -1) % x.ndim
    values = _centred(call, x)
    if not values.size:
        return _result(call, values)
    row = Rows(values, tuple(range(axis, x.ndim)))
    found = fixed_point.layer_norm(
        ArrayIntegers(),
        values,
        row.reduce,
        call.integer("size"),
        scales_of(call.attributes, x.dtype),
        affine_of(call.attributes),
        (gamma, beta),
        call.number("epsilon"),
    )
    return _result(call, found)
