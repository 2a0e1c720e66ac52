"""Quantisation: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear and quantised products.

Guarantees: round half to even, once, then saturate; integer sums are exact; the division has the
precision of the scale (float64 in wide mode); per-tensor, per-axis and blocked scales. Products
are requantised by one rule (``requantize``), in float32 also in wide mode, as every kernel is.
Source: ONNX specification of QuantizeLinear-28, QLinearConv-10 and QLinearMatMul-21."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.runtime.reference.conv import convolve
from tilewright.runtime.reference.dtypes import (
    INTEGER_RANGES,
    TINY_INT,
    Array,
    accumulator,
    cast,
    dtype_of,
)
from tilewright.runtime.reference.registry import Call, Outputs, operator

_UINT8 = np.dtype(np.uint8)


def _spread(call: Call, parameter: Array, shape: tuple[int, ...]) -> Array:
    """A scale or zero point made broadcastable to the data."""
    if parameter.dtype in TINY_INT:
        parameter = parameter.astype(np.int8)
    if parameter.size == 1 and parameter.ndim <= 1:
        return parameter.reshape(())
    rank, axis = len(shape), call.integer("axis", 1)
    if not -rank <= axis < rank:
        raise call.error(f"axis {axis} is outside rank {rank}")
    axis %= rank
    block = call.integer("block_size", 0)
    if parameter.ndim == 1 and not block:
        if parameter.size != shape[axis]:
            raise call.error(f"{parameter.size} scales for axis {axis} of {shape}")
        return parameter.reshape([-1 if i == axis else 1 for i in range(rank)])
    blocks = -(-shape[axis] // block) if block > 0 else 0
    expected = (*shape[:axis], blocks, *shape[axis + 1 :])
    if parameter.shape != expected:
        raise call.error(f"scale {parameter.shape} of block_size={block} must be {expected}")
    which = np.arange(shape[axis]) // block
    return np.take(parameter, which, axis=axis)


def _saturated(values: Array, zero: Array | None, dtype: np.dtype[Any]) -> Array:
    """Round, add the zero point and saturate into an integer type; NaN gives the zero point."""
    low, high = INTEGER_RANGES[dtype]
    whole = np.rint(values.astype(np.float64))
    whole = np.where(np.isnan(whole), 0, whole)
    if zero is not None:
        whole = whole + zero.astype(np.float64)
    return np.clip(whole, low, high).astype(np.int64).astype(np.int32).astype(dtype)


@operator("QuantizeLinear", since=10, own_precision=True)
def quantize_linear(call: Call, x: Array, scale: Array, zero: Array | None = None) -> Outputs:
    output = call.integer("output_dtype", 0)
    target = zero.dtype if zero is not None else dtype_of(output) if output else _UINT8
    if zero is not None and output and dtype_of(output) != target:
        raise call.error(f"output_dtype {dtype_of(output)} differs from zero point {target}")
    code = call.integer("precision", 0)
    precision = scale.dtype if not code else dtype_of(code)
    if scale.dtype.kind in "iu":
        precision = np.dtype(np.float32)
    precision = call.float_dtype(precision)
    compute = accumulator(precision)
    divisor = _spread(call, scale, x.shape).astype(precision).astype(compute)
    ratio = (x.astype(precision).astype(compute) / divisor).astype(precision).astype(compute)
    shift = None if zero is None else _spread(call, zero, x.shape)
    if target in INTEGER_RANGES:
        return (_saturated(ratio, shift, target),)
    if shift is not None:
        ratio = ratio + shift.astype(compute)
    return (cast(ratio, target, saturate=bool(call.integer("saturate", 1))),)


@operator("DequantizeLinear", since=10, own_precision=True)
def dequantize_linear(call: Call, x: Array, scale: Array, zero: Array | None = None) -> Outputs:
    output = call.integer("output_dtype", 0)
    target = call.float_dtype(dtype_of(output) if output else scale.dtype)
    whole = x.dtype.kind in "iu" or x.dtype in TINY_INT
    compute = np.dtype(np.float64) if call.wide or x.dtype == np.int32 else np.dtype(np.float32)
    values = x.astype(np.float64) if x.dtype == np.int32 else _plain(x).astype(compute)
    if zero is not None:
        if whole and zero.dtype != x.dtype:
            raise call.error(f"x {x.dtype} and zero point {zero.dtype} differ")
        values = values - _plain(_spread(call, zero, x.shape)).astype(compute)
    result = values * _spread(call, scale, x.shape).astype(compute)
    return (cast(result, target, saturate=False),)


def _plain(x: Array) -> Array:
    return x.astype(np.int8) if x.dtype in TINY_INT else x


@operator("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(_call: Call, x: Array) -> Outputs:
    low, high = np.minimum(0, np.min(x, initial=0)), np.maximum(0, np.max(x, initial=0))
    # A tensor of zeros has no range; the step of a NaN is NaN, and all is 0 then.
    scale = x.dtype.type(1 / 255) if high == low else ((high - low) / 255).astype(x.dtype)
    zero = np.nan_to_num(np.clip(np.rint(-low / scale), 0, 255))
    y = _saturated(x / scale, zero, _UINT8)
    return y, np.asarray(scale), zero.astype(np.uint8)


def _centered(x: Array, zero: Array | None, axis: int) -> Array:
    """x minus its zero point in float64, where every product sum of 8-bit data is exact."""
    values = x.astype(np.float64)
    if zero is None:
        return values
    return values - _along(zero.astype(np.float64), x.ndim, axis)


def _along(parameter: Array, rank: int, axis: int) -> Array:
    """A 1-D parameter laid along an axis counted from the front; others as they are."""
    if parameter.size == 1:
        return parameter.reshape(())
    if parameter.ndim == 1 and rank > 1:
        return parameter.reshape([-1 if i == axis % rank else 1 for i in range(rank)])
    return parameter


def _as_int32(exact: Array) -> Array:
    return exact.astype(np.int64).astype(np.int32)


@operator("MatMulInteger", since=10)
def matmul_integer(
    _call: Call,
    a: Array,
    b: Array,
    a_zero: Array | None = None,
    b_zero: Array | None = None,
) -> Outputs:
    return (_as_int32(np.matmul(_centered(a, a_zero, -2), _centered(b, b_zero, -1))),)


@operator("ConvInteger", since=10)
def conv_integer(
    call: Call, x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None
) -> Outputs:
    return (_as_int32(convolve(call, _centered(x, x_zero, 1), _centered(w, w_zero, 0))),)


def requantize(total: Array, factor: Array, zero: Array, dtype: np.dtype[Any]) -> Array:
    """The one rule: int32 sums times a float32 factor, half to even, plus the zero point, clamped.

    Args:
        total: exact int32 sums.
        factor: float32, broadcastable to the sums.
        zero: zero point, broadcastable to the sums.
        dtype: an 8- or 16-bit integer type.
    """
    low, high = INTEGER_RANGES[dtype]
    shift = zero.astype(np.float32)
    value = total.astype(np.float32) * factor.astype(np.float32)
    value = np.where(value < high - shift, value, high - shift)
    value = np.where(value > low - shift, value, low - shift)
    return (np.rint(value).astype(np.int32) + zero.astype(np.int32)).astype(dtype)


def combined_scale(left: Array, right: Array, out: Array | None = None) -> Array:
    """``left * right / out`` in float32, rounded after each operation."""
    product = left.astype(np.float32) * right.astype(np.float32)
    return np.asarray(product if out is None else product / out.astype(np.float32))


@operator("QLinearMatMul", since=10, own_precision=True)
def qlinear_matmul(
    _call: Call,
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    y_scale: Array,
    y_zero: Array,
) -> Outputs:
    exact = np.matmul(_centered(a, a_zero, -2), _centered(b, b_zero, -1))
    left, right = _along(a_scale, a.ndim, -2), _along(b_scale, b.ndim, -1)
    out, zero = _along(y_scale, exact.ndim, -2), _along(y_zero, exact.ndim, -2)
    if y_zero.dtype in INTEGER_RANGES:
        factor = combined_scale(left, right, out)
        return (requantize(_as_int32(exact), factor, zero, y_zero.dtype),)
    wide = left.astype(np.float64) * right.astype(np.float64) / out.astype(np.float64)
    return (cast(exact * wide + zero.astype(np.float64), y_zero.dtype),)


@operator("QLinearConv", since=10, own_precision=True)
def qlinear_conv(
    call: Call,
    x: Array,
    x_scale: Array,
    x_zero: Array,
    w: Array,
    w_scale: Array,
    w_zero: Array,
    y_scale: Array,
    y_zero: Array,
    bias: Array | None = None,
) -> Outputs:
    exact = convolve(call, _centered(x, x_zero, 1), _centered(w, w_zero, 0))
    if bias is not None:
        exact = exact + bias.astype(np.float64).reshape((-1,) + (1,) * (x.ndim - 2))
    factor = _along(combined_scale(x_scale, w_scale, y_scale), x.ndim, 1)
    return (requantize(_as_int32(exact), factor, y_zero.reshape(()), y_zero.dtype),)


@operator("QGemm", "com.microsoft", own_precision=True)
def qgemm(
    call: Call,
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    bias: Array | None = None,
    y_scale: Array | None = None,
    y_zero: Array | None = None,
) -> Outputs:
    columns = 0 if call.integer("transB", 0) else 1
    left, right = _centered(a, a_zero, -2), _centered(b, b_zero, columns)
    exact = np.matmul(
        left.T if call.integer("transA", 0) else left, right.T if columns == 0 else right
    )
    total = _as_int32(exact if bias is None else exact + bias.astype(np.float64))
    alpha = np.asarray(call.number("alpha", 1.0), np.float32)
    scale = np.asarray(alpha * a_scale.astype(np.float32), np.float32).reshape(())
    factor = combined_scale(scale, b_scale.reshape(-1), y_scale)
    if y_zero is None:
        return (total.astype(np.float32) * factor,)
    return (requantize(total, factor, y_zero.reshape(()), y_zero.dtype),)
