"""Contents moved by data-movement operators: gather, slice, concat, reshape and their like.

Input -> Output: object arrays of ``Number`` in -> object arrays of ``Number`` out (see content).
Guarantees: only constant indices and static shapes are followed; the rest is ``Unproven``.
"""

from __future__ import annotations

import math

import numpy as np

from tilewright.core.shape import Dim
from tilewright.graph.shapes.content import (
    Array,
    ContentCall,
    Number,
    Unproven,
    content_rule,
)
from tilewright.graph.shapes.registry import MAX_CONTENT
from tilewright.runtime.bindings import slice_bounds


@content_rule("Identity")
def _identity(call: ContentCall) -> Array:
    return call.needed(0)[0]


@content_rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(call: ContentCall) -> Array:
    (values,) = call.needed(0)
    if call.shape is None:
        raise Unproven
    return values.reshape(call.shape)


@content_rule("Expand")
def _expand(call: ContentCall) -> Array:
    (values,) = call.needed(0)
    if call.shape is None or math.prod(call.shape) > MAX_CONTENT:
        raise Unproven
    return np.broadcast_to(values, call.shape)


@content_rule("Tile")
def _tile(call: ContentCall) -> Array:
    (values,) = call.needed(0)
    if call.shape is None or math.prod(call.shape) > MAX_CONTENT:
        raise Unproven
    return np.tile(values, call.ints(1))


@content_rule("Transpose")
def _transpose(call: ContentCall) -> Array:
    (values,) = call.needed(0)
    permutation = call.node.attribute("perm")
    return values.transpose(None if permutation is None else [int(axis) for axis in permutation])


@content_rule("Concat")
def _concat(call: ContentCall) -> Array:
    parts = call.needed(*range(len(call.operands)))
    return np.concatenate(parts, axis=int(call.node.attribute("axis")))


@content_rule("Split")
def _split(call: ContentCall) -> tuple[Array, ...]:
    (values,) = call.needed(0)
    axis = int(call.node.attribute("axis", 0))
    count = len(call.node.outputs)
    size = values.shape[axis]
    part = -(-size // int(call.node.attribute("num_outputs", count)))
    even = [max(min(part, size - k * part), 0) for k in range(count)]
    sizes = call.ints(1, even)
    if sum(sizes) != size:
        raise Unproven
    return tuple(np.split(values, np.cumsum(sizes)[:-1], axis=axis))


@content_rule("Slice")
def _slice(call: ContentCall) -> Array:
    (values,) = call.needed(0)
    starts, ends = call.ints(1), call.ints(2)
    axes = call.ints(3, list(range(len(starts))))
    steps = call.ints(4, [1] * len(starts))
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        first, stride, length = slice_bounds(start, end, step, values.shape[axis])
        values = np.take(values, [first + stride * k for k in range(length)], axis=axis)
    return values


@content_rule("Gather")
def _gather(call: ContentCall) -> Array:
    values, indices = call.needed(0, 1)
    axis = int(call.node.attribute("axis", 0))
    picked = np.array(call.ints(1), np.int64).reshape(indices.shape)
    size = values.shape[axis]
    if picked.size and not (picked.min() >= -size and picked.max() < size):
        raise Unproven
    return np.take(values, picked, axis=axis)


@content_rule("Where")
def _where(call: ContentCall) -> Array:
    condition, yes, no = call.needed(0, 1, 2)
    truth = np.array(call.ints(0), bool).reshape(condition.shape)
    try:
        truth, yes, no = np.broadcast_arrays(truth, yes, no)
    except ValueError:
        raise Unproven from None
    if yes.size > MAX_CONTENT:
        raise Unproven
    result = np.empty(yes.shape, object)
    for index in np.ndindex(result.shape):
        result[index] = yes[index] if truth[index] else no[index]
    return result


@content_rule("ScatterND")
def _scatter_nd(call: ContentCall) -> Array:
    values, indices, updates = call.needed(0, 1, 2)
    if call.node.attribute("reduction", "none") not in ("none", b"none"):
        raise Unproven
    where = np.array(call.ints(1), np.int64).reshape(indices.shape)
    result = values.copy()
    for index in np.ndindex(where.shape[:-1]):
        place = tuple(int(part) for part in where[index])
        sizes = values.shape[: len(place)]
        if not all(-size <= part < size for part, size in zip(place, sizes, strict=True)):
            raise Unproven
        result[place] = updates[index]
    return result


@content_rule("ConstantOfShape")
def _constant_of_shape(call: ContentCall) -> Array:
    if call.shape is None or math.prod(call.shape) > MAX_CONTENT:
        raise Unproven
    value = call.node.attribute("value")
    number = float(np.asarray(value).reshape(-1)[0]) if value is not None else 0.0
    if number != int(number):
        raise Unproven
    result = np.empty(call.shape, object)
    result.fill(Number(Dim.of(int(number))))
    return result


@content_rule("Range")
def _range(call: ContentCall) -> Array:
    starts, _, steps = call.needed(0, 1, 2)
    if call.shape is None or call.shape[0] > MAX_CONTENT:
        raise Unproven
    start, step = starts.reshape(-1)[0], steps.reshape(-1)[0]
    if start.denominator != 1 or step.denominator != 1:
        raise Unproven
    result = np.empty(call.shape, object)
    for k in range(call.shape[0]):
        result[k] = Number(start.numerator + step.numerator * k)
    return result


@content_rule("CumSum")
def _cumsum(call: ContentCall) -> Array:
    (values,) = call.needed(0)
    if values.ndim != 1 or call.node.attribute("exclusive", 0) or call.node.attribute("reverse", 0):
        raise Unproven
    total = Dim.of(0)
    result = np.empty(values.shape, object)
    for index, value in enumerate(values):
        if value.denominator != 1:
            raise Unproven
        total = total + value.numerator
        result[index] = Number(total)
    return result
