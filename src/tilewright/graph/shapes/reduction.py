"""Shape rules of operators that work along axes: reductions, arg-extremes, running sums, TopK.

Input -> Output: shape and axes -> result shape; ``reduced`` (0/1 for each axis), ``reduce_extent``
(its size where reduced, else 1), ``keep_extent`` (the opposite), ``outer_axis_inner``, ``k``.
Guarantees: axes that only exist at run time give symbols bound from their tensor.
"""

from __future__ import annotations

from tilewright.core.dtypes import INT64
from tilewright.core.shape import Dim, product
from tilewright.graph.info import NodeInfo
from tilewright.graph.shapes.registry import ONE, RuleContext, Shape, like, shape_rule

_ZERO = Dim.of(0)
_REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum ReduceSumSquare"
).split()


@shape_rule(*_REDUCTIONS)
def reduce_rule(ctx: RuleContext) -> NodeInfo:
    """Axes from a constant or a run-time tensor; no axes mean all (or none, by attribute)."""
    noop = bool(ctx.integer("noop_with_empty_axes", 0))
    keep = bool(ctx.integer("keepdims", 1))
    axes = ctx.ints(1) if ctx.has(1) else []
    if ctx.info(0).shape is None and axes is not None and not (list(axes) or noop or keep):
        return ctx.result(())  # a scalar, whatever the rank
    shape = ctx.shape(0)
    if axes is None:
        return _run_time_axes(ctx, shape, noop=noop, keep=keep)
    if axes:
        chosen = set(ctx.normal_axes(axes, len(shape)))
    else:
        chosen = set() if noop else set(range(len(shape)))
    flags = tuple(ONE if axis in chosen else _ZERO for axis in range(len(shape)))
    return _reduced(ctx, shape, flags, keep=keep)


@shape_rule("ArgMax", "ArgMin", dtypes=(INT64,))
def arg_rule(ctx: RuleContext) -> NodeInfo:
    """One axis reduced to the place of its extreme."""
    shape = ctx.shape(0)
    axis = ctx.axis(0, rank=len(shape))
    flags = tuple(ONE if own == axis else _ZERO for own in range(len(shape)))
    return _reduced(ctx, shape, flags, keep=bool(ctx.integer("keepdims", 1)))


def _extents(shape: Shape, flags: Shape) -> dict[str, Shape]:
    pairs = list(zip(shape, flags, strict=True))
    return {
        "reduced": flags,
        "reduce_extent": tuple(flag * dim + (1 - flag) for dim, flag in pairs),
        "keep_extent": tuple((1 - flag) * dim + flag for dim, flag in pairs),
    }


def _reduced(ctx: RuleContext, shape: Shape, flags: Shape, *, keep: bool) -> NodeInfo:
    params = _extents(shape, flags)
    result = tuple(
        extent
        for extent, flag in zip(params["keep_extent"], flags, strict=True)
        if keep or flag == _ZERO
    )
    return ctx.result(result, params=params)


def _run_time_axes(ctx: RuleContext, shape: Shape, *, noop: bool, keep: bool) -> NodeInfo:
    rank = len(shape)
    arguments = [ctx.argument(1), rank, noop]
    flags = ctx.bind("reduce_axes", arguments, [f"reduced{axis}" for axis in range(rank)])
    params = _extents(shape, flags)
    ctx.facts.learn((*params["reduce_extent"], *params["keep_extent"]))
    if keep:
        return ctx.result(params["keep_extent"], params=params)
    count = ctx.length(1)
    if count is None or count > rank:
        return ctx.result(None, params=params)
    left = rank - count if count else rank if noop else 0
    return ctx.result(ctx.bind_shape("reduce_shape", [*arguments, shape], left), params=params)


@shape_rule("CumSum", "CumProd")
def running(ctx: RuleContext) -> NodeInfo:
    """The same shape; the sizes before, at and after the axis as ``outer_axis_inner``."""
    shape = ctx.shape(0)
    return ctx.result(shape, params={"outer_axis_inner": around_axis(ctx, 1, shape)})


def around_axis(ctx: RuleContext, position: int, shape: Shape) -> Shape:
    """Sizes before, at and after the axis that an input names, which may be a run-time tensor."""
    axis = ctx.ints(position)
    if axis is None:
        return ctx.bind_shape("axis_split", [ctx.argument(position), shape], 3, "split")
    if len(axis) != 1:
        ctx.mismatch("the axis must be a scalar")
    number = ctx.normal_axis(axis[0], len(shape))
    return product(shape[:number]), shape[number], product(shape[number + 1 :])


@shape_rule("TopK", dtypes=(like(0), INT64))
def top_k(ctx: RuleContext) -> NodeInfo:
    """The ``k`` extreme elements along an axis."""
    shape = ctx.shape(0)
    axis = ctx.axis(-1, rank=len(shape))
    wanted = ctx.dims(1)
    size = shape[axis]
    if wanted is None or not ctx.facts.non_negative(wanted[0]):
        (k,) = ctx.bind_shape("topk", [ctx.argument(1), (size,)], 1, "k")
    else:
        k = wanted[0]
        if k.is_const and size.is_const and k.const > size.const:
            ctx.mismatch(f"k = {k} of {size} elements")
        if not ctx.facts.at_most(k, size):
            ctx.check("require_at_most", [(k,), (size,), "k"])
    return ctx.result((*shape[:axis], k, *shape[axis + 1 :]), params={"k": (k,)})
