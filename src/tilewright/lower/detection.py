"""Pooling over regions of interest: RoiAlign and MaxRoiPool.

Input -> Output: a ``Lowering`` -> one pure kernel.
Guarantees: nothing is read outside the feature map, whatever the regions are.  Where the number of
samples follows from the data (sampling_ratio 0), loops run over as many samples as can touch the
map and skip the rest.
Not here: NonMaxSuppression (interpreted).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.core.dtypes import FLOAT32, FLOAT64, INT64, DType
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Buffer, Expr, call, cast, constant, dim_value, reduce_over, select
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.indexing import checked_forward, nonempty, refuse_opaque, within, zero
from tilewright.lower.registry import lowers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Samples:
    """The samples of one bin on one axis.

    Attributes:
        start, step: real position of the bin, and distance of samples.
        count: number of samples (float).
        first: the first sample that can touch the map; ``window``: how many from there on may.
        size: elements of the axis.
    """

    start: Expr
    step: Expr
    count: Expr
    first: Expr
    window: Dim
    size: Dim

    def position(self, t: Expr) -> Expr:
        """Where the t-th sample of the window lies."""
        real = self.start.dtype
        return self.start + (self.first + cast(t, real) + 0.5) * self.step

    def exists(self, t: Expr) -> Expr:
        """Whether the bin has that sample."""
        return (self.first + cast(t, self.start.dtype)).lt(self.count)

    def touches(self, position: Expr) -> Expr:
        """Whether a position counts as on the map."""
        return position.ge(-1.0) & position.le(cast(dim_value(self.size), position.dtype))

    def hidden(self) -> Expr:
        """Whether samples exist that the window leaves out (all of them off the map)."""
        end = self.first + cast(dim_value(self.window), self.start.dtype)
        return self.first.gt(0.0) | end.lt(self.count)

    def neighbours(self, position: Expr) -> tuple[Expr, Expr, Expr, Expr]:
        """Indices below and above a position, and their weights."""
        real, last = position.dtype, dim_value(self.size) - 1
        inner = position.max(0.0)
        found = cast(call("floor", inner), INT64)
        low, high = found.min(last), (found + 1).min(last)
        above = select(found.ge(last), constant(0.0, real), inner - cast(low, real))
        return low, high, 1.0 - above, above


@lowers("RoiAlign")
def lower_roi_align(ctx: Lowering) -> None:
    """Averages (or takes the largest of) bilinear samples in each bin of each region."""
    refuse_opaque(ctx)
    x, rois, batches, out = ctx.input(0), ctx.input(1), ctx.input(2), ctx.output()
    if out is None:
        return
    mode = ctx.node.attribute("mode", "avg")
    if mode not in ("avg", "max"):
        raise Unlowerable(f"mode {mode}")
    real = FLOAT64 if x.dtype is FLOAT64 else FLOAT32

    def body(n: Expr, c: Expr, ph: Expr, pw: Expr) -> Expr:
        batch = checked_forward(batches[n], x.shape[0])
        rows = _roi_samples(ctx, rois, n, ph, 1, out.shape[2], x.shape[2], real)
        columns = _roi_samples(ctx, rois, n, pw, 0, out.shape[3], x.shape[3], real)
        lead = (batch, c)
        value = (
            _average(x, lead, rows, columns) if mode == "avg" else _largest(x, lead, rows, columns)
        )
        return cast(select(nonempty(x.shape[2:]), value, zero(real)), out.dtype)

    ctx.pure(out, body)


def _roi_samples(
    ctx: Lowering, rois: Buffer, n: Expr, at: Expr, axis: int, bins: Dim, size: Dim, real: DType
) -> _Samples:
    """Samples of bin ``at`` on the x (0) or y (1) axis of region ``n``.

    Bins are computed in float64, so that a number of samples never hangs on a rounding.
    """
    half = ctx.node.attribute("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    scale = float(ctx.node.attribute("spatial_scale", 1.0))
    ratio = int(ctx.node.attribute("sampling_ratio", 0))
    offset = 0.5 if half else 0.0
    begin, end = (cast(rois[n, axis + 2 * k], FLOAT64) * scale - offset for k in range(2))
    extent = end - begin if half else (end - begin).max(1.0)
    width = extent / cast(dim_value(bins), FLOAT64)
    start = begin + cast(at, FLOAT64) * width
    if ratio > 0:
        count: Expr = constant(float(ratio), FLOAT64)
        first, window = constant(0.0, FLOAT64), Dim.of(ratio)
    else:
        count = call("ceil", width)
    step = width / count
    if ratio <= 0:
        # Samples lie at least half an element apart unless there is only one, so no more than
        # this many fall between -1 and the size.
        window = 2 * size + 4
        first = call("floor", (-1.0 - start) / step - 0.5).max(0.0)
    start, step, count, first = (cast(value, real) for value in (start, step, count, first))
    return _Samples(start=start, step=step, count=count, first=first, window=window, size=size)


def _average(x: Buffer, lead: tuple[Expr, Expr], rows: _Samples, columns: _Samples) -> Expr:
    real = rows.start.dtype

    def row(t: Expr) -> Expr:
        y = rows.position(t)
        low, high, below, above = rows.neighbours(y)

        def column(u: Expr) -> Expr:
            position = columns.position(u)
            left, right, near, far = columns.neighbours(position)
            upper = near * cast(x[(*lead, low, left)], real)
            upper = upper + far * cast(x[(*lead, low, right)], real)
            lower = near * cast(x[(*lead, high, left)], real)
            lower = lower + far * cast(x[(*lead, high, right)], real)
            used = columns.exists(u) & columns.touches(position)
            return select(used, below * upper + above * lower, zero(real))

        total = reduce_over("sum", (columns.window,), column)
        return select(rows.exists(t) & rows.touches(y), total, zero(real))

    count = (rows.count * columns.count).max(1.0)
    return reduce_over("sum", (rows.window,), row) / count


def _largest(x: Buffer, lead: tuple[Expr, Expr], rows: _Samples, columns: _Samples) -> Expr:
    """The largest weighted corner of any sample; samples off the map count as 0."""
    real = rows.start.dtype
    lowest = constant(-math.inf, real)

    def row(t: Expr) -> Expr:
        y = rows.position(t)
        low, high, below, above = rows.neighbours(y)

        def column(u: Expr) -> Expr:
            position = columns.position(u)
            left, right, near, far = columns.neighbours(position)
            best: Expr | None = None
            for at, weight in ((low, below), (high, above)):
                for to, share in ((left, near), (right, far)):
                    corner = weight * share * cast(x[(*lead, at, to)], real)
                    best = corner if best is None else best.max(corner)
            value = lowest if best is None else best
            seen = rows.touches(y) & columns.touches(position)
            return select(columns.exists(u), select(seen, value, zero(real)), lowest)

        return select(rows.exists(t), reduce_over("max", (columns.window,), column), lowest)

    found = reduce_over("max", (rows.window,), row)
    unseen = (rows.hidden() | columns.hidden()) & (rows.count * columns.count).gt(0.0)
    found = found.max(select(unseen, zero(real), lowest))
    return select(found.eq(lowest), zero(real), found)


@lowers("MaxRoiPool")
def lower_max_roi_pool(ctx: Lowering) -> None:
    """The largest element in each bin of regions ``(batch, x1, y1, x2, y2)``; 0 if it is empty."""
    refuse_opaque(ctx)
    x, rois, out = ctx.input(0), ctx.input(1), ctx.output()
    if out is None:
        return
    real = FLOAT64 if x.dtype is FLOAT64 else FLOAT32
    scale = float(ctx.node.attribute("spatial_scale", 1.0))
    lowest = constant(-math.inf, real)

    def bounds(n: Expr, at: Expr, axis: int) -> tuple[Expr, Expr]:
        begin, end = (
            cast(_half_away(cast(rois[n, 1 + axis + 2 * k], FLOAT64) * scale), INT64)
            for k in range(2)
        )
        bins = cast(dim_value(out.shape[3 - axis]), FLOAT64)
        width = cast((end - begin + 1).max(1), FLOAT64) / bins
        low = cast(call("floor", cast(at, FLOAT64) * width), INT64) + begin
        high = cast(call("ceil", cast(at + 1, FLOAT64) * width), INT64) + begin
        size = dim_value(x.shape[3 - axis])
        return low.max(0).min(size), high.max(0).min(size)

    def body(n: Expr, c: Expr, ph: Expr, pw: Expr) -> Expr:
        batch = checked_forward(cast(rois[n, 0], INT64), x.shape[0])
        top, bottom = bounds(n, ph, 1)
        left, right = bounds(n, pw, 0)

        def row(h: Expr) -> Expr:
            best = reduce_over(
                "max",
                (x.shape[3],),
                lambda w: select(within(w, left, right), cast(x[batch, c, h, w], real), lowest),
            )
            return select(within(h, top, bottom), best, lowest)

        found = reduce_over("max", (x.shape[2],), row)
        empty = bottom.le(top) | right.le(left)
        return cast(select(empty, zero(real), found), out.dtype)

    ctx.pure(out, body)


def _half_away(value: Expr) -> Expr:
    """Rounds halves away from zero, as C's ``round``."""
    whole = call("floor", call("abs", value) + 0.5)
    return select(value.lt(0.0), -whole, whole)
