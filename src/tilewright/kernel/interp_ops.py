"""What each scalar operation and conversion means, in NumPy.

Input -> Output: arrays that broadcast against each other -> the array of results.
Guarantees: what ``kernel.ops`` and ``kernel.ir.Cast`` state; a conversion rounds once.
Not here: iteration, loads, reductions (kernel.interp).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, DType
from tilewright.runtime.reference.dtypes import cast as cast_exactly
from tilewright.runtime.reference.math import erf

Array = npt.NDArray[Any]

_WIDENED = (FLOAT32, FLOAT16, BFLOAT16)
_NATIVE_FLOATS = (FLOAT16, FLOAT32, FLOAT64)


def storage(dtype: DType, wide: bool) -> np.dtype[Any]:
    """The NumPy type that holds an element type; ``wide`` keeps 16 and 32-bit floats as float64."""
    return np.dtype(np.float64) if wide and dtype in _WIDENED else dtype.numpy


def literal(value: float | bool, dtype: DType, wide: bool) -> Array:
    """A constant, rounded to its type even where it is then held wider."""
    exact = np.asarray(value, object).astype(dtype.numpy)
    return np.asarray(exact.astype(storage(dtype, wide)))


def convert(array: Array, source: DType, target: DType, saturate: bool, wide: bool) -> Array:
    """Converts as ``ir.Cast`` says; the array is held as ``storage(source, wide)``."""
    plain = _plain(array, source)
    held = storage(target, wide)
    if target is BOOL:
        return np.asarray(plain != 0)
    if target.is_integer:
        return _saturate(plain, target) if source.is_float else _wrap(plain, target)
    if target in _NATIVE_FLOATS or held == np.float64:
        return plain.astype(held)
    return cast_exactly(plain, held, saturate=saturate, round_mode="nearest")


def reinterpret(array: Array, source: DType, target: DType, wide: bool) -> Array:
    """The same bits as another type."""
    exact = array.astype(source.numpy) if array.dtype != source.numpy else array
    return (
        np.ascontiguousarray(exact)
        .reshape(exact.shape)
        .view(target.numpy)
        .astype(storage(target, wide))
    )


def _plain(array: Array, source: DType) -> Array:
    """The same values in a type that NumPy itself computes with."""
    if source.is_integer and source.bits < 8:
        return array.astype(np.int8)
    if source.is_float and array.dtype not in (np.float16, np.float32, np.float64):
        return array.astype(np.float32)
    return array


def _saturate(values: Array, target: DType) -> Array:
    low, high = integer_range(target)
    whole = np.trunc(values.astype(np.float64))
    above, below = whole >= float(high) + 1, whole <= float(low)
    inside = np.where(above | below | np.isnan(whole), 0.0, whole)
    held = _holder(target)
    result = np.where(above, held.type(high), np.where(below, held.type(low), inside.astype(held)))
    return result.astype(target.numpy)


def _wrap(values: Array, target: DType) -> Array:
    if target.bits >= 8:
        return values.astype(target.numpy)
    kept = values.astype(np.int64) & (2**target.bits - 1)
    if target.is_signed:
        kept = np.where(kept >= 2 ** (target.bits - 1), kept - 2**target.bits, kept)
    return np.asarray(kept.astype(_holder(target)).astype(target.numpy))


def _holder(dtype: DType) -> np.dtype[Any]:
    if dtype.bits >= 8:
        return dtype.numpy
    return np.dtype(np.int8 if dtype.is_signed else np.uint8)


def integer_range(dtype: DType) -> tuple[int, int]:
    """The smallest and largest value of an integer type."""
    if dtype.is_signed:
        return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1
    return 0, 2**dtype.bits - 1


# --- operations -----------------------------------------------------------------------------------


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.divide(a, b)
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient = np.floor_divide(a, safe)
    if a.dtype.kind == "i":
        inexact = np.not_equal(quotient * safe, a)
        quotient = quotient + (inexact & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(b == 0, a.dtype.type(0), quotient)


def _remainder(function: Callable[..., Array]) -> Callable[[Array, Array], Array]:
    def apply(a: Array, b: Array) -> Array:
        if a.dtype.kind == "f":
            return function(a, b)
        safe = np.where(b == 0, b.dtype.type(1), b)
        return np.where(b == 0, a.dtype.type(0), function(a, safe))

    return apply


def _power(a: Array, b: Array) -> Array:
    """Integer powers wrap; a negative exponent gives the truncated reciprocal (1/0 gives 0)."""
    if a.dtype.kind == "f":
        # With one exponent for all, NumPy takes roots, which differ from powers at -inf and -0.
        exponents = np.broadcast_to(b, np.broadcast_shapes(a.shape, b.shape)).copy()
        return np.asarray(np.power(a, exponents))
    if a.dtype.kind == "u":
        return np.asarray(np.power(a, b))
    positive = np.power(a, np.maximum(b, b.dtype.type(0)))
    odd = (b & b.dtype.type(1)) != 0
    unit = np.where(a == 1, 1, np.where(a == -1, np.where(odd, -1, 1), 0)).astype(a.dtype)
    return np.where(b < 0, unit, positive)


def _shift(function: Callable[..., Array]) -> Callable[[Array, Array], Array]:
    def apply(a: Array, b: Array) -> Array:
        outside = (b < 0) | (b >= a.dtype.itemsize * 8)
        shifted = function(a, np.where(outside, b.dtype.type(0), b))
        return np.where(outside, a.dtype.type(0), shifted)

    return apply


def _sigmoid(x: Array) -> Array:
    decay = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + decay), decay / (1 + decay))


def _gelu(x: Array) -> Array:
    half, root = x.dtype.type(0.5), x.dtype.type(math.sqrt(0.5))
    return np.asarray(half * x * (1 + erf(x * root)))


def _gelu_tanh(x: Array) -> Array:
    half, scale = x.dtype.type(0.5), x.dtype.type(math.sqrt(2 / math.pi))
    inner = scale * (x + x.dtype.type(0.044715) * (x * x * x))
    return np.asarray(half * x * (1 + np.tanh(inner)))


def _not(x: Array) -> Array:
    return np.logical_not(x) if x.dtype == np.bool_ else np.invert(x)


NUMPY_OPS: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("sqrt", "exp", "log", "log1p", "expm1")},
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan")},
    **{f"a{name}h": getattr(np, f"arc{name}h") for name in ("sin", "cos", "tan")},
    **{name: getattr(np, name) for name in ("floor", "ceil", "trunc", "sign", "isnan", "isinf")},
    "erf": erf,
    "sigmoid": _sigmoid,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "round": np.rint,
    "neg": np.negative,
    "abs": np.abs,
    "not": _not,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divide,
    "mod": _remainder(np.mod),
    "fmod": _remainder(np.fmod),
    "pow": _power,
    "min": np.minimum,
    "max": np.maximum,
    "atan2": np.arctan2,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": _shift(np.left_shift),
    "shr": _shift(np.right_shift),
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}

NUMPY_COMBINERS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.logical_and,
    "or": np.logical_or,
}
