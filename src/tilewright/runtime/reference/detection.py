"""Operators of detection networks: GridSample, RoiAlign, MaxRoiPool, NonMaxSuppression.

Guarantees: vectorised over all points of a region; suppression visits boxes by falling score and,
among equal scores, by index.
Source: ONNX specification of GridSample-22, RoiAlign-22 and NonMaxSuppression-11."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from tilewright.runtime.reference.dtypes import FLOATS, Array
from tilewright.runtime.reference.registry import Call, Outputs, operator

_CUBIC_A = -0.75


def _reflect(at: Array, low: float, high: float) -> Array:
    """Fold coordinates back into [low, high]."""
    span = high - low
    if span <= 0:
        return np.full_like(at, low)
    away = np.abs(at - low) % (2 * span)
    return np.asarray(low + np.minimum(away, 2 * span - away))


def _weights(fraction: Array, mode: str) -> list[tuple[int, Array]]:
    """(offset from the floor, weight) of every tap along one axis."""
    if mode == "nearest":
        return [(0, np.ones_like(fraction))]
    if mode == "linear":
        return [(0, 1 - fraction), (1, fraction)]
    a = _CUBIC_A

    def near(d: Array) -> Array:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Array) -> Array:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [
        (-1, far(fraction + 1)),
        (0, near(fraction)),
        (1, near(1 - fraction)),
        (2, far(2 - fraction)),
    ]


def _bordered(
    at: Array, size: int, padding: str, borders: tuple[float, float]
) -> tuple[Array, Array]:
    """Valid indices for integer positions, and which of them count."""
    inside = (at >= 0) & (at < size)
    if padding == "reflection":
        at = _reflect(at.astype(np.float64), *borders).astype(np.int64)
    index = np.clip(at, 0, size - 1)
    return index, inside if padding == "zeros" else np.ones_like(inside)


@operator("GridSample", since=16)
def grid_sample(call: Call, x: Array, grid: Array) -> Outputs:
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(name := call.text("mode", "linear"), name)
    if mode not in ("nearest", "linear", "cubic"):
        raise call.error(f"mode={mode!r} is unknown")
    padding = call.choice("padding_mode", "zeros", ("zeros", "border", "reflection"))
    align = bool(call.integer("align_corners", 0))
    size = x.shape[2:]
    if grid.shape[-1] != len(size) or grid.shape[0] != x.shape[0] or grid.ndim != x.ndim:
        raise call.error(f"grid {grid.shape} does not fit X {x.shape}")
    points = grid.shape[1:-1]
    taps, borders, floors = [], [], []
    for axis, extent in enumerate(size):
        at = grid[..., len(size) - 1 - axis].reshape(grid.shape[0], -1).astype(np.float64)
        at = (at + 1) / 2 * (extent - 1) if align else ((at + 1) * extent - 1) / 2
        at = np.rint(at) if mode == "nearest" else at
        edge = (0.0, extent - 1.0) if align else (-0.5, extent - 0.5)
        at = np.where(np.isfinite(at), at, -2.0)
        if padding == "border" and mode != "cubic":  # whose taps are clipped one by one
            at = np.where((at < edge[0]) | (at > edge[1]), np.clip(at, 0, extent - 1), at)
        elif padding == "reflection":
            at = _reflect(at, *edge)
        at = np.clip(at, -4.0, extent + 4.0)
        floor = np.floor(at)
        floors.append(floor.astype(np.int64))
        taps.append(_weights(at - floor, mode))
        borders.append(edge)
    data = x.reshape(*x.shape[:2], -1)
    compute = x.dtype if x.dtype in FLOATS else np.dtype(np.float64)
    result = np.zeros((*x.shape[:2], floors[0].shape[1]), compute)
    for combination in itertools.product(*taps):
        result += _corner(data, size, combination, floors, padding, borders, compute)
    if x.dtype.kind in "iu":
        result = np.trunc(result)
    return (result.reshape(*x.shape[:2], *points).astype(x.dtype),)


def _corner(
    data: Array,
    size: Sequence[int],
    combination: Sequence[tuple[int, Array]],
    floors: Sequence[Array],
    padding: str,
    borders: Sequence[tuple[float, float]],
    compute: np.dtype[np.floating],
) -> Array:
    weight = np.ones(floors[0].shape)
    index = np.zeros(floors[0].shape, np.int64)
    for axis, (offset, factor) in enumerate(combination):
        at, counts = _bordered(floors[axis] + offset, size[axis], padding, borders[axis])
        weight = weight * factor * counts
        index = index * size[axis] + at
    values = np.take_along_axis(data, index[:, None], axis=2).astype(compute)
    return np.asarray(np.where(weight[:, None] == 0, 0, values * weight[:, None].astype(compute)))


def _roi_points(start: float, step: float, bins: int, samples: int, size: int) -> tuple[Array, ...]:
    """Low and high index, high weight and validity of every sample along one axis."""
    offsets = (np.arange(samples) + 0.5) / max(samples, 1)
    at = (start + (np.arange(bins)[:, None] + offsets) * step).ravel()
    valid = (at >= -1) & (at <= size)
    at = np.clip(at, 0, size - 1)
    low = np.minimum(at.astype(np.int64), max(size - 2, 0))
    return low, np.minimum(low + 1, size - 1), at - low, valid


def _roi_align(call: Call, x: Array, rois: Array, batch: Array, half_pixel: bool) -> Outputs:
    height, width = call.integer("output_height", 1), call.integer("output_width", 1)
    ratio, scale = call.integer("sampling_ratio", 0), call.number("spatial_scale", 1.0)
    mode = call.choice("mode", "avg", ("avg", "max"))
    if batch.size and (batch.min() < 0 or batch.max() >= x.shape[0]):
        raise call.error(f"a batch index is outside [0, {x.shape[0]})")
    result = np.zeros((rois.shape[0], x.shape[1], height, width), x.dtype)
    for number, roi in enumerate(rois.astype(np.float64)):
        left, top, right, bottom = roi * scale - (0.5 if half_pixel else 0.0)
        spans = [bottom - top, right - left]
        if not half_pixel:
            spans = [max(span, 1.0) for span in spans]
        steps = spans[0] / height, spans[1] / width
        counts = [ratio if ratio > 0 else max(0, int(np.ceil(step))) for step in steps]
        y0, y1, fy, vy = _roi_points(top, steps[0], height, counts[0], x.shape[2])
        x0, x1, fx, vx = _roi_points(left, steps[1], width, counts[1], x.shape[3])
        if not y0.size or not x0.size:
            continue
        image = x[int(batch[number])]
        valid = vy[:, None] & vx
        corners = [
            (image[:, rows[:, None], columns] * np.where(valid, wy[:, None] * wx, 0)).astype(
                x.dtype
            )
            for rows, wy in ((y0, 1 - fy), (y1, fy))
            for columns, wx in ((x0, 1 - fx), (x1, fx))
        ]
        shape = (x.shape[1], height, counts[0], width, counts[1])
        if mode == "avg":
            result[number] = sum(corners[1:], corners[0]).reshape(shape).mean(axis=(2, 4))
        else:  # the specified maximum is taken over the weighted corners
            result[number] = np.maximum.reduce(corners).reshape(shape).max(axis=(2, 4))
    return (result,)


@operator("RoiAlign", since=10)
def roi_align_unshifted(call: Call, x: Array, rois: Array, batch: Array) -> Outputs:
    return _roi_align(call, x, rois, batch, half_pixel=False)


@operator("RoiAlign", since=16)
def roi_align(call: Call, x: Array, rois: Array, batch: Array) -> Outputs:
    shift = call.choice(
        "coordinate_transformation_mode", "half_pixel", ("half_pixel", "output_half_pixel")
    )
    return _roi_align(call, x, rois, batch, half_pixel=shift == "half_pixel")


@operator("MaxRoiPool")
def max_roi_pool(call: Call, x: Array, rois: Array) -> Outputs:
    pooled = call.integers("pooled_shape")
    if pooled is None or len(pooled) != 2:
        raise call.error("attribute 'pooled_shape' must be (height, width)")
    scale = call.number("spatial_scale", 1.0)
    result = np.zeros((rois.shape[0], x.shape[1], *pooled), x.dtype)
    for number, roi in enumerate(rois.astype(np.float64)):
        image = x[int(roi[0])]
        corners = np.floor(roi[1:] * scale + 0.5).astype(np.int64)
        edges = []
        for axis, (first, last) in enumerate(((corners[1], corners[3]), (corners[0], corners[2]))):
            step = max(last - first + 1, 1) / pooled[axis]
            bins = np.arange(pooled[axis])
            low = np.clip(np.floor(bins * step).astype(np.int64) + first, 0, image.shape[axis + 1])
            high = np.clip(
                np.ceil((bins + 1) * step).astype(np.int64) + first, 0, image.shape[axis + 1]
            )
            edges.append(list(zip(low.tolist(), high.tolist(), strict=True)))
        for (i, (top, bottom)), (j, (left, right)) in itertools.product(*map(enumerate, edges)):
            if bottom > top and right > left:
                result[number, :, i, j] = image[:, top:bottom, left:right].max(axis=(1, 2))
    return (result,)


def _corners(boxes: Array, centered: bool) -> Array:
    """Boxes as rows of (low, low, high, high)."""
    if centered:
        middle, half = boxes[:, :2], boxes[:, 2:] / 2
        return np.concatenate([middle - half, middle + half], axis=1)
    first, second = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=1)


def _suppress(boxes: Array, scores: Array, limit: int, overlap: float) -> list[int]:
    order = np.argsort(-scores, kind="stable")
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    kept: list[int] = []
    while order.size and len(kept) < limit:
        best, order = int(order[0]), order[1:]
        kept.append(best)
        low = np.maximum(boxes[best, :2], boxes[order, :2])
        high = np.minimum(boxes[best, 2:], boxes[order, 2:])
        common = np.prod(np.maximum(0, high - low), axis=1)
        union = areas[best] + areas[order] - common
        shared = np.where((areas[best] > 0) & (areas[order] > 0) & (union > 0), common / union, 0)
        order = order[~(shared > overlap)]
    return kept


@operator("NonMaxSuppression", since=10)
def non_max_suppression(
    call: Call,
    boxes: Array,
    scores: Array,
    limit: Array | None = None,
    overlap: Array | None = None,
    threshold: Array | None = None,
) -> Outputs:
    most = 0 if limit is None else int(limit.reshape(-1)[0])
    iou = 0.0 if overlap is None else float(overlap.reshape(-1)[0])
    least = None if threshold is None else threshold.reshape(-1)[0]
    if boxes.ndim != 3 or scores.ndim != 3 or boxes.shape[:2] != (scores.shape[0], scores.shape[2]):
        raise call.error(f"boxes {boxes.shape} and scores {scores.shape} do not fit")
    rows: list[tuple[int, int, int]] = []
    for batch, kind in np.ndindex(*scores.shape[:2]) if most > 0 else ():
        row = scores[batch, kind]
        chosen = np.arange(row.size) if least is None else np.flatnonzero(row > least)
        area = _corners(boxes[batch][chosen], bool(call.integer("center_point_box", 0)))
        kept = _suppress(area, row[chosen], most, iou)
        rows += [(batch, kind, int(chosen[index])) for index in kept]
    return (np.array(rows, np.int64).reshape(-1, 3),)
