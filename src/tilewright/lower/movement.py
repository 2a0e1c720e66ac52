"""Operators that rename or repeat elements: Transpose, Reshape, Expand, Tile, Trilu...

Input -> Output: a ``Lowering`` -> a view where memory does not change, else one pure kernel.
Guarantees: any element type that kernels can hold; all dims may be symbolic.
Not here: slices and pads (slice_pad), gathers (gather).
"""

from __future__ import annotations

from tilewright.core.shape import Dim
from tilewright.kernel.ir import Buffer, Expr, dim_value, select
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.indexing import broadcast_load, refuse_opaque, zero
from tilewright.lower.registry import lowers


@lowers("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")
def lower_views(ctx: Lowering) -> None:
    """The same memory under another shape."""
    refuse_opaque(ctx)
    out = ctx.output()
    if out is not None:
        ctx.view(out, ctx.input(0))


@lowers("Transpose")
def lower_transpose(ctx: Lowering) -> None:
    """``out[i] = x[...]`` where axis k of the result is axis ``perm[k]`` of the operand."""
    refuse_opaque(ctx)
    x, out = ctx.input(0), ctx.output()
    if out is None:
        return
    rank = len(x.shape)
    order = [int(axis) for axis in ctx.node.attribute("perm") or reversed(range(rank))]
    if sorted(order) != list(range(rank)):
        raise Unlowerable(f"perm {order} of rank {rank}")
    moved = [axis for axis in order if not _is_one(x.shape[axis])]
    if moved == sorted(moved):
        ctx.view(out, x)
        return
    place = {axis: position for position, axis in enumerate(order)}
    ctx.pure(out, lambda *index: x[tuple(index[place[axis]] for axis in range(rank))])


@lowers("Expand")
def lower_expand(ctx: Lowering) -> None:
    """Broadcasts to the output shape."""
    refuse_opaque(ctx)
    x, out = ctx.input(0), ctx.output()
    if out is None:
        return
    if _same_elements(x, out):
        ctx.view(out, x)
    else:
        ctx.pure(out, lambda *index: broadcast_load(x, index, out.shape))


@lowers("Tile")
def lower_tile(ctx: Lowering) -> None:
    """``out[i] = x[i mod d]`` on every axis."""
    refuse_opaque(ctx)
    x, out = ctx.input(0), ctx.output()
    if out is None:
        return
    if _same_elements(x, out):
        ctx.view(out, x)
        return

    def body(*index: Expr) -> Expr:
        parts = zip(index, x.shape, out.shape, strict=True)
        return x[tuple(i if d == size else i % dim_value(d) for i, d, size in parts)]

    ctx.pure(out, body)


@lowers("Trilu")
def lower_trilu(ctx: Lowering) -> None:
    """Keeps the upper or lower triangle of the last two axes, zero elsewhere."""
    refuse_opaque(ctx)
    x, out = ctx.input(0), ctx.output()
    if out is None:
        return
    offset = dim_value(ctx.param("k")[0])
    upper = bool(ctx.node.attribute("upper", 1))

    def body(*index: Expr) -> Expr:
        diagonal = index[-1] - index[-2]
        kept = diagonal.ge(offset) if upper else diagonal.le(offset)
        return select(kept, x[index], zero(x.dtype))

    ctx.pure(out, body)


@lowers("DepthToSpace")
def lower_depth_to_space(ctx: Lowering) -> None:
    """Moves blocks of channels into space; DCR keeps depth innermost, CRD outermost."""
    refuse_opaque(ctx)
    x, out = ctx.input(0), ctx.output()
    if out is None:
        return
    block = int(ctx.node.attribute("blocksize"))
    depth = dim_value(out.shape[1])
    rows_first = ctx.node.attribute("mode", "DCR") == "DCR"

    def body(n: Expr, c: Expr, h: Expr, w: Expr) -> Expr:
        inside = (h % block) * block + w % block
        channel = inside * depth + c if rows_first else c * (block * block) + inside
        return x[n, channel, h / block, w / block]

    ctx.pure(out, body)


@lowers("SpaceToDepth")
def lower_space_to_depth(ctx: Lowering) -> None:
    """Moves blocks of space into channels; DCR puts the block position outermost, CRD innermost."""
    refuse_opaque(ctx)
    x, out = ctx.input(0), ctx.output()
    if out is None:
        return
    block = int(ctx.node.attribute("blocksize"))
    depth, area = dim_value(x.shape[1]), block * block
    outermost = ctx.node.attribute("mode", "DCR") == "DCR"

    def body(n: Expr, c: Expr, h: Expr, w: Expr) -> Expr:
        inside, channel = (c / depth, c % depth) if outermost else (c % area, c / area)
        return x[n, channel, h * block + inside / block, w * block + inside % block]

    ctx.pure(out, body)


def _is_one(dim: Dim) -> bool:
    return dim == Dim.of(1)


def _same_elements(x: Buffer, out: Buffer) -> bool:
    """Whether two shapes differ only by ones, so that memory is the same."""
    return [dim for dim in x.shape if not _is_one(dim)] == [
        dim for dim in out.shape if not _is_one(dim)
    ]
