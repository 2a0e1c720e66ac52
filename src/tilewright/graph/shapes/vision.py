"""Shape rules of resampling and cropping: Resize, GridSample, RoiAlign, CenterCropPad and others.

Input -> Output: shapes, sizes or scales -> result shapes.
Guarantees: constant sizes, sizes computed from shapes and scales that are exact fractions stay
symbolic; any other scale is bound at run time, computed in float32 as ONNX does.
"""

from __future__ import annotations

import numpy as np

from tilewright.core.dtypes import UINT8
from tilewright.core.shape import Dim
from tilewright.graph.info import NodeInfo
from tilewright.graph.shapes.registry import Array, RuleContext, Shape, shape_rule

_MAX_DENOMINATOR = 2**12
_MAX_SAMPLES = 2**12  # of a bin along an axis


@shape_rule("Resize", "Upsample")
def resize(ctx: RuleContext) -> NodeInfo:
    """Sizes, or sizes times scales rounded down."""
    shape = ctx.shape(0)
    rank = len(shape)
    scales_at, sizes_at = (1, 3) if ctx.node.op_type == "Upsample" else (2, 3)
    given = ctx.integers("axes")
    axes = ctx.normal_axes(given, rank) if given is not None else tuple(range(rank))
    roi = ctx.content(1) if ctx.node.op_type == "Resize" else None
    if roi is not None and roi.dtype != object and not np.all(np.isfinite(roi)):
        ctx.fail("roi is not finite", "give finite regions")
    has_scales = ctx.has(scales_at) and ctx.length(scales_at) != 0
    if has_scales == (ctx.has(sizes_at) and ctx.length(sizes_at) != 0):
        ctx.fail("exactly one of scales and sizes is needed")
    if has_scales:
        return ctx.result(_scaled(ctx, shape, axes, scales_at))
    policy = ctx.text("keep_aspect_ratio_policy", "stretch")
    sizes = ctx.dims(sizes_at)
    plain = sizes is not None and all(ctx.facts.non_negative(dim) for dim in sizes)
    if not plain or sizes is None or policy != "stretch":
        arguments = [ctx.argument(sizes_at), shape, list(axes), policy]
        static = plain and sizes is not None and all(d.is_const for d in (*sizes, *shape))
        if static and sizes is not None:
            return ctx.result(_keep_aspect(ctx, shape, axes, sizes, policy))
        bound = ctx.bind_shape("resize_sizes", arguments, len(axes), "size")
        return ctx.result(_placed(shape, axes, bound))
    if len(sizes) != len(axes):
        ctx.mismatch(f"{len(sizes)} sizes for {len(axes)} axes")
    return ctx.result(_placed(shape, axes, sizes))


def _placed(shape: Shape, axes: tuple[int, ...], sizes: Shape) -> Shape:
    result = list(shape)
    for axis, size in zip(axes, sizes, strict=True):
        result[axis] = size
    return tuple(result)


def _scaled(ctx: RuleContext, shape: Shape, axes: tuple[int, ...], position: int) -> Shape:
    count = ctx.length(position)
    if count is not None and count != len(axes):
        ctx.mismatch(f"{count} scales for {len(axes)} axes")
    scales = ctx.content(position)
    if scales is not None and scales.dtype != object:
        if not np.all(np.isfinite(scales) & (scales > 0)):
            shown = [float(scale) for scale in scales.reshape(-1)]
            ctx.fail(f"scales = {shown} must be positive", "give finite scales above 0")
        found = [
            _scale_dim(shape[axis], scale)
            for axis, scale in zip(axes, scales.reshape(-1), strict=True)
        ]
        known = tuple(dim for dim in found if dim is not None)
        if len(known) == len(found):
            return _placed(shape, axes, known)
    return _placed(shape, axes, _bound_scales(ctx, shape, axes, position, scales))


def _bound_scales(
    ctx: RuleContext,
    shape: Shape,
    axes: tuple[int, ...],
    position: int,
    scales: Array | None,
) -> Shape:
    """Sizes bound at run time; axes of scale 1 keep their own."""
    bound = ctx.bind_shape(
        "resize_scales", [ctx.argument(position), shape, list(axes)], len(axes), "size"
    )
    if scales is None or scales.dtype == object:
        return bound
    return tuple(
        _scale_dim(shape[axis], scale) or dim
        for axis, scale, dim in zip(axes, scales.reshape(-1), bound, strict=True)
    )


def _scale_dim(size: Dim, scale: float) -> Dim | None:
    """``floor(size * scale)`` where it is exact, else None."""
    if size.is_const:
        # ONNX multiplies in the type of the scales.
        with np.errstate(over="ignore"):
            scaled = np.float32(size.const) * np.float32(scale)
        return Dim.of(int(np.floor(min(scaled, np.finfo(np.float32).max))))
    top, bottom = float(scale).as_integer_ratio()
    return size * top // bottom if bottom <= _MAX_DENOMINATOR and top > 0 else None


