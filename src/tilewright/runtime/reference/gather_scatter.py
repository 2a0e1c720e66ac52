"""Selection and update by index: Gather*, Scatter*, Compress, TensorScatter.

Guarantees: negative indices count from the end, others out of range are errors; reductions of
duplicate indices are applied in order; the input is never written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.runtime.reference.dtypes import HALF, Array
from tilewright.runtime.reference.registry import Call, Outputs, operator
from tilewright.runtime.reference.shape import one_axis

_REDUCTIONS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _checked(call: Call, indices: Array, size: int) -> Array:
    if indices.size and (indices.min() < -size or indices.max() >= size):
        bad = indices[(indices < -size) | (indices >= size)].ravel()[0]
        raise call.error(f"index {bad} is outside [-{size}, {size})")
    return np.asarray(np.where(indices < 0, indices + size, indices), np.int64)


@operator("Gather", own_precision=True)
def gather(call: Call, x: Array, indices: Array) -> Outputs:
    axis = one_axis(call, call.integer("axis", 0), x.ndim)
    return (np.take(x, _checked(call, indices, x.shape[axis]), axis=axis),)


@operator("GatherElements", since=11, own_precision=True)
def gather_elements(call: Call, x: Array, indices: Array) -> Outputs:
    axis = one_axis(call, call.integer("axis", 0), x.ndim)
    if indices.ndim != x.ndim:
        raise call.error(f"indices {indices.shape} and data {x.shape} differ in rank")
    return (x[_element_index(call, x, indices, axis)],)


def _element_index(call: Call, x: Array, indices: Array, axis: int) -> tuple[Any, ...]:
    """Indices that vary along their own axes everywhere but on `axis`."""
    where: list[Any] = list(np.ogrid[tuple(slice(0, size) for size in indices.shape)])
    for other, size in enumerate(indices.shape):
        if other != axis and size > x.shape[other]:
            raise call.error(f"indices {indices.shape} exceed data {x.shape} on axis {other}")
    where[axis] = _checked(call, indices, x.shape[axis])
    return tuple(where)


def _nd_index(call: Call, shape: tuple[int, ...], indices: Array) -> tuple[Array, ...]:
    if indices.ndim == 0 or indices.shape[-1] > len(shape):
        raise call.error(f"indices {indices.shape} address more than rank {len(shape)}")
    return tuple(_checked(call, indices[..., i], shape[i]) for i in range(indices.shape[-1]))


@operator("GatherND", since=11, own_precision=True)
def gather_nd(call: Call, x: Array, indices: Array) -> Outputs:
    batch = call.integer("batch_dims", 0)
    if not batch:
        return (x[_nd_index(call, x.shape, indices)],)
    if x.shape[:batch] != indices.shape[:batch]:
        raise call.error(f"data {x.shape} and indices {indices.shape} differ in batch_dims={batch}")
    where = _nd_index(call, x.shape[batch:], indices)
    rank = indices.ndim - 1
    lead = [
        np.arange(x.shape[i]).reshape([-1 if j == i else 1 for j in range(rank)])
        for i in range(batch)
    ]
    return (x[(*lead, *where)],)


def _update(call: Call, x: Array, where: tuple[Any, ...], updates: Array) -> Array:
    reduction = call.choice("reduction", "none", ("none", *_REDUCTIONS))
    if reduction == "none":
        result = x.copy()
        result[where] = updates
        return result
    narrow = x.dtype in HALF
    result = x.astype(np.float32) if narrow else x.copy()
    _REDUCTIONS[reduction].at(result, where, updates.astype(result.dtype))
    return result.astype(x.dtype) if narrow else result


@operator("ScatterElements", since=11, own_precision=True)
@operator("Scatter", since=9, own_precision=True)
def scatter_elements(call: Call, x: Array, indices: Array, updates: Array) -> Outputs:
    axis = one_axis(call, call.integer("axis", 0), x.ndim)
    if indices.shape != updates.shape or indices.ndim != x.ndim:
        raise call.error(
            f"indices {indices.shape} and updates {updates.shape} do not fit {x.shape}"
        )
    return (_update(call, x, _element_index(call, x, indices, axis), updates),)


@operator("ScatterND", since=11, own_precision=True)
def scatter_nd(call: Call, x: Array, indices: Array, updates: Array) -> Outputs:
    where = _nd_index(call, x.shape, indices)
    expected = (*indices.shape[:-1], *x.shape[indices.shape[-1] :])
    if updates.shape != expected:
        raise call.error(f"updates {updates.shape} must be {expected}")
    return (_update(call, x, where, updates),)


@operator("Compress", since=9, own_precision=True)
def compress(call: Call, x: Array, condition: Array) -> Outputs:
    axis = call.get("axis")
    data = x.ravel() if axis is None else x
    where = 0 if axis is None else one_axis(call, int(axis), x.ndim)
    chosen = np.flatnonzero(condition[: data.shape[where]])
    return (np.take(data, chosen, axis=where),)


@operator("TensorScatter", since=24, own_precision=True)
def tensor_scatter(call: Call, cache: Array, update: Array, write: Array | None = None) -> Outputs:
    axis = one_axis(call, call.integer("axis", -2), cache.ndim)
    mode = call.choice("mode", "linear", ("linear", "circular"))
    if axis == 0:
        raise call.error("axis 0 is the batch axis")
    batch, longest, length = cache.shape[0], cache.shape[axis], update.shape[axis]
    first = np.zeros(batch, np.int64) if write is None else write.astype(np.int64).ravel()
    at = first[:, None] + np.arange(length)
    if mode == "circular":
        at = at % longest
    elif length and (at.min() < 0 or at.max() >= longest):
        raise call.error(f"positions {at.min()}..{at.max()} are outside a cache of {longest}")
    result = cache.copy()
    moved = np.moveaxis(result, axis, 1)
    moved[np.arange(batch)[:, None], at] = np.moveaxis(update, axis, 1)
    return (result,)


@operator("ArrayFeatureExtractor", domain="ai.onnx.ml", own_precision=True)
def array_feature_extractor(call: Call, x: Array, indices: Array) -> Outputs:
    data = x.reshape(1, -1) if x.ndim == 1 else x
    return (np.take(data, _checked(call, indices.ravel(), data.shape[-1]), axis=-1),)
