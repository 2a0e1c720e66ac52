"""Max, average and Lp pooling, global pooling, and MaxUnpool.

Guarantees: any number of spatial axes; padding never wins a maximum; NaN inside a window wins;
ceil_mode windows that would start behind the input are dropped.
Not here: window geometry (spatial), region pooling (detection)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.runtime.reference.dtypes import Array, mean_over, summed_in
from tilewright.runtime.reference.registry import Call, Outputs, operator
from tilewright.runtime.reference.spatial import Windows, pads_of, per_axis, windows


def _layout(call: Call, x: Array) -> Windows:
    if x.ndim < 3:
        raise call.error(f"input {x.shape} has no spatial axes")
    kernel = call.integers("kernel_shape")
    if kernel is None:
        raise call.error("attribute 'kernel_shape' is required")
    return windows(call, x.shape[2:], kernel, crop=True)


def _lowest(dtype: np.dtype[Any]) -> Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _separable(
    x: Array, view: Windows, function: Callable[[Array, Array], Array], fill: Any
) -> Array:
    """Fold every window with an associative function, one axis after the other."""
    for axis in range(len(view.size)):
        before, after = view.spans(axis)
        data = np.moveaxis(x, axis + 2, -1)[..., max(0, -before) :]
        if before > 0 or after > 0:
            pads = [(0, 0)] * (x.ndim - 1) + [(max(0, before), after)]
            data = np.pad(data, pads, constant_values=fill)
        length = (view.output[axis] - 1) * view.strides[axis] + 1
        result: Array | None = None
        for tap in range(view.kernel[axis]):
            first = tap * view.dilations[axis]
            part = data[..., first : first + max(length, 0) : view.strides[axis]]
            result = part if result is None else function(result, part)
        x = np.moveaxis(result if result is not None else data, -1, axis + 2)
    return np.ascontiguousarray(x)


@operator("MaxPool")
def max_pool(call: Call, x: Array) -> Outputs:
    view = _layout(call, x)
    if call.num_outputs == 1:
        return (_separable(x, view, np.maximum, _lowest(x.dtype)),)
    best = np.full((*x.shape[:2], *view.output), _lowest(x.dtype), x.dtype)
    index = np.full(best.shape, -1, np.int64)
    column_major = bool(call.integer("storage_order", 0))
    taps = [view.positions(axis) for axis in range(len(view.size))]
    for tap in itertools.product(*(range(k) for k in view.kernel)):
        at = [taps[axis][:, tap[axis]] for axis in range(len(tap))]
        inside = [(a >= 0) & (a < size) for a, size in zip(at, view.size, strict=True)]
        valid = _outer(inside, np.logical_and)
        clipped = [np.clip(a, 0, size - 1) for a, size in zip(at, view.size, strict=True)]
        where: tuple[Any, ...] = (slice(None), slice(None), *np.ix_(*clipped))
        value = x[where]
        better = (value > best) | (np.isnan(value) & ~np.isnan(best)) | (index < 0)
        take = better & valid
        best = np.where(take, value, best)
        index = np.where(take, _linear(clipped, view.size, column_major), index)
    planes = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * len(view.size))
    return best, index + planes * int(np.prod(view.size))


def _outer(vectors: list[Array], function: np.ufunc) -> Array:
    result = vectors[0]
    for vector in vectors[1:]:
        result = function(result[..., None], vector)
    return result


def _linear(at: list[Array], size: tuple[int, ...], column_major: bool) -> Array:
    steps = np.cumprod((1, *size))[:-1] if column_major else np.cumprod((1, *size[::-1]))[-2::-1]
    return _outer([a * int(step) for a, step in zip(at, steps, strict=True)], np.add)


@operator("AveragePool")
def average_pool(call: Call, x: Array) -> Outputs:
    view = _layout(call, x)
    total = _separable(x, view, np.add, 0)
    counts = []
    for axis, size in enumerate(view.size):
        at = view.positions(axis)
        if call.integer("count_include_pad", 0):
            inside = (at >= -view.begin[axis]) & (at < size + view.end[axis])
        else:
            inside = (at >= 0) & (at < size)
        counts.append(inside.sum(axis=1))
    return (total / _outer(counts, np.multiply).astype(x.dtype),)


@operator("LpPool")
def lp_pool(call: Call, x: Array) -> Outputs:
    p = call.integer("p", 2)
    return (_separable(np.abs(x) ** p, _layout(call, x), np.add, 0) ** (1 / p),)


def _global_axes(call: Call, x: Array) -> tuple[int, ...]:
    if x.ndim < 3:
        raise call.error(f"input {x.shape} has no spatial axes")
    return tuple(range(2, x.ndim))


@operator("GlobalAveragePool")
def global_average_pool(call: Call, x: Array) -> Outputs:
    return (mean_over(x, _global_axes(call, x), summed_in(x.dtype)).astype(x.dtype),)


@operator("GlobalMaxPool")
def global_max_pool(call: Call, x: Array) -> Outputs:
    return (np.max(x, axis=_global_axes(call, x), keepdims=True),)


@operator("GlobalLpPool")
def global_lp_pool(call: Call, x: Array) -> Outputs:
    p = call.integer("p", 2)
    return (np.sum(np.abs(x) ** p, axis=_global_axes(call, x), keepdims=True) ** (1 / p),)


@operator("MaxUnpool", since=9)
def max_unpool(call: Call, x: Array, indices: Array, output_shape: Array | None = None) -> Outputs:
    """Indices count in the shape that the attributes imply, also when `output_shape` is larger."""
    rank = x.ndim - 2
    kernel, strides = per_axis(call, "kernel_shape", rank, 1), per_axis(call, "strides", rank, 1)
    pads = pads_of(call, rank)
    implied = tuple(
        (x.shape[i + 2] - 1) * strides[i] + kernel[i] - pads[i] - pads[i + rank]
        for i in range(rank)
    )
    shape = (*x.shape[:2], *implied)
    flat = np.zeros(int(np.prod(shape)), x.dtype)
    if indices.size and (indices.min() < 0 or indices.max() >= flat.size):
        raise call.error(f"an index is outside {flat.size} elements")
    flat[indices.ravel()] = x.ravel()
    result = flat.reshape(shape)
    if output_shape is None:
        return (result,)
    wanted = tuple(int(v) for v in output_shape.ravel())
    grown = np.zeros(wanted, x.dtype)
    grown[tuple(slice(0, size) for size in shape)] = result
    return (grown,)
