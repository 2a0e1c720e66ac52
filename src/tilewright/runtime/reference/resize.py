"""Resize and Upsample: nearest, linear and cubic sampling on a regular grid.

Guarantees: every axis is sampled on its own (the filters are separable), with coordinates in
float64; output sizes from `scales` are computed in float32, the type of `scales`.
Source: ONNX specification of Resize-19. Not here: GridSample (detection)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.runtime.reference.dtypes import FLOATS, Array
from tilewright.runtime.reference.reduction import normalized_axes
from tilewright.runtime.reference.registry import Call, Outputs, operator
from tilewright.runtime.reference.shape import as_ints

_MODES = ("nearest", "linear", "cubic")
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")
_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """How one axis is resized; `roi` is its (start, end) in [0, 1]."""

    index: int
    size: int
    output: int
    scale: float
    roi: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filter:
    mode: str
    coordinates: str
    nearest: str
    cubic_a: float
    exclude_outside: bool
    antialias: bool


def _source(axis: _Axis, mode: str) -> Array:
    """Coordinate in the input of every output element of an axis."""
    at = np.arange(axis.output, dtype=np.float64)
    length = axis.scale * axis.size  # may be fractional
    if mode == "align_corners":
        return at * ((axis.size - 1) / (length - 1)) if length != 1 else at * 0
    if mode == "asymmetric":
        return at / axis.scale
    if mode == "tf_crop_and_resize":
        start, end = (edge * (axis.size - 1) for edge in axis.roi)
        if axis.output == 1:
            return at * 0 + (start + end) / 2
        return start + at * (end - start) / (length - 1)
    if mode == "pytorch_half_pixel" and axis.output == 1:
        return at * 0
    if mode == "tf_half_pixel_for_nn":
        return (at + 0.5) / axis.scale
    center = (at + 0.5) / axis.scale - 0.5
    if mode == "half_pixel_symmetric":
        center = center + axis.size / 2 * (1 - axis.output / length)
    return center


def _nearest(at: Array, mode: str, shrinks: bool) -> Array:
    if mode == "simple":
        mode = "ceil" if shrinks else "floor"
    rounded = {
        "round_prefer_floor": np.ceil(at - 0.5),
        "round_prefer_ceil": np.floor(at + 0.5),
        "floor": np.floor(at),
        "ceil": np.ceil(at),
    }
    return rounded[mode].astype(np.int64)


def _cubic(distance: Array, a: float) -> Array:
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _taps(at: Array, axis: _Axis, rule: _Filter) -> tuple[Array, Array]:
    """Input indices and weights [output, taps] that make up each output element."""
    stretch = min(axis.scale, 1.0) if rule.antialias else 1.0
    radius = (2 if rule.mode == "cubic" else 1) / stretch
    first = np.floor(at).astype(np.int64) - math.ceil(radius) + 1
    index = first[:, None] + np.arange(2 * math.ceil(radius))
    distance = (index - at[:, None]) * stretch
    if rule.mode == "cubic":
        weights = _cubic(distance, rule.cubic_a)
    else:
        weights = np.maximum(0, 1 - np.abs(distance))
    if rule.exclude_outside:
        weights = np.where((index >= 0) & (index < axis.size), weights, 0)
    if rule.exclude_outside or rule.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(index, 0, axis.size - 1), weights


def _resize_axis(x: Array, axis: _Axis, rule: _Filter) -> Array:
    at = _source(axis, rule.coordinates)
    if rule.mode == "nearest":
        index = np.clip(_nearest(at, rule.nearest, axis.scale < 1), 0, axis.size - 1)
        return np.take(x, index, axis=axis.index)
    index, weights = _taps(at, axis, rule)
    shape = [-1 if i == axis.index else 1 for i in range(x.ndim)]
    sizes = [index.shape[0] if i == axis.index else size for i, size in enumerate(x.shape)]
    result = np.zeros(sizes, x.dtype)
    for tap in range(index.shape[1]):
        if np.any(weights[:, tap]):
            part = np.take(x, index[:, tap], axis=axis.index)
            result = result + part * weights[:, tap].reshape(shape).astype(x.dtype)
    return result


def _resample(call: Call, x: Array, axes: Sequence[_Axis], rule: _Filter) -> Array:
    data = x if x.dtype in FLOATS or rule.mode == "nearest" else x.astype(np.float64)
    inside = np.ones((), bool)
    for axis in axes:
        identity = axis.output == axis.size and axis.scale == 1
        crop = rule.coordinates == "tf_crop_and_resize"
        if identity and not (crop and axis.roi != (0.0, 1.0)):
            continue
        if axis.size == 0:
            raise call.error(f"axis {axis.index} of {x.shape} is empty")
        data = _resize_axis(data, axis, rule)
        if crop:
            at = _source(axis, rule.coordinates)
            valid = (at >= 0) & (at <= axis.size - 1)
            inside = inside & valid.reshape([-1 if i == axis.index else 1 for i in range(x.ndim)])
    if not inside.all():
        data = np.where(inside, data, call.number("extrapolation_value", 0.0))
    if x.dtype.kind in "iu" and data.dtype.kind == "f":
        limits = np.iinfo(x.dtype)
        data = np.clip(np.rint(data), limits.min, limits.max)
    return np.asarray(data).astype(x.dtype, copy=False)


def _scaled(size: int, scale: float) -> int:
    return int(np.floor(np.float32(size) * np.float32(scale)))


def _plan(
    call: Call, x: Array, roi: Array | None, scales: Array | None, sizes: Array | None
) -> list[_Axis]:
    chosen = normalized_axes(call, call.integers("axes") or tuple(range(x.ndim)), x.ndim)
    given = scales if sizes is None else sizes
    if given is None or given.size != len(chosen):
        raise call.error(f"one scale or size is needed for each of the axes {list(chosen)}")
    extents = [x.shape[axis] for axis in chosen]
    if sizes is None:
        factors = [float(v) for v in given.ravel()]
        outputs = [_scaled(extent, f) for extent, f in zip(extents, factors, strict=True)]
    else:
        outputs = list(as_ints(sizes))
        factors = [o / e if e else 1.0 for o, e in zip(outputs, extents, strict=True)]
        policy = call.choice(
            "keep_aspect_ratio_policy", "stretch", ("stretch", "not_larger", "not_smaller")
        )
        if policy != "stretch":
            common = min(factors) if policy == "not_larger" else max(factors)
            factors = [common] * len(factors)
            outputs = [math.floor(common * extent + 0.5) for extent in extents]
    if any(f <= 0 for f in factors) and x.size:
        raise call.error(f"scales {factors} must be positive")
    resized = dict(zip(chosen, outputs, strict=True))
    call.room([resized.get(axis, size) for axis, size in enumerate(x.shape)], x.dtype)
    edges = (
        [0.0] * len(chosen) + [1.0] * len(chosen) if roi is None or not roi.size else roi.tolist()
    )
    return [
        _Axis(
            index=axis,
            size=extents[i],
            output=outputs[i],
            scale=factors[i],
            roi=(edges[i], edges[i + len(chosen)]),
        )
        for i, axis in enumerate(chosen)
    ]


def _used(tensor: Array | None) -> Array | None:
    return None if tensor is None or tensor.size == 0 else tensor


@operator("Resize", since=11)
def resize(
    call: Call,
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
) -> Outputs:
    rule = _Filter(
        mode=call.choice("mode", "nearest", _MODES),
        coordinates=call.choice("coordinate_transformation_mode", "half_pixel", _COORDINATES),
        nearest=call.choice("nearest_mode", "round_prefer_floor", _NEAREST[:4]),
        cubic_a=call.number("cubic_coeff_a", -0.75),
        exclude_outside=bool(call.integer("exclude_outside", 0)),
        antialias=bool(call.integer("antialias", 0)),
    )
    plan = _plan(call, x, _used(roi), _used(scales), _used(sizes))
    return (_resample(call, x, plan, rule),)


def _simple(call: Call, x: Array, scales: Array, nearest: str) -> Outputs:
    rule = _Filter(
        mode="nearest" if call.text("mode", "nearest") == "nearest" else "linear",
        coordinates="asymmetric",
        nearest=nearest,
        cubic_a=-0.75,
        exclude_outside=False,
        antialias=False,
    )
    return (_resample(call, x, _plan(call, x, None, scales, None), rule),)


@operator("Resize", since=10)
def resize_asymmetric(call: Call, x: Array, scales: Array) -> Outputs:
    """Opset 10 names no coordinate rule; this is the one that its implementations use."""
    return _simple(call, x, scales, "simple")


@operator("Upsample", since=7)
def upsample_attribute(call: Call, x: Array) -> Outputs:
    return _simple(call, x, np.array(call.numbers("scales"), np.float32), "floor")


@operator("Upsample", since=9)
def upsample(call: Call, x: Array, scales: Array) -> Outputs:
    return _simple(call, x, scales, "floor")
