"""Reads at data-dependent places: Gather*, OneHot, TensorScatter.

Input -> Output: a ``Lowering`` -> pure kernels.
Guarantees: an index outside of the operand raises ``OutOfRange`` at run time; negative ones wrap.
Not here: writes at data-dependent places (scatter).
"""

from __future__ import annotations

from tilewright.kernel.ir import Expr, dim_value, select
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.indexing import (
    as_index,
    axis_of,
    checked,
    checked_forward,
    refuse_opaque,
    replaced,
    within,
)
from tilewright.lower.registry import lowers


@lowers("Gather")
def lower_gather(ctx: Lowering) -> None:
    """``out[a.., i.., b..] = x[a.., indices[i..], b..]``."""
    refuse_opaque(ctx)
    x, indices, out = ctx.input(0), ctx.input(1), ctx.output()
    if out is None:
        return
    axis = axis_of(int(ctx.node.attribute("axis", 0)), len(x.shape))
    inner = axis + len(indices.shape)

    def body(*index: Expr) -> Expr:
        picked = checked(indices[index[axis:inner]], x.shape[axis])
        return x[(*index[:axis], picked, *index[inner:])]

    ctx.pure(out, body)


@lowers("GatherElements")
def lower_gather_elements(ctx: Lowering) -> None:
    """``out[i] = x[i with indices[i] on the axis]``."""
    refuse_opaque(ctx)
    x, indices, out = ctx.input(0), ctx.input(1), ctx.output()
    if out is None:
        return
    axis = axis_of(int(ctx.node.attribute("axis", 0)), len(x.shape))
    ctx.pure(out, lambda *index: x[replaced(index, axis, checked(indices[index], x.shape[axis]))])


@lowers("GatherND")
def lower_gather_nd(ctx: Lowering) -> None:
    """``out[b.., i.., s..] = x[b.., *indices[b.., i.., :], s..]``."""
    refuse_opaque(ctx)
    x, indices, out = ctx.input(0), ctx.input(1), ctx.output()
    if out is None:
        return
    batch = int(ctx.node.attribute("batch_dims", 0))
    if not indices.shape[-1].is_const:
        raise Unlowerable("the length of index tuples is known only at run time")
    depth, outer = indices.shape[-1].const, len(indices.shape) - 1

    def body(*index: Expr) -> Expr:
        picked = tuple(
            checked(indices[(*index[:outer], k)], x.shape[batch + k]) for k in range(depth)
        )
        return x[(*index[:batch], *picked, *index[outer:])]

    ctx.pure(out, body)


@lowers("OneHot")
def lower_one_hot(ctx: Lowering) -> None:
    """``values[1]`` where the axis equals the (once wrapped) index, else ``values[0]``."""
    refuse_opaque(ctx)
    indices, values, out = ctx.input(0), ctx.input(2), ctx.output()
    if out is None:
        return
    axis = axis_of(int(ctx.node.attribute("axis", -1)), len(out.shape))
    depth = dim_value(out.shape[axis])

    def body(*index: Expr) -> Expr:
        wanted = as_index(indices[(*index[:axis], *index[axis + 1 :])])
        wanted = select(wanted.lt(0), wanted + depth, wanted)
        return select(index[axis].eq(wanted), values[1], values[0])

    ctx.pure(out, body)


@lowers("TensorScatter")
def lower_tensor_scatter(ctx: Lowering) -> None:
    """The cache with ``update`` laid over it from each batch entry's write position on."""
    refuse_opaque(ctx)
    cache, update, starts, out = ctx.input(0), ctx.input(1), ctx.optional(2), ctx.output()
    if out is None:
        return
    rank = len(cache.shape)
    axis = axis_of(int(ctx.node.attribute("axis", -2)), rank)
    circular = ctx.node.attribute("mode", "linear") == "circular"
    size, length = dim_value(cache.shape[axis]), update.shape[axis]

    def body(*index: Expr) -> Expr:
        step = index[axis]
        if starts is not None:
            first = as_index(starts[index[0]])
            if not circular:
                first = checked_forward(first, cache.shape[axis] - length + 1)
            step = step - first
        if circular:
            step = step % size
        written = update[replaced(index, axis, step)]
        return select(within(step, 0, length), written, cache[index])

    ctx.pure(out, body)
