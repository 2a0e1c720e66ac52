"""DFT and STFT as contractions with Fourier coefficients.

    DFT:  y[o, f, i, q]  = sum_{k, p} x[o, k, i, p] * M[k, p, f, q]  (p, q: re, im)
    STFT: y[b, m, f, q]  = sum_{k, p} x[b, m*step + k, p] * (w[k] * M[k, p, f, q])
Guarantees: the axis of a DFT may be known only at run time; a window is multiplied into the
coefficients.
Not here: the coefficients (fourier); transforms take L * bins products, there is no fast algorithm
yet.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.core.dtypes import FLOAT64, INT64, DType
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Buffer, Expr, dim_value
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.contraction import scalar, sum_over
from tilewright.lower.fourier import (
    Transform,
    coefficient_matrix,
    emit_coefficients,
    emit_roots,
    has_matrix,
    looked_up,
)
from tilewright.lower.registry import lowers

Body = Callable[[Expr, Expr, Expr, Expr], Expr]


def known_size(ctx: Lowering, position: int) -> Dim | None:
    """The value of a scalar integer input where it is known, possibly as a dim."""
    content = ctx.contents[position] if position < len(ctx.contents) else None
    if content is None or content.size != 1:
        return None
    value = content.reshape(-1)[0]
    return value if isinstance(value, Dim) else Dim.of(int(value))


@lowers("DFT")
def dft(ctx: Lowering) -> None:
    """Real and complex, inverse, one-sided, padded and cropped."""
    out, x = ctx.output(), ctx.input(0)
    if out is None:
        return
    outer, size, inner = ctx.param("outer_axis_inner")
    (length,) = ctx.param("dft_length")
    parts = x.shape[-1]
    if not parts.is_const:
        raise Unlowerable("whether the input is complex is known only at run time")
    transform = Transform(
        length=length,
        inverse=bool(ctx.node.attribute("inverse", 0)),
        onesided=bool(ctx.node.attribute("onesided", 0)),
        complex_input=parts.const == 2,
    )
    data = ctx.view(ctx.temporary(x.dtype, (outer, size, inner, parts)), x)
    result = ctx.temporary(out.dtype, (outer, transform.bins, inner, transform.parts_out))
    taps = size.min(transform.taps)
    body = _by_matrix(ctx, transform, data, taps) if has_matrix(transform) else None
    ctx.pure(result, body or _by_table(ctx, transform, data, taps))
    ctx.view(out, result)


def _by_matrix(ctx: Lowering, transform: Transform, data: Buffer, taps: Dim) -> Body:
    matrix = emit_coefficients(ctx, transform, FLOAT64)
    out_dtype = data.dtype

    def body(o: Expr, f: Expr, i: Expr, to: Expr) -> Expr:
        def term(k: Expr, part: Expr) -> Expr:
            return data[o, k, i, part].cast(FLOAT64) * matrix[k, part, f, to]

        return sum_over([taps, transform.parts_in], term).cast(out_dtype)

    return body


def _by_table(ctx: Lowering, transform: Transform, data: Buffer, taps: Dim) -> Body:
    roots = emit_roots(ctx, transform.length, FLOAT64)

    def body(o: Expr, f: Expr, i: Expr, to: Expr) -> Expr:
        def term(k: Expr) -> Expr:
            value = tuple(data[o, k, i, part].cast(FLOAT64) for part in range(transform.parts_in))
            return looked_up(transform, roots, value, k, f, to)

        return sum_over([taps], term).cast(data.dtype)

    return body


@lowers("STFT")
def stft(ctx: Lowering) -> None:
    """Real and complex signals; the frame length must be known as a size."""
    out, x, window = ctx.output(), ctx.input(0), ctx.optional(2)
    if out is None:
        return
    transform = Transform(
        length=_frame_length(ctx),
        inverse=False,
        onesided=bool(ctx.node.attribute("onesided", 1)),
        complex_input=len(x.shape) == 3 and x.shape[2] == Dim.of(2),
    )
    matrix = _windowed(ctx, transform, FLOAT64, window)
    step = known_size(ctx, 1)
    hop = dim_value(step) if step is not None else scalar(ctx.input(1)).cast(INT64)

    def body(b: Expr, m: Expr, f: Expr, to: Expr) -> Expr:
        def term(k: Expr, part: Expr) -> Expr:
            place = m * hop + k
            value = x[b, place, part] if len(x.shape) == 3 else x[b, place]
            return value.cast(FLOAT64) * matrix[k, part, f, to]

        return sum_over([transform.length, transform.parts_in], term).cast(out.dtype)

    ctx.pure(out, body)


def _frame_length(ctx: Lowering) -> Dim:
    if "frame_length" in ctx.info.params:
        return ctx.param("frame_length")[0]
    window = ctx.optional(2)
    if ctx.optional(3) is not None:
        known = known_size(ctx, 3)
        if known is not None:
            return known
        if window is None:
            raise Unlowerable("the frame length is known only at run time")
    return window.shape[0] if window is not None else ctx.input(0).shape[1]


def _windowed(ctx: Lowering, transform: Transform, dtype: DType, window: Buffer | None) -> Buffer:
    """Coefficients times the window, [taps, parts in, bins, 2]."""
    if window is None:
        return emit_coefficients(ctx, transform, dtype)
    content = ctx.content(2)
    if content is not None and has_matrix(transform):
        weights = content.astype(np.float64)[:, None, None, None]
        return ctx.constant((coefficient_matrix(transform) * weights).astype(dtype.numpy), dtype)
    plain = emit_coefficients(ctx, transform, dtype)
    out = ctx.temporary(dtype, plain.shape)
    return ctx.pure(out, lambda k, p, f, q: window[k].cast(FLOAT64) * plain[k, p, f, q])
