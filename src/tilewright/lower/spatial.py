"""Sampling at computed places: GridSample, AffineGrid, Col2Im.

Input -> Output: a ``Lowering`` -> one pure kernel.
Guarantees: nothing is read outside the operand, whatever the coordinates are (NaN included).
Not here: Resize (resize), regions of interest (detection).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.core.dtypes import BOOL, FLOAT64, INT64, DType
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Buffer, Expr, call, cast, constant, dim_value, reduce_over, select
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.indexing import (
    clamp,
    computed,
    flatten,
    interpolated,
    nonempty,
    refuse_opaque,
    within,
    zero,
)
from tilewright.lower.registry import lowers

_CUBIC = -0.75
_OFF_THE_MAP = -2.0


@lowers("AffineGrid")
def lower_affine_grid(ctx: Lowering) -> None:
    """``theta @ (x, y[, z], 1)`` for every position; coordinates run from -1 to 1."""
    refuse_opaque(ctx)
    theta, out = ctx.input(0), ctx.output()
    if out is None:
        return
    spatial = out.shape[1:-1]
    corners = bool(ctx.node.attribute("align_corners", 0))

    def place(i: Expr, dim: Dim) -> Expr:
        at, size = cast(i, FLOAT64), cast(dim_value(dim), FLOAT64)
        if corners:
            return at * 2.0 / (size - 1.0).max(1.0) - 1.0
        return (at * 2.0 + 1.0) / size - 1.0

    def body(*index: Expr) -> Expr:
        n, row = index[0], index[-1]
        places = [place(i, dim) for i, dim in zip(index[1:-1], spatial, strict=True)]
        total = cast(theta[n, row, len(spatial)], FLOAT64)
        for column, coordinate in enumerate(reversed(places)):
            total = total + cast(theta[n, row, column], FLOAT64) * coordinate
        return cast(total, out.dtype)

    ctx.pure(out, body)


@lowers("Col2Im")
def lower_col2im(ctx: Lowering) -> None:
    """Adds up the columns in which each pixel occurs."""
    refuse_opaque(ctx)
    x, out = ctx.input(0), ctx.output()
    if out is None:
        return
    if x.dtype is BOOL:
        raise Unlowerable("sums of booleans")
    kernel, strides = ctx.param("kernel"), ctx.param("strides")
    dilations, pads = ctx.param("dilations"), ctx.param("pads")
    rank = len(kernel)
    blocks = tuple(
        (size + pads[k] + pads[rank + k] - dilations[k] * (kernel[k] - 1) - 1) // strides[k] + 1
        for k, size in enumerate(out.shape[2:])
    )
    wide = computed(x.dtype)

    def body(n: Expr, c: Expr, *pixel: Expr) -> Expr:
        def term(*offset: Expr) -> Expr:
            hit, block = constant(True, BOOL), []
            for k, at in enumerate(pixel):
                shifted = at + dim_value(pads[k]) - offset[k] * dim_value(dilations[k])
                stride = dim_value(strides[k])
                hit = hit & (shifted % stride).eq(0) & within(shifted / stride, 0, blocks[k])
                hit = hit & shifted.ge(0)
                block.append(shifted / stride)
            row = flatten((c, *offset), (out.shape[1], *kernel))
            value = cast(x[n, row, flatten(block, blocks)], wide)
            return select(hit, value, zero(wide))

        return cast(reduce_over("sum", kernel, term), out.dtype)

    ctx.pure(out, body)


# --- GridSample -----------------------------------------------------------------------------------


@lowers("GridSample")
def lower_grid_sample(ctx: Lowering) -> None:
    """Interpolates at the coordinates of a grid (last spatial axis first, -1 to 1)."""
    refuse_opaque(ctx)
    x, grid, out = ctx.input(0), ctx.input(1), ctx.output()
    if out is None:
        return
    mode = ctx.node.attribute("mode", "linear")
    if mode not in _TAPS:
        raise Unlowerable(f"mode {mode}")
    if x.dtype is BOOL and mode != "nearest":
        raise Unlowerable("interpolation of booleans")
    sampler = _Sampler(ctx, x, computed(grid.dtype))
    wide = x.dtype if mode == "nearest" else interpolated(x.dtype)
    spatial = x.shape[2:]

    def body(n: Expr, c: Expr, *at: Expr) -> Expr:
        positions = [
            sampler.position(cast(grid[(n, *at, len(spatial) - 1 - k)], sampler.real), dim)
            for k, dim in enumerate(spatial)
        ]
        value = sampler.sum_over((n, c), positions, wide)
        return cast(value, out.dtype)

    ctx.pure(out, body)


_Taps = Callable[[Expr], tuple[Expr, list[Expr] | None]]  # position -> first tap, weights


def _nearest_taps(position: Expr) -> tuple[Expr, list[Expr] | None]:
    return call("round", position), None


def _linear_taps(position: Expr) -> tuple[Expr, list[Expr] | None]:
    left = call("floor", position)
    ratio = position - left
    return left, [1.0 - ratio, ratio]


def _cubic_taps(position: Expr) -> tuple[Expr, list[Expr] | None]:
    left, a = call("floor", position), _CUBIC
    ratio = position - left

    def near(d: Expr) -> Expr:
        return (d * (a + 2.0) - (a + 3.0)) * d * d + 1.0

    def far(d: Expr) -> Expr:
        return ((d * a - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a

    weights = [far(ratio + 1.0), near(ratio), near(1.0 - ratio), far(2.0 - ratio)]
    return left - 1.0, weights


_TAPS: dict[str, _Taps] = {
    "nearest": _nearest_taps,
    "linear": _linear_taps,
    "bilinear": _linear_taps,
    "cubic": _cubic_taps,
    "bicubic": _cubic_taps,
}


class _Sampler:
    """Reads a padded operand at real positions."""

    def __init__(self, ctx: Lowering, x: Buffer, real: DType) -> None:
        self.x, self.real = x, real
        self.padding = ctx.node.attribute("padding_mode", "zeros")
        self.corners = bool(ctx.node.attribute("align_corners", 0))
        if self.padding not in ("zeros", "border", "reflection"):
            raise Unlowerable(f"padding mode {self.padding}")
        self.taps = _TAPS[ctx.node.attribute("mode", "linear")]

    def position(self, coordinate: Expr, dim: Dim) -> Expr:
        """The place on an axis that a coordinate in [-1, 1] means, brought inside if padded so."""
        size = cast(dim_value(dim), self.real)
        if self.corners:
            place = (coordinate + 1.0) / 2.0 * (size - 1.0)
        else:
            place = ((coordinate + 1.0) * size - 1.0) / 2.0
        if self.taps is _nearest_taps:
            place = call("round", place)
        # Coordinates that are no numbers count as off the map (as in PyTorch).
        place = select(call("abs", place).lt(math.inf), place, _OFF_THE_MAP)
        low, high = self._borders(size)
        inside = place.ge(low) & place.le(high)
        if self.padding == "border":
            if self.taps is _cubic_taps:  # the taps are brought inside one by one
                return place
            return select(inside, place, place.max(0.0).min(size - 1.0))
        if self.padding == "reflection":
            return select(inside, place, self._reflected(place, size))
        return place

    def _borders(self, size: Expr) -> tuple[Expr, Expr]:
        if self.corners:
            return constant(0.0, self.real), size - 1.0
        return constant(-0.5, self.real), size - 0.5

    def _reflected(self, place: Expr, size: Expr) -> Expr:
        low, high = self._borders(size)
        span = high - low
        beyond = select(place.lt(low), low - place, place - high)
        turns = call("trunc", beyond / span)
        rest = beyond - turns * span
        even = (turns - call("floor", turns / 2.0) * 2.0).eq(0.0)
        from_low = call("xor", place.lt(low), call("not", even))
        folded = select(from_low, low + rest, high - rest)
        inside = place.ge(low) & place.le(high)
        return select(span.gt(0.0), select(inside, place, folded), low)

    def sum_over(self, lead: tuple[Expr, ...], positions: Sequence[Expr], wide: DType) -> Expr:
        """The weighted sum of the taps around a position."""
        choices: list[list[tuple[Expr, Expr | None]]] = []
        for position in positions:
            first, weights = self.taps(position)
            if weights is None:
                choices.append([(first, None)])
            else:
                choices.append([(first + float(t), cast(w, wide)) for t, w in enumerate(weights)])
        there = nonempty(self.x.shape[2:])
        return select(there, self._nested(choices, lead, (), wide), zero(wide))

    def _nested(
        self,
        choices: Sequence[Sequence[tuple[Expr, Expr | None]]],
        lead: tuple[Expr, ...],
        chosen: tuple[Expr, ...],
        wide: DType,
    ) -> Expr:
        if not choices:
            return cast(self._pixel(lead, chosen), wide)
        total: Expr | None = None
        for tap, weight in choices[0]:
            value = self._nested(choices[1:], lead, (*chosen, tap), wide)
            term = value if weight is None else weight * value
            total = term if total is None else total + term
        if total is None:
            raise Unlowerable("no taps")
        return total

    def _pixel(self, lead: tuple[Expr, ...], taps: Sequence[Expr]) -> Expr:
        """The element at whole (real-typed) positions, padded."""
        index: list[Expr] = []
        inside = constant(True, BOOL)
        for tap, dim in zip(taps, self.x.shape[2:], strict=True):
            size = cast(dim_value(dim), self.real)
            if self.padding == "zeros":
                at = cast(tap, INT64)
                inside = inside & within(at, 0, dim)
                index.append(at)
            elif self.padding == "border":
                index.append(clamp(cast(tap, INT64), dim))
            else:
                index.append(clamp(cast(self._reflected(tap, size), INT64), dim))
        return select(inside, self.x[(*lead, *index)], zero(self.x.dtype))
