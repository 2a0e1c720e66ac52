"""Order and search: TopK, ArgMax, ArgMin, Unique, NonZero.

Guarantees: equal values keep their order (the lower index first); NaN counts as the largest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.runtime.reference.dtypes import Array
from tilewright.runtime.reference.registry import Call, Outputs, operator
from tilewright.runtime.reference.shape import one_axis


def _top(call: Call, x: Array, k: int) -> Outputs:
    axis = one_axis(call, call.integer("axis", -1), x.ndim)
    size = x.shape[axis]
    if not 0 <= k <= size:
        raise call.error(f"k={k} is outside [0, {size}]")
    if call.integer("largest", 1):
        backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
        order = size - 1 - np.flip(backwards, axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    indices = np.take(order, np.arange(k), axis=axis)
    return np.take_along_axis(x, indices, axis=axis), indices.astype(np.int64)


@operator("TopK")
def top_k_attribute(call: Call, x: Array) -> Outputs:
    return _top(call, x, call.integer("k"))


@operator("TopK", since=10)
def top_k(call: Call, x: Array, k: Array) -> Outputs:
    return _top(call, x, int(k.reshape(-1)[0]))


def _extreme_index(call: Call, x: Array, function: Any) -> Outputs:
    axis = one_axis(call, call.integer("axis", 0), x.ndim)
    if x.shape[axis] == 0:
        raise call.error(f"axis {axis} of {x.shape} is empty")
    if call.integer("select_last_index", 0):
        index = x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis)
    else:
        index = function(x, axis=axis)
    if call.integer("keepdims", 1):
        index = np.expand_dims(index, axis)
    return (np.asarray(index, np.int64),)


@operator("ArgMax")
def arg_max(call: Call, x: Array) -> Outputs:
    return _extreme_index(call, x, np.argmax)


@operator("ArgMin")
def arg_min(call: Call, x: Array) -> Outputs:
    return _extreme_index(call, x, np.argmin)


@operator("NonZero", since=9)
def non_zero(_call: Call, x: Array) -> Outputs:
    """Indices [rank, count]; a scalar gives [0, count]."""
    return (np.array(np.nonzero(np.atleast_1d(x)), np.int64)[: x.ndim],)


@operator("Unique", since=11)
def unique(call: Call, x: Array) -> Outputs:
    axis = call.get("axis")
    where = None if axis is None else one_axis(call, int(axis), x.ndim)
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=where
    )
    inverse = inverse.reshape(-1)
    if not call.integer("sorted", 1):
        order = np.argsort(first, kind="stable")
        values = np.take(values, order, axis=0 if where is None else where)
        first, counts = first[order], counts[order]
        inverse = np.argsort(order, kind="stable")[inverse]
    return values, *(part.astype(np.int64) for part in (first, inverse, counts))
