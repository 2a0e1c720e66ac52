"""Tensors made from sizes and scalars: Constant, Shape, Size, Range, EyeLike, windows...

Input -> Output: a ``Lowering`` -> one pure kernel, or a view of a constant.
Guarantees: windows and floating-point ranges are computed in float64 and rounded once.
Not here: random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tilewright.core.dtypes import FLOAT64, INT64
from tilewright.core.shape import Dim, product
from tilewright.kernel.ir import Expr, call, cast, constant, dim_value, select
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.indexing import refuse_opaque
from tilewright.lower.registry import lowers


@lowers("Constant")
def lower_constant(ctx: Lowering) -> None:
    """A view of the constant."""
    refuse_opaque(ctx)
    out = ctx.output()
    if out is None:
        return
    for name in ("value", "value_float", "value_floats", "value_int", "value_ints"):
        value = ctx.node.attribute(name)
        if value is not None:
            array = np.asarray(value)
            if array.dtype != out.dtype.numpy:
                array = array.astype(out.dtype.numpy)
            ctx.view(out, ctx.constant(array, out.dtype))
            return
    raise Unlowerable("a constant without a dense value")


@lowers("ConstantOfShape")
def lower_constant_of_shape(ctx: Lowering) -> None:
    """One value everywhere."""
    refuse_opaque(ctx)
    out = ctx.output()
    if out is None:
        return
    given = ctx.node.attribute("value")
    value = 0 if given is None else np.asarray(given).reshape(-1)[0].item()
    ctx.pure(out, lambda *_: constant(value, out.dtype))


@lowers("Shape")
def lower_shape(ctx: Lowering) -> None:
    """The dims from ``start`` to ``end``."""
    x, out = ctx.input(0), ctx.output()
    if out is None:
        return
    rank = len(x.shape)
    dims = x.shape[slice(*_clamped(ctx, rank))]

    def body(i: Expr) -> Expr:
        value = dim_value(dims[-1]) if dims else constant(0, INT64)
        for k in reversed(range(len(dims) - 1)):
            value = select(i.eq(k), dim_value(dims[k]), value)
        return value

    ctx.pure(out, body)


def _clamped(ctx: Lowering, rank: int) -> tuple[int, int]:
    end = ctx.node.attribute("end")
    bounds = (int(ctx.node.attribute("start", 0)), rank if end is None else int(end))
    start, stop = (min(max(b + rank if b < 0 else b, 0), rank) for b in bounds)
    return start, stop


@lowers("Size")
def lower_size(ctx: Lowering) -> None:
    """The number of elements."""
    x, out = ctx.input(0), ctx.output()
    if out is not None:
        ctx.pure(out, lambda: dim_value(product(x.shape)))


@lowers("Range")
def lower_range(ctx: Lowering) -> None:
    """``start + i*delta``."""
    refuse_opaque(ctx)
    start, delta, out = ctx.input(0), ctx.input(2), ctx.output()
    if out is None:
        return
    wide = FLOAT64 if out.dtype.is_float else INT64
    first = cast(start[tuple(0 for _ in start.shape)], wide)
    step = cast(delta[tuple(0 for _ in delta.shape)], wide)
    ctx.pure(out, lambda i: cast(first + cast(i, wide) * step, out.dtype))


@lowers("EyeLike")
def lower_eye_like(ctx: Lowering) -> None:
    """Ones on the k-th diagonal."""
    refuse_opaque(ctx)
    out = ctx.output()
    if out is None:
        return
    k = int(ctx.node.attribute("k", 0))
    one, none = constant(1, out.dtype), constant(0, out.dtype)
    ctx.pure(out, lambda i, j: select(j.eq(i + k), one, none))


@lowers("HannWindow")
def lower_hann_window(ctx: Lowering) -> None:
    """``sin(pi*n/N)**2``."""

    def hann(turn: Expr) -> Expr:
        half = call("sin", turn * 0.5)
        return half * half

    _window(ctx, hann)


@lowers("HammingWindow")
def lower_hamming_window(ctx: Lowering) -> None:
    """``25/46 - 21/46*cos(2*pi*n/N)``."""
    alpha = 25.0 / 46.0
    _window(ctx, lambda turn: alpha - call("cos", turn) * (1.0 - alpha))


@lowers("BlackmanWindow")
def lower_blackman_window(ctx: Lowering) -> None:
    """``0.42 - 0.5*cos(2*pi*n/N) + 0.08*cos(4*pi*n/N)``."""
    _window(ctx, lambda turn: 0.42 - call("cos", turn) * 0.5 + call("cos", turn * 2.0) * 0.08)


def _window(ctx: Lowering, shape: Callable[[Expr], Expr]) -> None:
    """Emits ``shape(2*pi*n/N)``; N is the length, less one for symmetric windows."""
    refuse_opaque(ctx)
    out = ctx.output()
    if out is None:
        return
    length: Dim = out.shape[0]
    period = length if int(ctx.node.attribute("periodic", 1)) else (length - 1).max(1)
    turns = cast(dim_value(period), FLOAT64)
    ctx.pure(
        out,
        lambda i: cast(shape(cast(i, FLOAT64) * (2.0 * math.pi) / turns), out.dtype),
    )


@lowers("MelWeightMatrix")
def lower_mel_weight_matrix(ctx: Lowering) -> None:
    """Triangles between neighbouring mel frequencies, as rows of spectrogram bins."""
    refuse_opaque(ctx)
    out = ctx.output()
    if out is None:
        return
    scalars = [ctx.input(k) for k in range(5)]
    _, length, rate, lower, upper = (
        cast(buffer[tuple(0 for _ in buffer.shape)], FLOAT64) for buffer in scalars
    )
    scale = 2595.0 / math.log(10.0)
    low, high = (call("log1p", edge / 700.0) * scale for edge in (lower, upper))
    step = (high - low) / cast(dim_value(out.shape[1] + 2), FLOAT64)

    def spectrogram_bin(k: Expr) -> Expr:
        hertz = call("expm1", (cast(k, FLOAT64) * step + low) / 2595.0 * math.log(10.0)) * 700.0
        return call("floor", (length + 1.0) * hertz / rate)

    def body(j: Expr, i: Expr) -> Expr:
        row = cast(j, FLOAT64)
        left, centre, right = (spectrogram_bin(i + k) for k in range(3))
        falling = select(row.lt(right), (right - row) / (right - centre), 0.0)
        rising = select(row.ge(left), (row - left) / (centre - left), 0.0)
        side = select(row.lt(centre), rising, falling)
        return cast(select(row.eq(centre), 1.0, side), out.dtype)

    ctx.pure(out, body)
