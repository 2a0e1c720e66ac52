"""DeformConv: samples at shifted positions, then an ordinary contraction.

    s[n, og, c, k.., o..] = mask * interpolate(x[n, og*C+c], o*stride + k*dilation - begin + offset)
    out[n, g*M+m, o..] = b + sum_{c, k} s[n, .., k.., o..] * w[g*M+m, c, k..]
Guarantees: any number of spatial axes (multilinear, zero outside); each sample is computed once,
not once a filter; positions are float32 (float64 for float64 data).
Not here: windows without offsets (conv).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as cartesian

from tilewright.core.dtypes import INT64
from tilewright.core.shape import Dim, product
from tilewright.kernel.ir import Buffer, Expr, call, constant, dim_value
from tilewright.lower.context import Lowering
from tilewright.lower.contraction import guarded, sum_over, widen
from tilewright.lower.conv import Groups, emit_by_group
from tilewright.lower.precision import compute_type
from tilewright.lower.registry import lowers
from tilewright.lower.window import Window, windows_of


@lowers("DeformConv")
def deform_conv(ctx: Lowering) -> None:
    """Inputs: x, weights, offsets, optional bias and mask."""
    out, x, w, bias = ctx.output(), ctx.input(0), ctx.input(1), ctx.optional(3)
    if out is None:
        return
    windows = windows_of(ctx, x.shape[2:], out.shape[2:])
    samples = _emit_samples(ctx, x, windows)
    count = int(ctx.node.attribute("group", 1))
    groups = Groups(count=count, depth=w.shape[1], filters=w.shape[0] // count)
    taps_shape = [window.kernel for window in windows]

    def body(n: Expr, channel: Sequence[Expr], at: Sequence[Expr]) -> Expr:
        m = groups.filter(channel)

        def term(c: Expr, *taps: Expr) -> Expr:
            source = groups.source(channel, c)
            return samples[(n, source, *taps, *at)] * widen(w[(m, c, *taps)])

        total = sum_over([groups.depth, *taps_shape], term)
        return (total if bias is None else total + widen(bias[m])).cast(out.dtype)

    emit_by_group(ctx, out, groups, body)


def _emit_samples(ctx: Lowering, x: Buffer, windows: Sequence[Window]) -> Buffer:
    """Samples as [n, channel, taps.., positions..] in the compute type."""
    offset, mask = ctx.input(2), ctx.optional(4)
    rank, count = len(windows), int(ctx.node.attribute("offset_group", 1))
    batch, channels = x.shape[:2]
    depth = channels // count
    taps_shape = [window.kernel for window in windows]
    out_shape = [window.out for window in windows]
    taps_count = dim_value(product(taps_shape))
    dtype = compute_type(x.dtype)

    def body(n: Expr, og: Expr, c: Expr, *rest: Expr) -> Expr:
        taps, at = rest[:rank], rest[rank:]
        tap = _flat(taps, taps_shape)
        coordinates = []
        for axis, window in enumerate(windows):
            shift = offset[(n, (og * taps_count + tap) * rank + axis, *at)]
            base = window.position(at[axis], taps[axis]).cast(dtype)
            coordinates.append(base + shift.cast(dtype))
        channel = og * dim_value(depth) + c
        value = _interpolated(x, (n, channel), coordinates, [window.size for window in windows])
        if mask is not None:
            value = value * mask[(n, og * taps_count + tap, *at)].cast(dtype)
        return value

    split = ctx.temporary(dtype, (batch, count, depth, *taps_shape, *out_shape))
    ctx.pure(split, body)
    return ctx.view(ctx.temporary(dtype, (batch, channels, *taps_shape, *out_shape)), split)


def _flat(index: Sequence[Expr], shape: Sequence[Dim]) -> Expr:
    result = constant(0, INT64)
    for part, size in zip(index, shape, strict=True):
        result = result * dim_value(size) + part
    return result


def _interpolated(
    x: Buffer, lead: tuple[Expr, ...], coordinates: Sequence[Expr], sizes: Sequence[Dim]
) -> Expr:
    """The multilinear interpolation of ``x[lead, ...]``; elements outside are 0."""
    lower = [call("floor", coordinate) for coordinate in coordinates]
    fractions = [c - low for c, low in zip(coordinates, lower, strict=True)]
    starts = [low.cast(INT64) for low in lower]
    total: Expr | None = None
    for corner in cartesian((0, 1), repeat=len(sizes)):
        positions = [start + side for start, side in zip(starts, corner, strict=True)]
        guards: list[Expr] = []
        for position, size in zip(positions, sizes, strict=True):
            guards += [position.ge(0), position.lt(dim_value(size))]
        value = guarded(guards, widen(x[(*lead, *positions)]), 0)
        for fraction, side in zip(fractions, corner, strict=True):
            value = value * (fraction if side else 1.0 - fraction)
        total = value if total is None else total + value
    return constant(0, compute_type(x.dtype)) if total is None else total
