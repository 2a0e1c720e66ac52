"""Convolution, transposed, deformable and stateful causal convolution, and Col2Im.

Guarantees: any number of spatial axes; windows are gathered into a matrix in bounded pieces and
multiplied group by group.
Not here: window geometry (spatial), integer convolution (quantization)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.reference.dtypes import Array
from tilewright.runtime.reference.math import sigmoid
from tilewright.runtime.reference.registry import Call, Outputs, operator
from tilewright.runtime.reference.spatial import (
    AUTO_PADS,
    Windows,
    padded,
    pads_of,
    per_axis,
    sliding,
    windows,
)

_PIECE_BYTES = 128 << 20


def convolve(call: Call, x: Array, weight: Array) -> Array:
    """x [N, C, *S], weight [M, C/group, *K] -> [N, M, *O] in x's dtype."""
    group = call.integer("group", 1)
    if x.ndim < 3 or weight.ndim != x.ndim:
        raise call.error(f"X {x.shape} and W {weight.shape} need equal rank of at least 3")
    if x.shape[1] != weight.shape[1] * group or weight.shape[0] % group:
        raise call.error(f"X {x.shape} and W {weight.shape} do not fit group={group}")
    kernel = call.integers("kernel_shape") or weight.shape[2:]
    if tuple(kernel) != weight.shape[2:]:
        raise call.error(f"kernel_shape {list(kernel)} differs from W {weight.shape}")
    view = windows(call, x.shape[2:], kernel)
    data = padded(x, view, x.dtype.type(0))
    if weight.shape[1] == 1 and weight.shape[0] == group:
        return _depthwise(data, weight, view)
    return _grouped(data, weight, view, group)


def _index(*parts: Any) -> tuple[Any, ...]:
    """An index of mixed parts, whose type NumPy's stubs do not know."""
    return parts


def _depthwise(data: Array, weight: Array, view: Windows) -> Array:
    result = np.zeros((*data.shape[:2], *view.output), data.dtype)
    for tap in itertools.product(*(range(k) for k in view.kernel)):
        part = data[_index(..., *_tap_slices(tap, view))]
        result += part * weight[_index(slice(None), 0, *tap)].reshape((-1,) + (1,) * len(view.size))
    return result


def _tap_slices(tap: Sequence[int], view: Windows) -> Iterator[slice]:
    for axis, index in enumerate(tap):
        first = index * view.dilations[axis]
        last = first + (view.output[axis] - 1) * view.strides[axis] + 1
        yield slice(first, max(first, last), view.strides[axis])


