"""Scales and zero points of ranges, and what quantisation makes of numbers.

Input -> Output: (low, high) or weights -> ``Affine``; numbers -> integers -> numbers.
    scale = (high - low) / (qmax - qmin)   zero = clamp(round(qmin - low / scale))
    q = clamp(round(x / scale) + zero)     x' = (q - zero) * scale
    float8: q = float8(clamp(x / scale)), without a zero point
Guarantees: the range includes 0, which is exact; half to even; a range of nothing has scale 1;
symmetric integers are -127 .. 127, and numbers of float8 (e4m3) -448 .. 448.
Not here: which range (thresholds), the ONNX nodes (graph.insert_qdq).
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tilewright.graph.insert_qdq import Affine

Array = npt.NDArray[Any]

FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
_LARGEST = {np.dtype(np.int8): 127.0, FLOAT8: 448.0}
_LEAST_SCALE = float(np.finfo(np.float32).tiny)  # a reciprocal of less is not finite


def affine(low: float, high: float, dtype: npt.DTypeLike = np.uint8) -> Affine:
    """Parameters of a range of one tensor."""
    limits = np.iinfo(np.dtype(dtype))
    low, high = min(low, 0.0), max(high, 0.0)
    scale = _guarded((high - low) / (limits.max - limits.min))
    zero = int(np.clip(np.rint(limits.min - low / float(scale)), limits.min, limits.max))
    return Affine(scale=scale, zero=np.array(zero, dtype))


def symmetric(
    largest: Array | float,
    axis: int | None = None,
    block: int = 0,
    dtype: npt.DTypeLike = np.int8,
) -> Affine:
    """Parameters of int8 or float8 with zero point 0 from the largest magnitudes."""
    scale = _guarded(np.asarray(largest, np.float64) / _LARGEST[np.dtype(dtype)])
    return Affine(scale=scale, zero=np.zeros(scale.shape, dtype), axis=axis, block=block)


def _guarded(scale: Array | float) -> Array:
    narrow: Array = np.asarray(scale, np.float32)
    return np.where(narrow < _LEAST_SCALE, np.float32(1), narrow).astype(np.float32)


def quantize_weights(
    weights: Array, axis: int | None, block: int = 0, dtype: npt.DTypeLike = np.int8
) -> tuple[Array, Affine]:
    """Integers of weights by their largest magnitude.

    Args:
        weights: float32.
        axis: one scale an index of it, or one for each ``block`` along it; None: one scale.
        block: elements of the axis that share a scale; 0: see ``axis``.
    """
    params = symmetric(largest_magnitude(weights, axis, block), axis, block, dtype)
    return quantize(weights, params), params


def largest_magnitude(weights: Array, axis: int | None, block: int = 0) -> Array:
    """By index of an axis, by block of it, or of all."""
    size = np.abs(weights)
    if axis is None:
        return np.asarray(size.max(initial=0))
    if block:
        starts = np.arange(0, weights.shape[axis], block)
        return np.maximum.reduceat(size, starts, axis=axis)
    others = tuple(dim for dim in range(weights.ndim) if dim != axis)
    return np.asarray(size.max(axis=others, initial=0))


def quantize(values: Array, params: Affine) -> Array:
    """Integers, or numbers of float8, as QuantizeLinear gives them."""
    scale, zero = spread(params, values.shape)
    if params.zero.dtype == FLOAT8:
        most = np.float32(_LARGEST[FLOAT8])
        return np.clip(np.asarray(values, np.float32) / scale, -most, most).astype(FLOAT8)
    limits = np.iinfo(params.zero.dtype)
    whole = np.rint(np.asarray(values, np.float32) / scale).astype(np.float64) + zero
    return np.clip(whole, limits.min, limits.max).astype(params.zero.dtype)


def dequantize(integers: Array, params: Affine) -> Array:
    """Float32, as DequantizeLinear gives them."""
    scale, zero = spread(params, integers.shape)
    restored: Array = (integers.astype(np.float32) - zero.astype(np.float32)) * scale
    return restored


def spread(params: Affine, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Scale and zero point, so that they broadcast with the values."""
    if params.axis is None:
        return params.scale, params.zero.astype(np.int32)
    if params.block:
        which = np.arange(shape[params.axis]) // params.block
        return (
            params.scale.take(which, params.axis),
            params.zero.astype(np.int32).take(which, params.axis),
        )
    sizes = [-1 if dim == params.axis else 1 for dim in range(len(shape))]
    return params.scale.reshape(sizes), params.zero.astype(np.int32).reshape(sizes)
