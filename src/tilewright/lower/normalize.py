"""Normalisation with statistics of the data.

    LayerNormalization(x)  ->  out[i, j] = (x[i, j] - mean[i]) * factor[i] * scale[j] + bias[j]
                               where factor[i] = 1 / sqrt(var[i] + epsilon)
Guarantees: two passes (the mean first), in float32 or float64 for the whole operator; one rounding.
Not here: BatchNormalization, LRN (lower.channel_normalize).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.core.dtypes import BY_CODE, FLOAT32, FLOAT64, DType
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Buffer, Expr, call, select
from tilewright.lower.broadcast import broadcast_load, refuse_opaque
from tilewright.lower.context import Lowering
from tilewright.lower.precision import compute_type, number
from tilewright.lower.reduce import Slots, emit_static, mean_of
from tilewright.lower.registry import lowers

_EPSILON = 1e-5
_DEVIATION_EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and population variance of what one element is normalised with."""

    mean: Expr
    variance: Expr


def moments(slots: Slots) -> Moments:
    """Mean, then mean of squared differences from it."""
    mean = mean_of(slots)
    return Moments(mean, mean_of(slots, lambda x: (x - mean) * (x - mean)))


def axes_slots(x: Buffer, index: Sequence[Expr], axes: Sequence[int], kind: DType) -> Slots:
    """All elements along ``axes`` through ``index``."""

    def element(*inner: Expr) -> Expr:
        parts = list(index)
        for axis, part in zip(axes, inner, strict=True):
            parts[axis] = part
        return x[tuple(parts)].cast(kind)

    return Slots(tuple(x.shape[axis] for axis in axes), element, kind)


def inverse_deviation(variance: Expr, epsilon: float) -> Expr:
    """1 / sqrt(variance + epsilon)."""
    return 1.0 / call("sqrt", variance + epsilon)


def stash_type(ctx: Lowering, x: Buffer) -> DType:
    """The type to compute in: at least ``stash_type``, at least what the data needs."""
    stash = BY_CODE.get(int(ctx.node.attribute("stash_type", 1)), FLOAT32)
    return FLOAT64 if FLOAT64 in (stash, x.dtype) else FLOAT32


def _scaled(
    value: Expr,
    scale: Buffer | None,
    bias: Buffer | None,
    shape: Sequence[Dim],
    index: Sequence[Expr],
) -> Expr:
    if scale is not None:
        value = value * broadcast_load(scale, shape, index).cast(value.dtype)
    return value if bias is None else value + broadcast_load(bias, shape, index).cast(value.dtype)


@lowers("LayerNormalization")
def layer_normalization(ctx: Lowering) -> None:
    """Outputs that are wanted among Y, Mean and InvStdDev."""
    x, scale, bias = ctx.input(0), ctx.optional(1), ctx.optional(2)
    refuse_opaque(x)
    epsilon, kind = number(ctx, "epsilon", _EPSILON), stash_type(ctx, x)
    axes = trailing_axes(ctx, x)
    out, mean, inverse = (ctx.output(position) for position in range(3))
    if mean is not None:
        emit_static(ctx, mean, x, axes, kind, mean_of)
    if inverse is not None:
        emit_static(
            ctx,
            inverse,
            x,
            axes,
            kind,
            lambda slots: inverse_deviation(moments(slots).variance, epsilon),
        )
    if out is None:
        return

    def body(*index: Expr) -> Expr:
        found = moments(axes_slots(x, index, axes, kind))
        value = x[index].cast(kind) - found.mean
        value = value * inverse_deviation(found.variance, epsilon)
        return _scaled(value, scale, bias, x.shape, index).cast(out.dtype)

    ctx.pure(out, body)


def trailing_axes(ctx: Lowering, x: Buffer) -> list[int]:
    """The axes from attribute ``axis`` on."""
    rank = len(x.shape)
    return list(range(int(ctx.node.attribute("axis", -1)) % max(rank, 1), rank))