def _keep_aspect(
    ctx: RuleContext, shape: Shape, axes: tuple[int, ...], sizes: Shape, policy: str
) -> Shape:
    from tilewright.runtime.bindings import resize_sizes

    own = [dim.const for dim in shape]
    if policy not in ("not_larger", "not_smaller"):
        ctx.fail(f"keep_aspect_ratio_policy {policy!r} is unknown")
    found = resize_sizes([dim.const for dim in sizes], own, list(axes), policy)
    return _placed(shape, axes, tuple(Dim.of(size) for size in found))


@shape_rule("GridSample")
def grid_sample(ctx: RuleContext) -> NodeInfo:
    """[batch, channels, *the grid's places]."""
    data = ctx.shape(0)
    grid = ctx.shape_of_rank(1, len(data))
    ctx.equal(data[0], grid[0], "batches")
    ctx.equal(grid[-1], Dim.of(len(data) - 2), "coordinates")
    return ctx.result((data[0], data[1], *grid[1:-1]))


@shape_rule("RoiAlign")
def roi_align(ctx: RuleContext) -> NodeInfo:
    """[regions, channels, height, width]."""
    data, regions = ctx.shape_of_rank(0, 4), ctx.shape_of_rank(1, 2)
    ctx.equal(regions[1], Dim.of(4), "coordinates of a region")
    ctx.equal(ctx.shape_of_rank(2, 1)[0], regions[0], "one batch index a region")
    sizes = (ctx.integer("output_height", 1), ctx.integer("output_width", 1))
    ctx.require_least("output_height", sizes[:1])
    ctx.require_least("output_width", sizes[1:])
    if ctx.integer("sampling_ratio", 0) > _MAX_SAMPLES:
        ctx.fail(f"a sampling_ratio above {_MAX_SAMPLES}", "take fewer samples of a bin")
    return ctx.result((regions[0], data[1], *(Dim.of(size) for size in sizes)))


@shape_rule("MaxRoiPool")
def max_roi_pool(ctx: RuleContext) -> NodeInfo:
    """[regions, channels, *pooled_shape]."""
    data, regions = ctx.shape_of_rank(0, 4), ctx.shape_of_rank(1, 2)
    ctx.equal(regions[1], Dim.of(5), "batch and coordinates of a region")
    pooled = ctx.integers("pooled_shape")
    if pooled is None or len(pooled) != 2:
        ctx.fail("pooled_shape needs two sizes")
    ctx.require_least("pooled_shape", pooled)
    return ctx.result((regions[0], data[1], *(Dim.of(size) for size in pooled)))


@shape_rule("AffineGrid")
def affine_grid(ctx: RuleContext) -> NodeInfo:
    """[batch, *spatial sizes, number of them]."""
    theta = ctx.shape_of_rank(0, 3)
    length = ctx.length(1)
    if length is None:
        ctx.fail("the length of size must be static")
    sizes = ctx.dims(1)
    if sizes is None or not all(ctx.facts.non_negative(dim) for dim in sizes):
        sizes = ctx.bind_shape("sizes", [ctx.argument(1), length], length, "size")
    if length not in (4, 5):
        ctx.mismatch(f"size has {length} entries")
    ctx.equal(theta[0], sizes[0], "batches")
    ctx.equal(theta[1], Dim.of(length - 2), "rows of theta")
    ctx.equal(theta[2], Dim.of(length - 1), "columns of theta")
    return ctx.result((theta[0], *sizes[2:], Dim.of(length - 2)))


@shape_rule("CenterCropPad")
def center_crop_pad(ctx: RuleContext) -> NodeInfo:
    """The wanted sizes on the given axes."""
    shape = ctx.shape(0)
    given = ctx.integers("axes")
    axes = ctx.normal_axes(given, len(shape)) if given is not None else tuple(range(len(shape)))
    sizes = ctx.dims(1)
    if sizes is None or not all(ctx.facts.non_negative(dim) for dim in sizes):
        sizes = ctx.bind_shape("sizes", [ctx.argument(1), len(axes)], len(axes), "size")
    if len(sizes) != len(axes):
        ctx.mismatch(f"{len(sizes)} sizes for {len(axes)} axes")
    return ctx.result(_placed(shape, axes, sizes))


@shape_rule("ImageDecoder", dtypes=(UINT8,))
def image_decoder(ctx: RuleContext) -> NodeInfo:
    """[height, width, channels]; the sizes are in the encoded stream."""
    gray = ctx.text("pixel_format", "RGB") == "Grayscale"
    sizes = (ctx.late_dim(0, 0), ctx.late_dim(0, 1))
    return ctx.result((*sizes, Dim.of(1 if gray else 3)))
