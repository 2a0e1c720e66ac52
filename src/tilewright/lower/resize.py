"""Resize: nearest, linear and cubic interpolation along any axes.

Input -> Output: a ``Lowering`` -> tables of positions and weights (constants where sizes are known,
else small kernels), then one pure kernel; many taps (antialias, cubic in 3-D) go axis by axis.
Guarantees: all dims, scales and regions may be known only at run time.
Not here: the formulas of one axis (resize_axis); result sizes (graph.shapes).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.core.dtypes import BOOL, FLOAT64, INT64, DType
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Buffer, Expr, cast, constant, dim_value, reduce_over, select
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.indexing import (
    axis_of,
    from_real,
    interpolated,
    nonempty,
    refuse_opaque,
    replaced,
    zero,
)
from tilewright.lower.registry import lowers
from tilewright.lower.resize_axis import AxisResize, Constants, Expressions

_UNROLLED_TAPS = 16  # the taps of a bicubic result
_TABLE_ELEMENTS = 2**22  # of a table that is computed ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taps:
    """One axis ready to read: what to load for a result position."""

    axis: int
    count: Dim
    index: Callable[[Expr, Expr], Expr]
    weight: Callable[[Expr, Expr], Expr] | None = None
    outside: Callable[[Expr], Expr] | None = None


@lowers("Resize")
def lower_resize(ctx: Lowering) -> None:
    """Interpolates along each axis in turn."""
    refuse_opaque(ctx)
    x, out = ctx.input(0), ctx.output()
    if out is None:
        return
    plans = [plan for plan in _plans(ctx, x, out) if not plan.is_identity]
    if not plans:
        ctx.view(out, x)
        return
    if x.dtype is BOOL and plans[0].mode != "nearest":
        raise Unlowerable("interpolation of booleans")
    wide = x.dtype if plans[0].mode == "nearest" else interpolated(x.dtype)
    together = math.prod(p.taps.const if p.taps.is_const else 1 << 20 for p in plans)
    chunks = [plans] if together <= _UNROLLED_TAPS else [[plan] for plan in plans]
    source = x
    for position, chunk in enumerate(chunks):
        shape = list(source.shape)
        for plan in chunk:
            shape[plan.axis] = plan.length
        last = position == len(chunks) - 1
        target = out if last else ctx.temporary(wide, tuple(shape))
        _interpolate(ctx, source, target, wide, [_taps(ctx, plan, wide) for plan in chunk])
        source = target


def _interpolate(
    ctx: Lowering, source: Buffer, target: Buffer, wide: DType, taps: Sequence[_Taps]
) -> None:
    """Emits the weighted sum over the taps of some axes; the first axis is summed innermost."""

    def value(index: tuple[Expr, ...], remaining: Sequence[_Taps]) -> Expr:
        if not remaining:
            return cast(source[index], wide)
        *inner, tap = remaining
        at, weight = index[tap.axis], tap.weight

        def term(t: Expr) -> Expr:
            read = value(replaced(index, tap.axis, tap.index(t, at)), inner)
            return read if weight is None else weight(t, at) * read

        if not tap.count.is_const or tap.count.const > _UNROLLED_TAPS:
            return reduce_over("sum", (tap.count,), term)
        total = term(constant(0, INT64))
        for t in range(1, tap.count.const):
            total = total + term(constant(t, INT64))
        return total

    there = nonempty([source.shape[tap.axis] for tap in taps])
    fill = constant(float(ctx.node.attribute("extrapolation_value", 0.0)), FLOAT64)

    def body(*index: Expr) -> Expr:
        result = value(index, taps)
        if result.dtype is not target.dtype:
            result = from_real(result, target.dtype)
        for tap in taps:
            if tap.outside is not None:
                beyond = tap.outside(index[tap.axis])
                result = select(beyond, from_real(fill, target.dtype), result)
        return select(there, result, zero(target.dtype))

    ctx.pure(target, body)


def _taps(ctx: Lowering, plan: AxisResize, wide: DType) -> _Taps:
    """Tables of an axis, as constants or as kernels."""
    ratio = plan.whole_ratio()
    if ratio is not None:
        return _Taps(axis=plan.axis, count=Dim.of(1), index=lambda _, at: at / ratio)
    shape = (plan.taps, plan.length)
    cropped = plan.transform == "tf_crop_and_resize"
    weights: Buffer | None = None
    outside: Buffer | None = None
    if plan.is_constant and plan.taps.const * plan.length.const <= _TABLE_ELEMENTS:
        indices = ctx.constant(plan.indices(), INT64)
        if plan.mode != "nearest":
            weights = ctx.constant(plan.weights().astype(wide.numpy), wide)
        if cropped:
            outside = ctx.constant(plan.outside(Constants(), plan.grid()[1])[0], BOOL)
    else:
        m = Expressions()
        indices = ctx.pure(ctx.temporary(INT64, shape), lambda tap, at: plan.index(m, tap, at))
        if plan.mode != "nearest":
            weights = ctx.pure(
                ctx.temporary(wide, shape), lambda tap, at: cast(plan.weight(tap, at), wide)
            )
        if cropped:
            outside = ctx.pure(ctx.temporary(BOOL, (plan.length,)), lambda at: plan.outside(m, at))
    return _Taps(
        axis=plan.axis,
        count=plan.taps,
        index=lambda tap, at: indices[tap, at],
        weight=None if weights is None else (lambda tap, at: weights[tap, at]),
        outside=None if outside is None else (lambda at: outside[at]),
    )


def _plans(ctx: Lowering, x: Buffer, out: Buffer) -> list[AxisResize]:
    rank, node = len(x.shape), ctx.node
    given = node.attribute("axes")
    axes = range(rank) if given is None else [axis_of(int(axis), rank) for axis in given]
    scales = _scales(ctx, x, out, list(axes))
    transform = node.attribute("coordinate_transformation_mode", "half_pixel")
    cropped = transform == "tf_crop_and_resize"
    return [
        AxisResize(
            axis=axis,
            size=x.shape[axis],
            length=out.shape[axis],
            scale=scales[place],
            roi=_region(ctx, place, len(axes)) if cropped else None,
            mode=node.attribute("mode", "nearest"),
            nearest=node.attribute("nearest_mode", "round_prefer_floor"),
            transform=transform,
            cubic=float(node.attribute("cubic_coeff_a", -0.75)),
            antialias=bool(node.attribute("antialias", 0)),
            exclude=bool(node.attribute("exclude_outside", 0)),
        )
        for place, axis in enumerate(axes)
    ]


def _region(ctx: Lowering, place: int, count: int) -> tuple[float | Expr, float | Expr]:
    return _number(ctx, 1, place), _number(ctx, 1, count + place)


def _number(ctx: Lowering, position: int, place: int) -> float | Expr:
    """An element of an input, as a float where known, else as a float64 expression."""
    content = ctx.content(position)
    if content is not None:
        return float(content.reshape(-1)[place])
    return cast(ctx.input(position)[place], FLOAT64)


def _scales(ctx: Lowering, x: Buffer, out: Buffer, axes: Sequence[int]) -> list[float | Expr]:
    """Result over operand for each resized axis."""
    scales = ctx.optional(2)
    if scales is not None and scales.shape[0] != Dim.of(0):
        return [_number(ctx, 2, place) for place in range(len(axes))]
    policy = ctx.node.attribute("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return [_ratio(out.shape[axis], x.shape[axis]) for axis in axes]
    ratios = [_quotient(_number(ctx, 3, place), x.shape[axis]) for place, axis in enumerate(axes)]
    op = "min" if policy == "not_larger" else "max"
    if all(isinstance(ratio, float) for ratio in ratios):
        known = [ratio for ratio in ratios if isinstance(ratio, float)]
        return [min(known) if op == "min" else max(known)] * len(axes)
    m = Expressions()
    common: Expr = m.real(ratios[0])
    for ratio in ratios[1:]:
        common = m.apply(op, common, m.real(ratio))
    return [common] * len(axes)


def _ratio(length: Dim, size: Dim) -> float | Expr:
    if length == size:
        return 1.0
    if length.is_const:
        return _quotient(float(length.const), size)
    return _quotient(cast(dim_value(length), FLOAT64), size)


def _quotient(length: float | Expr, size: Dim) -> float | Expr:
    if isinstance(length, float) and size.is_const:
        return length / size.const if size.const else 1.0
    m = Expressions()
    quotient: Expr = m.real(length) / m.real(size)
    return quotient