@lowers("RMSNormalization")
def rms_normalization(ctx: Lowering) -> None:
    out, x, scale = ctx.output(), ctx.input(0), ctx.optional(1)
    if out is None:
        return
    refuse_opaque(x, out)
    epsilon, kind, axes = (
        number(ctx, "epsilon", _EPSILON),
        stash_type(ctx, x),
        trailing_axes(ctx, x),
    )

    def body(*index: Expr) -> Expr:
        square = mean_of(axes_slots(x, index, axes, kind), lambda value: value * value)
        value = x[index].cast(kind) * inverse_deviation(square, epsilon)
        return _scaled(value, scale, None, x.shape, index).cast(out.dtype)

    ctx.pure(out, body)


@lowers("InstanceNormalization")
def instance_normalization(ctx: Lowering) -> None:
    out, x = ctx.output(), ctx.input(0)
    if out is None:
        return
    refuse_opaque(x)
    _normalize_channels(ctx, out, x, ctx.input(1), ctx.input(2), channel_axes=(1,))


@lowers("GroupNormalization")
def group_normalization(ctx: Lowering) -> None:
    """Channels are split into (group, member), so that statistics belong to outer indices."""
    out, x = ctx.output(), ctx.input(0)
    if out is None:
        return
    refuse_opaque(x)
    groups = Dim.of(int(ctx.node.attribute("num_groups", 1)))
    members = x.shape[1] // groups
    split = (x.shape[0], groups, members, *x.shape[2:])
    grouped = ctx.view(ctx.temporary(x.dtype, split), x)
    factors = [
        ctx.view(ctx.temporary(part.dtype, (groups, members)), part)
        for part in (ctx.input(1), ctx.input(2))
    ]
    result = ctx.temporary(out.dtype, split)
    _normalize_channels(ctx, result, grouped, factors[0], factors[1], channel_axes=(1, 2))
    ctx.view(out, result)


def _normalize_channels(
    ctx: Lowering,
    out: Buffer,
    x: Buffer,
    scale: Buffer,
    bias: Buffer,
    channel_axes: tuple[int, ...],
) -> None:
    """Statistics over all axes after the first two; a factor for each index on ``channel_axes``."""
    epsilon, kind = number(ctx, "epsilon", _EPSILON), compute_type(x.dtype)
    axes = list(range(2, len(x.shape)))

    def body(*index: Expr) -> Expr:
        found = moments(axes_slots(x, index, axes, kind))
        channel = tuple(index[axis] for axis in channel_axes)
        factor = scale[channel].cast(kind) * inverse_deviation(found.variance, epsilon)
        value = (x[index].cast(kind) - found.mean) * factor + bias[channel].cast(kind)
        return value.cast(out.dtype)

    ctx.pure(out, body)


@lowers("MeanVarianceNormalization")
def mean_variance_normalization(ctx: Lowering) -> None:
    """(x - mean) / (deviation + 1e-9)."""
    out, x = ctx.output(), ctx.input(0)
    if out is None:
        return
    refuse_opaque(x)
    kind, rank = compute_type(x.dtype), len(x.shape)
    axes = sorted({int(axis) % rank for axis in ctx.node.attribute("axes", (0, 2, 3))})

    def body(*index: Expr) -> Expr:
        found = moments(axes_slots(x, index, axes, kind))
        deviation = call("sqrt", found.variance) + _DEVIATION_EPSILON
        return ((x[index].cast(kind) - found.mean) / deviation).cast(out.dtype)

    ctx.pure(out, body)


@lowers("LpNormalization")
def lp_normalization(ctx: Lowering) -> None:
    """Divides by the 1- or 2-norm along an axis; zeros stay zeros."""
    out, x = ctx.output(), ctx.input(0)
    if out is None:
        return
    refuse_opaque(x)
    kind, rank = compute_type(x.dtype), len(x.shape)
    axis = int(ctx.node.attribute("axis", -1)) % rank
    absolute = int(ctx.node.attribute("p", 2)) == 1

    def body(*index: Expr) -> Expr:
        slots = axes_slots(x, index, [axis], kind)
        if absolute:
            norm = slots.reduce("sum", lambda value: call("abs", value))
        else:
            norm = call("sqrt", slots.reduce("sum", lambda value: value * value))
        return select(norm.eq(0.0), 0.0, x[index].cast(kind) / norm).cast(out.dtype)

    ctx.pure(out, body)
