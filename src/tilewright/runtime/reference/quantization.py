"""Quantisation: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear and quantised products.

Guarantees: round half to even, once, then saturate; integer sums are exact; the division has the
precision of the scale (float64 in wide mode); per-tensor, per-axis and blocked scales.
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
    scale = ((high - low) / 255).astype(x.dtype) if high > low else x.dtype.type(1 / 255)
    zero = np.clip(np.rint(-low / scale), 0, 255)
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
    if a.dtype not in (np.uint8, np.int8):  # float8: the product is taken of the plain values
        exact = np.matmul(
            a.astype(np.float64) - _along(a_zero.astype(np.float64), a.ndim, -2),
            b.astype(np.float64) - _along(b_zero.astype(np.float64), b.ndim, -1),
        )
    else:
        exact = np.matmul(_centered(a, a_zero, -2), _centered(b, b_zero, -1))
    left = _along(a_scale.astype(np.float64), a.ndim, -2)
    right = _along(b_scale.astype(np.float64), b.ndim, -1)
    out = _along(y_scale.astype(np.float64), exact.ndim, -2)
    zero = _along(y_zero, exact.ndim, -2)
    if y_zero.dtype in INTEGER_RANGES:
        return (_saturated(exact * (left * right / out), zero, y_zero.dtype),)
    return (cast(exact * (left * right / out) + zero.astype(np.float64), y_zero.dtype),)


@operator("QLinearConv", since=10)
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
    factor = x_scale.astype(np.float64) * w_scale.astype(np.float64) / y_scale.astype(np.float64)
    return (_saturated(exact * _along(factor, x.ndim, 1), y_zero, y_zero.dtype),)