def _grouped(data: Array, weight: Array, view: Windows, group: int) -> Array:
    num, channels = data.shape[:2]
    rank = len(view.size)
    filters, depth = weight.shape[0] // group, int(np.prod(weight.shape[1:]))
    matrix = weight.reshape(group, filters, depth)
    rows = sliding(data, view)
    result = np.empty((num, group, filters, *view.output), np.result_type(data, weight))
    row_bytes = channels * int(np.prod(view.kernel)) * int(np.prod(view.output[1:]))
    step = max(1, _PIECE_BYTES // max(1, row_bytes * data.itemsize))
    order = (0, *range(1 + rank, 1 + 2 * rank), *range(1, 1 + rank))
    for image in range(num):
        for first in range(0, view.output[0], step):
            piece = rows[image, :, first : first + step]
            columns = piece.transpose(order).reshape(group, depth, -1)
            part = np.matmul(matrix, columns)
            where = result[image, :, :, first : first + step]
            where[...] = part.reshape(where.shape)
    return result.reshape(num, group * filters, *view.output)


def _add_bias(y: Array, bias: Array | None) -> Array:
    return y if bias is None else y + bias.reshape((-1,) + (1,) * (y.ndim - 2))


@operator("Conv")
def conv(call: Call, x: Array, weight: Array, bias: Array | None = None) -> Outputs:
    return (_add_bias(convolve(call, x, weight), bias),)


@operator("CausalConvWithState", since=27)
def causal_conv_with_state(
    call: Call, x: Array, weight: Array, bias: Array | None = None, past: Array | None = None
) -> Outputs:
    activation = call.choice("activation", "none", ("none", "silu", "swish"))
    if x.ndim != 3 or weight.ndim != 3 or weight.shape[:2] != (x.shape[1], 1):
        raise call.error(
            f"input {x.shape} and weight {weight.shape} are not [B, C, L] and [C, 1, k]"
        )
    carried = weight.shape[2] - 1
    if past is None:
        past = np.zeros((*x.shape[:2], carried), x.dtype)
    if past.shape != (*x.shape[:2], carried):
        raise call.error(f"past_state {past.shape} is not {(*x.shape[:2], carried)}")
    data = np.concatenate([past, x], axis=2)
    view = Windows(
        size=(data.shape[2],),
        kernel=(carried + 1,),
        strides=(1,),
        dilations=(1,),
        begin=(0,),
        end=(0,),
        output=(x.shape[2],),
    )
    y = _add_bias(_depthwise(data, weight, view), bias)
    if activation != "none":
        y = y * sigmoid(y)
    return y, data[:, :, data.shape[2] - carried :]


def scatter_windows(
    columns: Array,
    size: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> Array:
    """Add windows [..., *kernel, *positions] into a zero array [..., *size] (no padding)."""
    rank = len(size)
    positions = columns.shape[columns.ndim - rank :]
    lead = columns.shape[: columns.ndim - 2 * rank]
    result = np.zeros((*lead, *size), columns.dtype)
    for tap in itertools.product(*(range(k) for k in kernel)):
        where = [
            slice(t * d, t * d + (p - 1) * s + 1 if p else t * d, s)
            for t, d, p, s in zip(tap, dilations, positions, strides, strict=True)
        ]
        every = (slice(None),) * len(lead)
        result[_index(..., *where)] += columns[_index(*every, *tap)]
    return result


@operator("Col2Im", since=18)
def col2im(call: Call, x: Array, image_shape: Array, block_shape: Array) -> Outputs:
    image = tuple(int(v) for v in image_shape.ravel())
    block = tuple(int(v) for v in block_shape.ravel())
    rank = len(image)
    pads, taps = pads_of(call, rank), int(np.prod(block))
    strides, dilations = per_axis(call, "strides", rank, 1), per_axis(call, "dilations", rank, 1)
    full = [image[i] + pads[i] + pads[i + rank] for i in range(rank)]
    positions = [
        (full[i] - (block[i] - 1) * dilations[i] - 1) // strides[i] + 1 for i in range(rank)
    ]
    if x.ndim != 3 or x.shape[1] % taps or x.shape[2] != int(np.prod(positions)):
        raise call.error(f"input {x.shape} does not hold blocks {block} of an image {image}")
    columns = x.reshape(x.shape[0], x.shape[1] // taps, *block, *positions)
    result = scatter_windows(columns, full, block, strides, dilations)
    crop = tuple(slice(pads[i], pads[i] + image[i]) for i in range(rank))
    return (result[_index(..., *crop)],)


def _transpose_pads(
    call: Call, full: Sequence[int], size: Sequence[int]
) -> tuple[list[int], list[int]]:
    """First index of the output inside the full result, and output sizes, one an axis."""
    rank = len(size)
    strides = per_axis(call, "strides", rank, 1)
    auto_pad = call.choice("auto_pad", "NOTSET", AUTO_PADS)
    wanted = call.integers("output_shape")
    if wanted is not None:
        wanted = wanted[-rank:]
    elif auto_pad.startswith("SAME"):
        wanted = tuple(size[i] * strides[i] for i in range(rank))
    if wanted is None:
        pads = pads_of(call, rank) if auto_pad == "NOTSET" else (0,) * (2 * rank)
        return list(pads[:rank]), [full[i] - pads[i] - pads[i + rank] for i in range(rank)]
    total = [max(0, full[i] - wanted[i]) for i in range(rank)]
    if auto_pad == "SAME_UPPER":
        return [t // 2 for t in total], list(wanted)
    return [t - t // 2 for t in total], list(wanted)


@operator("ConvTranspose")
def conv_transpose(call: Call, x: Array, weight: Array, bias: Array | None = None) -> Outputs:
    group = call.integer("group", 1)
    if x.ndim < 3 or weight.ndim != x.ndim or x.shape[1] != weight.shape[0] or x.shape[1] % group:
        raise call.error(f"X {x.shape} and W {weight.shape} do not fit group={group}")
    num, channels, *size = x.shape
    kernel, rank = weight.shape[2:], len(size)
    strides, dilations = per_axis(call, "strides", rank, 1), per_axis(call, "dilations", rank, 1)
    extra = call.integers("output_padding") or (0,) * rank
    matrix = weight.reshape(group, channels // group, -1).transpose(0, 2, 1)
    columns = np.matmul(matrix, x.reshape(num, group, channels // group, -1))
    columns = columns.reshape(num, group * weight.shape[1], *kernel, *size)
    full = [
        strides[i] * (size[i] - 1) + (kernel[i] - 1) * dilations[i] + 1 + extra[i]
        for i in range(rank)
    ]
    begin, output = _transpose_pads(call, full, size)
    if any(count < 0 for count in output):
        raise call.error(f"pads leave no output: {output}")
    room = [max(full[i], begin[i] + output[i]) for i in range(rank)]
    call.room([num, columns.shape[1], *room], columns.dtype)
    result = scatter_windows(columns, room, kernel, strides, dilations)
    crop = tuple(slice(begin[i], begin[i] + output[i]) for i in range(rank))
    return (_add_bias(result[_index(..., *crop)], bias),)


@operator("DeformConv", since=19)
def deform_conv(
    call: Call,
    x: Array,
    weight: Array,
    offset: Array,
    bias: Array | None = None,
    mask: Array | None = None,
) -> Outputs:
    group, offset_group = call.integer("group", 1), call.integer("offset_group", 1)
    num, channels, *size = x.shape
    rank, kernel = len(size), weight.shape[2:]
    view = windows(call, size, kernel)
    taps = int(np.prod(kernel))
    if channels != weight.shape[1] * group or channels % offset_group or weight.shape[0] % group:
        raise call.error(f"X {x.shape} and W {weight.shape} do not fit the groups")
    moved = offset.reshape(num, offset_group, taps, rank, *view.output)
    coordinates = []
    for axis in range(rank):
        base = view.positions(axis)  # [output, kernel] of this axis
        shape = [1] * rank + [1] * rank
        shape[axis], shape[rank + axis] = kernel[axis], view.output[axis]
        grid = np.broadcast_to(base.T.reshape(shape), (*kernel, *view.output))
        coordinates.append(moved[:, :, :, axis] + grid.reshape(taps, *view.output))
    grouped = x.reshape(num, offset_group, channels // offset_group, *size)
    sampled = _interpolate(grouped, coordinates)
    if mask is not None:
        sampled = sampled * mask.reshape(num, offset_group, 1, taps, *view.output)
    columns = sampled.reshape(num, group, channels // group * taps, -1)
    matrix = weight.reshape(group, weight.shape[0] // group, -1)
    y = np.matmul(matrix, columns).reshape(num, weight.shape[0], *view.output)
    return (_add_bias(y, bias),)


def _interpolate(x: Array, coordinates: Sequence[Array]) -> Array:
    """Linear samples, zero outside: x [N, G, C, *S] at [N, G, taps, *O] -> [N, G, C, taps, *O]."""
    num, groups, channels, *size = x.shape
    points = coordinates[0].shape[2:]
    flat = [c.reshape(num, groups, -1) for c in coordinates]
    result = np.zeros((num, groups, channels, flat[0].shape[-1]), x.dtype)
    lower = [np.floor(c).astype(np.int64) for c in flat]
    for corner in itertools.product((0, 1), repeat=len(size)):
        weight = np.ones(flat[0].shape, x.dtype)
        index = np.zeros(flat[0].shape, np.int64)
        for axis, side in enumerate(corner):
            at = lower[axis] + side
            weight = weight * np.maximum(0, 1 - np.abs(flat[axis] - at))
            weight = np.where((at >= 0) & (at < size[axis]), weight, 0)
            index = index * size[axis] + np.clip(at, 0, size[axis] - 1)
        values = np.take_along_axis(x.reshape(num, groups, channels, -1), index[:, :, None], axis=3)
        result += values * weight[:, :, None]
    return result.reshape(num, groups, channels, *points)
