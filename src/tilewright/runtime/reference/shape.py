"""Operators that rearrange, join, cut or pad without computing.

Guarantees: any element type, text included; results may be views of the input.
Not here: indexed selection (gather_scatter), creation from nothing (create)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.runtime.reference.dtypes import Array
from tilewright.runtime.reference.reduction import normalized_axes
from tilewright.runtime.reference.registry import Call, Outputs, Value, operator
from tilewright.runtime.reshape import inferred_size


def one_axis(call: Call, axis: int, rank: int) -> int:
    """An axis counted from the front; OperatorError when outside [-rank, rank)."""
    if not -rank <= axis < rank:
        raise call.error(f"axis {axis} is outside rank {rank}")
    return axis % rank


def as_ints(array: Array) -> tuple[int, ...]:
    """A tensor of integers as Python integers."""
    return tuple(int(value) for value in array.ravel())


@operator("Identity", own_precision=True)
def identity(_call: Call, x: Value) -> Outputs:
    return (x,)


@operator("Shape", own_precision=True)
def shape_of(call: Call, x: Array) -> Outputs:
    start, end = call.integer("start", 0), call.get("end")
    return (np.array(x.shape[slice(start, None if end is None else int(end))], np.int64),)


@operator("Size", own_precision=True)
def size_of(_call: Call, x: Array) -> Outputs:
    return (np.array(x.size, np.int64),)


@operator("Reshape", own_precision=True)
def reshape(call: Call, x: Array, shape: Array | None = None) -> Outputs:
    wanted = list(as_ints(shape) if shape is not None else call.integers("shape") or ())
    if not call.integer("allowzero", 0):
        for axis, size in enumerate(wanted):
            if size == 0:
                if axis >= x.ndim:
                    raise call.error(f"shape {wanted} copies axis {axis} of {x.shape}")
                wanted[axis] = x.shape[axis]
    elif 0 in wanted and -1 in wanted:
        raise call.error(f"-1 beside a size of 0 in {wanted}")
    if wanted.count(-1) == 1:
        rest = inferred_size(x.shape, [size for size in wanted if size != -1])
        if rest is None:
            raise call.error(f"{x.shape} cannot become {wanted}")
        wanted[wanted.index(-1)] = rest
    return (x.reshape(wanted),)


@operator("Flatten", own_precision=True)
def flatten(call: Call, x: Array) -> Outputs:
    axis = call.integer("axis", 1)
    if not -x.ndim <= axis <= x.ndim:
        raise call.error(f"axis {axis} is outside rank {x.ndim}")
    axis = axis + x.ndim if axis < 0 else axis
    rows = int(np.prod(x.shape[:axis], dtype=np.int64))
    return (x.reshape(rows, int(np.prod(x.shape[axis:], dtype=np.int64))),)


@operator("Squeeze", own_precision=True)
def squeeze(call: Call, x: Array, axes: Array | None = None) -> Outputs:
    chosen = call.integers("axes") if axes is None else as_ints(axes)
    if chosen is None:
        return (np.squeeze(x),)
    return (np.squeeze(x, axis=normalized_axes(call, chosen, x.ndim)),)


@operator("Unsqueeze", own_precision=True)
def unsqueeze(call: Call, x: Array, axes: Array | None = None) -> Outputs:
    chosen = (call.integers("axes") or ()) if axes is None else as_ints(axes)
    return (np.expand_dims(x, normalized_axes(call, chosen, x.ndim + len(chosen))),)


@operator("Transpose", own_precision=True)
def transpose(call: Call, x: Array) -> Outputs:
    return (np.transpose(x, call.integers("perm")),)


@operator("Expand", since=8, own_precision=True)
def expand(call: Call, x: Array, shape: Array) -> Outputs:
    sizes = call.room(np.broadcast_shapes(x.shape, as_ints(shape)), x.dtype)
    return (np.broadcast_to(x, sizes),)


@operator("Tile", own_precision=True)
def tile(call: Call, x: Array, repeats: Array) -> Outputs:
    if repeats.size != x.ndim:
        raise call.error(f"{repeats.size} repeats for rank {x.ndim}")
    counts = as_ints(repeats)
    call.room([size * count for size, count in zip(x.shape, counts, strict=True)], x.dtype)
    return (np.tile(x, counts),)


@operator("Concat", own_precision=True)
def concat(call: Call, *inputs: Array) -> Outputs:
    axis = one_axis(call, call.integer("axis", 1), inputs[0].ndim)
    return (np.concatenate(inputs, axis=axis),)


def pieces(call: Call, x: Array, axis: int, sizes: Sequence[int]) -> list[Any]:
    """Cut x along an axis into parts of the given sizes, which must add up."""
    if sum(sizes) != x.shape[axis] or any(size < 0 for size in sizes):
        raise call.error(f"sizes {list(sizes)} do not add up to axis {axis} of {x.shape}")
    return np.split(x, np.cumsum(sizes)[:-1].tolist(), axis=axis)


@operator("Split", own_precision=True)
def split(call: Call, x: Array, split: Array | None = None) -> Outputs:
    axis = one_axis(call, call.integer("axis", 0), x.ndim)
    sizes = call.integers("split") if split is None else as_ints(split)
    if sizes is None:
        parts = call.integer("num_outputs", call.num_outputs)
        length = x.shape[axis]
        step = -(-length // parts)
        filled = min(parts, length + call.num_outputs)  # parts that follow are empty
        sizes = tuple(max(0, min(step, length - step * part)) for part in range(filled))
    return tuple(pieces(call, x, axis, sizes))


def _slice(
    call: Call,
    x: Array,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> Array:
    chosen = normalized_axes(call, tuple(range(len(starts)) if axes is None else axes), x.ndim)
    steps = [1] * len(starts) if steps is None else steps
    where = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, chosen, steps, strict=True):
        size = x.shape[axis]
        if step == 0:
            raise call.error("a step is 0")
        low, high = (0, size) if step > 0 else (-1, size - 1)
        first = min(max(start + size if start < 0 else start, 0), size if step > 0 else size - 1)
        last = min(max(end + size if end < 0 else end, low), high)
        where[axis] = slice(first, None if last < 0 else last, step)
    return x[tuple(where)]


@operator("Slice", own_precision=True)
def slice_attributes(call: Call, x: Array) -> Outputs:
    starts, ends = call.integers("starts") or (), call.integers("ends") or ()
    return (_slice(call, x, starts, ends, call.integers("axes"), None),)


@operator("Slice", since=10, own_precision=True)
def slice_inputs(
    call: Call,
    x: Array,
    starts: Array,
    ends: Array,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Outputs:
    chosen = None if axes is None else as_ints(axes)
    stride = None if steps is None else as_ints(steps)
    return (_slice(call, x, as_ints(starts), as_ints(ends), chosen, stride),)


_PAD_MODES = ("constant", "reflect", "edge", "wrap")


def _zero(dtype: np.dtype[Any]) -> Any:
    return "" if dtype == np.dtype(object) else np.zeros((), dtype)


def _pad(call: Call, x: Array, widths: Sequence[tuple[int, int]], fill: Any) -> Array:
    mode = call.choice("mode", "constant", _PAD_MODES)
    for axis, (before, after) in enumerate(widths):
        if before == 0 and after == 0:
            continue
        size = x.shape[axis]
        if size + before + after < 0:
            raise call.error(f"pads {before}, {after} remove more than axis {axis} of {x.shape}")
        length = size + before + after
        call.room([*x.shape[:axis], length, *x.shape[axis + 1 :]], np.dtype(np.int64))
        at = np.arange(-before, size + after)
        if mode == "constant":
            inside = (at >= 0) & (at < size)
            shape = (*x.shape[:axis], at.size, *x.shape[axis + 1 :])
            result = np.full(shape, fill, x.dtype)
            where = (slice(None),) * axis
            result[(*where, inside)] = x[(*where, at[inside])]
            x = result
            continue
        if size == 0:
            raise call.error(f"mode {mode!r} needs elements along axis {axis}")
        x = np.take(x, _source(at, size, mode), axis=axis)
    return x


def _source(at: Array, size: int, mode: str) -> Array:
    if mode == "edge":
        return np.asarray(np.clip(at, 0, size - 1))
    if mode == "wrap":
        return at % size
    period = max(1, 2 * (size - 1))
    inside = at % period
    return np.asarray(np.minimum(inside, period - inside)) if size > 1 else at * 0


@operator("Pad", own_precision=True)
def pad_attributes(call: Call, x: Array) -> Outputs:
    pads = call.integers("pads") or call.integers("paddings") or ()
    widths = list(zip(pads[: x.ndim], pads[x.ndim :], strict=True))
    return (_pad(call, x, widths, call.number("value", 0.0)),)


@operator("Pad", since=11, own_precision=True)
def pad_inputs(
    call: Call, x: Array, pads: Array, value: Array | None = None, axes: Array | None = None
) -> Outputs:
    chosen = normalized_axes(call, as_ints(axes), x.ndim) if axes is not None else range(x.ndim)
    amounts = as_ints(pads)
    if len(amounts) != 2 * len(chosen):
        raise call.error(f"{len(amounts)} pads for {len(chosen)} axes")
    widths = [(0, 0)] * x.ndim
    for index, axis in enumerate(chosen):
        widths[axis] = (amounts[index], amounts[index + len(chosen)])
    fill = _zero(x.dtype) if value is None or value.size == 0 else value.reshape(())
    return (_pad(call, x, widths, fill),)


@operator("CenterCropPad", since=18, own_precision=True)
def center_crop_pad(call: Call, x: Array, shape: Array) -> Outputs:
    axes = normalized_axes(call, call.integers("axes") or tuple(range(x.ndim)), x.ndim)
    for axis, size in zip(axes, as_ints(shape), strict=True):
        extra = size - x.shape[axis]
        if extra < 0:
            first = -extra // 2
            x = x[(*(slice(None),) * axis, slice(first, first + size))]
        elif extra > 0:
            widths = [(0, 0)] * x.ndim
            widths[axis] = (extra // 2, extra - extra // 2)
            x = _pad(call, x, widths, _zero(x.dtype))
    return (x,)


@operator("DepthToSpace", own_precision=True)
def depth_to_space(call: Call, x: Array) -> Outputs:
    block = call.integer("blocksize")
    batch, depth, height, width = x.shape
    if depth % (block * block):
        raise call.error(f"{depth} channels do not hold {block}x{block} blocks")
    rest = depth // (block * block)
    if call.choice("mode", "DCR", ("DCR", "CRD")) == "DCR":
        parts = x.reshape(batch, block, block, rest, height, width).transpose(0, 3, 4, 1, 5, 2)
    else:
        parts = x.reshape(batch, rest, block, block, height, width).transpose(0, 1, 4, 2, 5, 3)
    return (parts.reshape(batch, rest, height * block, width * block),)


@operator("SpaceToDepth", own_precision=True)
def space_to_depth(call: Call, x: Array) -> Outputs:
    block = call.integer("blocksize")
    batch, depth, height, width = x.shape
    if height % block or width % block:
        raise call.error(f"{height}x{width} is not made of {block}x{block} blocks")
    parts = x.reshape(batch, depth, height // block, block, width // block, block)
    order = (
        (0, 3, 5, 1, 2, 4)
        if call.choice("mode", "DCR", ("DCR", "CRD")) == "DCR"
        else (0, 1, 3, 5, 2, 4)
    )
    return (parts.transpose(order).reshape(batch, -1, height // block, width // block),)


@operator("Trilu", since=14, own_precision=True)
def trilu(call: Call, x: Array, k: Array | None = None) -> Outputs:
    offset = 0 if k is None else int(k.reshape(-1)[0])
    limit = max(x.shape[-2:], default=0) + 1
    offset = max(-limit, min(limit, offset))
    rows, columns = np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])
    keep = columns - rows >= offset if call.integer("upper", 1) else columns - rows <= offset
    return (np.where(keep, x, np.zeros((), x.dtype)),)


@operator("ReverseSequence", since=10, own_precision=True)
def reverse_sequence(call: Call, x: Array, lengths: Array) -> Outputs:
    batch_axis, time_axis = call.integer("batch_axis", 1), call.integer("time_axis", 0)
    if {batch_axis, time_axis} != {0, 1}:
        raise call.error("batch_axis and time_axis must be 0 and 1 in some order")
    data = x if time_axis == 1 else np.swapaxes(x, 0, 1)
    if lengths.shape != data.shape[:1] or np.any((lengths < 0) | (lengths > data.shape[1])):
        raise call.error(f"sequence_lens {lengths.tolist()} do not fit {x.shape}")
    steps = np.arange(data.shape[1])
    source = np.where(steps < lengths[:, None], lengths[:, None] - 1 - steps, steps)
    result = data[np.arange(data.shape[0])[:, None], source]
    return (result if time_axis == 1 else np.swapaxes(result, 0, 1),)
