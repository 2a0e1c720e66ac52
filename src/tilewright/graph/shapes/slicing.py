"""The shape rule of Slice.

Input -> Output: starts, ends, axes, steps -> params ``starts`` and ``steps`` for every data axis
(start clamped, never negative; untouched axes 0 and 1) and the lengths as the output's shape.
Guarantees: symbolic where starts and ends are constants or provably non-negative dims.
Source of the clamping: ONNX Slice-13.
"""

from __future__ import annotations

from tilewright.core.shape import Dim
from tilewright.graph.info import NodeInfo
from tilewright.graph.shapes.algebra import HUGE
from tilewright.graph.shapes.registry import ONE, RuleContext, Shape, shape_rule

_ZERO = Dim.of(0)


@shape_rule("Slice")
def slice_rule(ctx: RuleContext) -> NodeInfo:
    """Every ``step``-th element from start to end."""
    shape = ctx.shape(0)
    rank = len(shape)
    axes = _axes(ctx, rank)
    touched = list(range(rank)) if axes is None else list(axes)
    starts, steps, lengths = [_ZERO] * rank, [ONE] * rank, list(shape)
    static = _static_parts(ctx, axes, shape)
    if static is None:
        names = [f"{what}{axis}" for what in ("start", "step", "length") for axis in touched]
        arguments = [ctx.argument(position) for position in (1, 2, 3, 4)]
        bound = ctx.bind("slice", [*arguments, shape, touched], names)
        count = len(touched)
        ctx.facts.learn((*bound[:count], *bound[2 * count :]))
        for number, axis in enumerate(touched):
            starts[axis], steps[axis] = bound[number], bound[count + number]
            lengths[axis] = bound[2 * count + number]
    else:
        for axis, start, end, step in zip(touched, *static, strict=True):
            starts[axis], lengths[axis] = _one_axis(ctx, shape[axis], start, end, step.const)
            steps[axis] = step
    return ctx.result(tuple(lengths), params={"starts": starts, "steps": steps})


def _axes(ctx: RuleContext, rank: int) -> tuple[int, ...] | None:
    if ctx.has(3):
        found = ctx.ints(3)
        return None if found is None else ctx.normal_axes(found, rank)
    count = ctx.length(1)
    return None if count is None else tuple(range(min(count, rank)))


def _static_parts(
    ctx: RuleContext, axes: tuple[int, ...] | None, shape: Shape
) -> tuple[Shape, Shape, Shape] | None:
    """Starts, ends and steps where a formula exists for all of them."""
    starts, ends = ctx.dims(1), ctx.dims(2)
    if axes is None or starts is None or ends is None:
        return None
    steps = ctx.dims(4) if ctx.has(4) else (ONE,) * len(axes)
    if steps is None or not all(step.is_const for step in steps):
        return None
    if not len(starts) == len(ends) == len(steps) == len(axes):
        ctx.mismatch("starts, ends, axes and steps differ in length")
    if _ZERO in steps:
        ctx.fail("a step of 0")
    sizes = [shape[axis] for axis in axes]
    for dim, size in zip((*starts, *ends), (*sizes, *sizes), strict=True):
        if not _has_sign(ctx, dim, size):
            return None
    return starts, ends, steps


def _has_sign(ctx: RuleContext, index: Dim, size: Dim) -> bool:
    """Whether it is known from which end the index counts."""
    if index.is_const or ctx.facts.non_negative(index) or index == -size:
        return True
    below = ctx.facts.lower_bound(-index)
    return below is not None and below >= 1


def _one_axis(ctx: RuleContext, size: Dim, start: Dim, end: Dim, step: int) -> tuple[Dim, Dim]:
    """The clamped start and the length on one axis."""
    facts = ctx.facts
    if step > 0:
        first = _clamp(ctx, start, size)
        span = _span(ctx, first, start, end, size)
        return first, span if step == 1 else span.ceildiv(step)
    top = size - 1
    # An empty axis has no first element: its top is -1.
    first = facts.smaller(_clamp_down(ctx, start, size, top, _ZERO), top)
    last = _clamp_down(ctx, end, size, top, Dim.of(-1))
    return first, facts.larger((first - last).ceildiv(-step), _ZERO)


def _clamp(ctx: RuleContext, index: Dim, size: Dim) -> Dim:
    """An index brought into [0, size]."""
    if index.is_const and index.const >= HUGE:
        return size
    if index.is_const and index.const <= -HUGE:
        return _ZERO
    if ctx.facts.non_negative(index):
        return ctx.facts.smaller(index, size)
    return ctx.facts.larger(size + index, _ZERO)


def _clamp_down(ctx: RuleContext, index: Dim, size: Dim, top: Dim, low: Dim) -> Dim:
    """An index brought into [low, size - 1], for negative steps."""
    if index.is_const and index.const >= HUGE:
        return top
    if index.is_const and index.const <= -HUGE:
        return low
    if ctx.facts.non_negative(index):
        return ctx.facts.smaller(index, top)
    return ctx.facts.larger(size + index, low)


def _span(ctx: RuleContext, first: Dim, start: Dim, end: Dim, size: Dim) -> Dim:
    """``max(end - start, 0)`` with both clamped, in its simplest form."""
    facts = ctx.facts
    last = _clamp(ctx, end, size)
    if last == size and start.is_const and -HUGE < start.const < 0:
        return facts.smaller(-start, size)
    if facts.at_most(first, last):
        return last - first
    # A start beyond the size, or an end before 0, gives a negative difference: no need to clamp.
    if end.is_const and -HUGE < end.const < 0:
        last = size + end
    return facts.larger(last - (start if start.is_const and start.const >= 0 else first), _ZERO)
