"""Integer convolutions: ConvInteger and QLinearConv.

    acc[n, m, o] = b[m] + sum_{c, k} (x[n, c, ..] - x_zero) * (w[m, c, k] - w_zero[m])      (int32)
Guarantees: padding counts as the zero point of x; weights' zero points and scales may be one a
filter.
Not here: geometry and groups (conv), the requantisation formula (quantized).
"""

from __future__ import annotations

import numpy as np

from tilewright.core.dtypes import FLOAT64, INT32
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Buffer, Expr
from tilewright.lower.context import Lowering
from tilewright.lower.contraction import dim_index, scalar
from tilewright.lower.conv import Finish, emit_convolution
from tilewright.lower.quantized import (
    Locate,
    centred,
    combined_scale,
    parameter,
    requantized,
)
from tilewright.lower.registry import lowers
from tilewright.lower.window import windows_of


def _per_filter(m: Expr, filters: Dim) -> Locate:
    """Reads a parameter that is one number or one a filter."""

    def locate(buffer: Buffer) -> Expr:
        if len(buffer.shape) != 1:
            return scalar(buffer)
        return buffer[dim_index(m, buffer.shape[0], filters)]

    return locate


def _emit(
    ctx: Lowering,
    positions: tuple[int, int],
    zero_positions: tuple[int, int],
    finish: Finish,
) -> None:
    out, x, w = ctx.output(), ctx.input(positions[0]), ctx.input(positions[1])
    if out is None:
        return
    x_zero = parameter(ctx, zero_positions[0], scalar)
    emit_convolution(
        ctx,
        out,
        w.shape,
        windows_of(ctx, x.shape[2:], out.shape[2:]),
        data=lambda index: centred(x[index], x_zero),
        weight=lambda index: centred(
            w[index], parameter(ctx, zero_positions[1], _per_filter(index[0], w.shape[0]))
        ),
        finish=finish,
    )


@lowers("ConvInteger")
def conv_integer(ctx: Lowering) -> None:
    """8-bit operands, int32 result."""
    _emit(ctx, (0, 1), (2, 3), lambda total, _: total)


@lowers("QLinearConv")
def qlinear_conv(ctx: Lowering) -> None:
    """Inputs: x, scale, zero point, w, scale, zero point, scale and zero point of y, int32 bias."""
    bias, filters = ctx.optional(8), ctx.input(3).shape[0]
    factors = _known_factors(ctx)
    zero = parameter(ctx, 7, scalar)

    def finish(total: Expr, m: Expr) -> Expr:
        if bias is not None:
            total = total + bias[m].cast(INT32)
        if factors is not None:
            factor = factors[m]
        else:
            factor = combined_scale(ctx, (1, 4, 6), scalar, _per_filter(m, filters))
        return requantized(total, factor, zero, ctx.input(7).dtype)

    _emit(ctx, (0, 3), (2, 5), finish)


def _known_factors(ctx: Lowering) -> Buffer | None:
    """The combined scale of each filter as a constant vector, if all scales are known."""
    x_scale, w_scale, y_scale = ctx.content(1), ctx.content(4), ctx.content(6)
    if x_scale is None or w_scale is None or y_scale is None or w_scale.size == 1:
        return None
    wide = [part.astype(np.float64).reshape(-1) for part in (x_scale, w_scale, y_scale)]
    return ctx.constant(wide[0] * wide[1] / wide[2], FLOAT64)
