"""Integer convolutions: ConvInteger and QLinearConv.

    acc[n, m, o] = b[m] + sum_{c, k} (x[n, c, ..] - x_zero) * (w[m, c, k] - w_zero[m])      (int32)
    where w is known and w_zero is 0:
    acc[n, m, o] = b'[m] + sum_{c, k} x[n, c, ..] * w[m, c, k],  b'[m] = b[m] - x_zero * sum w[m]
Guarantees: padding counts as the zero point of x; weights' zero points and scales may be one a
filter; in the second form w is int8 and x is uint8, or as it is (``quantized.unsigned``).
Not here: geometry and groups (conv), the requantisation formula (quantized).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.core.dtypes import FLOAT32, INT32
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Buffer, Expr, constant
from tilewright.lower.context import Array, Lowering
from tilewright.lower.contraction import dim_index, guarded, scalar
from tilewright.lower.conv import Finish, emit_convolution
from tilewright.lower.quantized import (
    Locate,
    centred,
    combined_scale,
    known_factor,
    parameter,
    requantized,
    signed_weights,
    unsigned,
    unsigned_zero,
)
from tilewright.lower.registry import lowers
from tilewright.lower.window import windows_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _Positions:
    """Which inputs are what."""

    x: int
    x_zero: int
    w: int
    w_zero: int
    bias: int | None = None


def _per_filter(m: Expr, filters: Dim) -> Locate:
    """Reads a parameter that is one number or one a filter."""

    def locate(buffer: Buffer) -> Expr:
        if len(buffer.shape) != 1:
            return scalar(buffer)
        return buffer[dim_index(m, buffer.shape[0], filters)]

    return locate


def _emit(ctx: Lowering, at: _Positions, finish: Finish) -> None:
    out, x, w = ctx.output(), ctx.input(at.x), ctx.input(at.w)
    if out is None:
        return
    windows = windows_of(ctx, x.shape[2:], out.shape[2:])
    zero = parameter(ctx, at.x_zero, scalar)
    weights = None if x.dtype.is_float else signed_weights(ctx, at.w, at.w_zero)
    if weights is None:
        emit_convolution(
            ctx,
            out,
            w.shape,
            windows,
            data=lambda index, guards: guarded(guards, centred(x[index], zero), 0),
            weight=lambda index: centred(
                w[index], parameter(ctx, at.w_zero, _per_filter(index[0], w.shape[0]))
            ),
            finish=lambda total, m: finish(_with_bias(ctx, at, total, m), m),
        )
        return
    padding = constant(0, x.dtype) if zero is None else zero
    correct = _correction(ctx, at, weights, padding)
    emit_convolution(
        ctx,
        out,
        w.shape,
        windows,
        data=lambda index, guards: unsigned(ctx, guarded(guards, x[index], padding)).cast(INT32),
        weight=lambda index: weights[index].cast(INT32),
        finish=lambda total, m: finish(correct(total, m), m),
    )


def _with_bias(ctx: Lowering, at: _Positions, total: Expr, m: Expr) -> Expr:
    bias = None if at.bias is None else ctx.optional(at.bias)
    return total if bias is None else total + bias[m].cast(INT32)


def _correction(ctx: Lowering, at: _Positions, weights: Buffer, padding: Expr) -> Finish:
    """Adds the bias and what the zero point of x takes away; in one constant where it is known."""
    content = _content(ctx, at, weights)
    sums = content.astype(np.int64).sum(axis=tuple(range(1, content.ndim)))
    known = getattr(padding, "value", None)
    if known is None:
        wide = ctx.constant(sums.astype(np.int32), INT32)
        shift = unsigned(ctx, padding).cast(INT32)
        return lambda total, m: _with_bias(ctx, at, total + -shift * wide[m], m)
    zero = unsigned_zero(ctx, np.asarray(known), ctx.input(at.x).dtype)
    offset = -zero * sums
    bias = None if at.bias is None else ctx.content(at.bias)
    whole = bias is not None or at.bias is None or ctx.optional(at.bias) is None
    if bias is not None:
        offset = offset + bias.astype(np.int64)
    if not offset.any():
        return (lambda total, _: total) if whole else (lambda t, m: _with_bias(ctx, at, t, m))
    added = ctx.constant(offset.astype(np.int32), INT32)
    if whole:
        return lambda total, m: total + added[m]
    return lambda total, m: _with_bias(ctx, at, total + added[m], m)


def _content(ctx: Lowering, at: _Positions, weights: Buffer) -> Array:
    own = ctx.constants.get(weights.name)
    known = ctx.content(at.w) if own is None else own
    return np.asarray(known)


@lowers("ConvInteger")
def conv_integer(ctx: Lowering) -> None:
    """8-bit operands, int32 result."""
    _emit(ctx, _Positions(x=0, w=1, x_zero=2, w_zero=3), lambda total, _: total)


@lowers("QLinearConv")
def qlinear_conv(ctx: Lowering) -> None:
    """Inputs: x, scale, zero point, w, scale, zero point, scale and zero point of y, int32 bias."""
    filters = ctx.input(3).shape[0]
    factors = _known_factors(ctx)
    zero = parameter(ctx, 7, scalar)

    def finish(total: Expr, m: Expr) -> Expr:
        if factors is not None:
            factor = factors[m]
        else:
            factor = combined_scale(ctx, (1, 4, 6), scalar, _per_filter(m, filters))
        return requantized(total, factor, zero, ctx.input(7).dtype)

    _emit(ctx, _Positions(x=0, w=3, x_zero=2, w_zero=5, bias=8), finish)


def _known_factors(ctx: Lowering) -> Buffer | None:
    """The combined scale of each filter as a constant vector, if all scales are known."""
    x_scale, w_scale, y_scale = ctx.content(1), ctx.content(4), ctx.content(6)
    if x_scale is None or w_scale is None or y_scale is None or w_scale.size == 1:
        return None
    parts = (part.reshape(-1) for part in (x_scale, w_scale, y_scale))
    return ctx.constant(known_factor(*parts), FLOAT32)
