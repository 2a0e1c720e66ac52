"""Pooling: MaxPool, AveragePool, LpPool and their global forms.

    MaxPool: out[n, c, o] = max_k x[n, c, o*stride + k*dilation - begin]     (padding never wins)
Guarantees: any number of spatial axes, ceil_mode, dilation; MaxPool's indices are those of the
first maximum in row-major order of the window (NaN counts as a maximum), in the storage order
asked for.
Not here: MaxUnpool, region pooling.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.core.dtypes import INT64
from tilewright.core.shape import Dim, product
from tilewright.kernel.ir import (
    Buffer,
    Expr,
    call,
    constant,
    dim_value,
    identity_of,
    select,
)
from tilewright.lower.context import Lowering
from tilewright.lower.contraction import all_of, fold_over, guarded, sum_over, widen
from tilewright.lower.precision import compute_type
from tilewright.lower.registry import lowers
from tilewright.lower.window import Window, positions_of, windows_of


@lowers("MaxPool")
def max_pool(ctx: Lowering) -> None:
    """Values, and indices into the flattened input if wanted."""
    x, indices = ctx.input(0), ctx.output(1)
    shape = next(info.shape for info in ctx.info.outputs if info is not None and info.shape)
    values = ctx.output(0)
    if values is None:
        values = ctx.temporary(x.dtype, shape)
    windows = windows_of(ctx, x.shape[2:], shape[2:])
    lowest = identity_of("max", compute_type(x.dtype))

    def body(n: Expr, c: Expr, *at: Expr) -> Expr:
        def term(*taps: Expr) -> Expr:
            positions, guards = positions_of(windows, at, taps)
            return guarded(guards, widen(x[(n, c, *positions)]), lowest)

        return fold_over("max", [window.kernel for window in windows], term).cast(x.dtype)

    ctx.pure(values, body)
    if indices is not None:
        _emit_max_indices(ctx, indices, values, windows)


def _emit_max_indices(
    ctx: Lowering, out: Buffer, values: Buffer, windows: Sequence[Window]
) -> None:
    x = ctx.input(0)
    sizes = [window.size for window in windows]
    nowhere = constant(identity_of("min", INT64), INT64)

    def body(n: Expr, c: Expr, *at: Expr) -> Expr:
        best = widen(values[(n, c, *at)])

        def term(*taps: Expr) -> Expr:
            positions, guards = positions_of(windows, at, taps)
            value = widen(x[(n, c, *positions)])
            found = value.eq(best)
            if value.dtype.is_float:
                found = call("or", found, call("isnan", value))
            inside = all_of(guards)
            chosen = select(found, _flat(positions, sizes), nowhere)
            return chosen if inside is None else select(inside, chosen, nowhere)

        first = fold_over("min", [window.kernel for window in windows], term)
        if int(ctx.node.attribute("storage_order", 0)):
            first = _flat(_unflat(first, sizes)[::-1], sizes[::-1])
        plane = n * dim_value(x.shape[1]) + c
        return plane * dim_value(product(sizes)) + first

    ctx.pure(out, body)


def _flat(index: Sequence[Expr], sizes: Sequence[Dim]) -> Expr:
    """The row-major position of an index."""
    result = index[0]
    for part, size in zip(index[1:], sizes[1:], strict=True):
        result = result * dim_value(size) + part
    return result


def _unflat(position: Expr, sizes: Sequence[Dim]) -> list[Expr]:
    """The index at a row-major position."""
    parts: list[Expr] = []
    for size in reversed(sizes[1:]):
        parts.insert(0, call("mod", position, dim_value(size)))
        position = call("div", position, dim_value(size))
    return [position, *parts]


@lowers("AveragePool")
def average_pool(ctx: Lowering) -> None:
    """The mean over the taps inside the data, or inside data and padding with count_include_pad."""
    out, x = ctx.output(), ctx.input(0)
    if out is None:
        return
    windows = windows_of(ctx, x.shape[2:], out.shape[2:])
    padded = bool(ctx.node.attribute("count_include_pad", 0))

    def body(n: Expr, c: Expr, *at: Expr) -> Expr:
        def term(*taps: Expr) -> Expr:
            positions, guards = positions_of(windows, at, taps)
            return guarded(guards, widen(x[(n, c, *positions)]), 0)

        total = sum_over([window.kernel for window in windows], term)
        count = constant(1, INT64)
        for window, index in zip(windows, at, strict=True):
            count = count * tap_count(window, index, padded)
        return (total / count.cast(total.dtype)).cast(out.dtype)

    ctx.pure(out, body)


def tap_count(window: Window, index: Expr, padded: bool) -> Expr:
    """How many taps of an output element are inside the data (``padded``: or its padding)."""
    if window.is_whole:
        return dim_value(window.kernel)
    start = window.start(index)
    low = -dim_value(window.begin) if padded else constant(0, INT64)
    high = dim_value(window.size + window.end if padded else window.size)
    first = _steps(low - start, window)
    last = _steps(high - start, window)
    return (last - first).max(0)


def _steps(distance: Expr, window: Window) -> Expr:
    """Number of taps before a distance from the window's start, from 0 to all."""
    dilation = dim_value(window.dilation)
    steps = call("div", distance.max(0) + dilation - 1, dilation)
    return steps.min(dim_value(window.kernel))


def _magnitude(value: Expr, p: int) -> Expr:
    """``abs(value) ** p``."""
    if p == 2:
        return value * value
    size = call("abs", value)
    return size if p == 1 else call("pow", size, float(p))


def _root(value: Expr, p: int) -> Expr:
    if p == 1:
        return value
    return call("sqrt", value) if p == 2 else call("pow", value, 1.0 / p)


@lowers("LpPool")
def lp_pool(ctx: Lowering) -> None:
    """The p-norm of each window; padding counts as 0."""
    out, x = ctx.output(), ctx.input(0)
    if out is None:
        return
    windows = windows_of(ctx, x.shape[2:], out.shape[2:])
    p = int(ctx.node.attribute("p", 2))

    def body(n: Expr, c: Expr, *at: Expr) -> Expr:
        def term(*taps: Expr) -> Expr:
            positions, guards = positions_of(windows, at, taps)
            return guarded(guards, _magnitude(widen(x[(n, c, *positions)]), p), 0)

        total = sum_over([window.kernel for window in windows], term)
        return _root(total, p).cast(out.dtype)

    ctx.pure(out, body)


@lowers("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(ctx: Lowering) -> None:
    """A reduction over all spatial axes."""
    out, x = ctx.output(), ctx.input(0)
    if out is None:
        return
    spatial = x.shape[2:]
    op, p = ctx.node.op_type, int(ctx.node.attribute("p", 2))

    def body(n: Expr, c: Expr, *_: Expr) -> Expr:
        def term(*at: Expr) -> Expr:
            value = widen(x[(n, c, *at)])
            return _magnitude(value, p) if op == "GlobalLpPool" else value

        total = fold_over("max" if op == "GlobalMaxPool" else "sum", spatial, term)
        if op == "GlobalAveragePool":
            total = total / dim_value(product(spatial)).cast(total.dtype)
        return (_root(total, p) if op == "GlobalLpPool" else total).cast(out.dtype)

    ctx.pure(out, body)
