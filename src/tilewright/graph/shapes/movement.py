"""Shape rules of operators that move elements without computing: reshape, pad, concat, split.

Input -> Output: shapes and contents -> result shapes; starts/steps, pads and offsets as params.
Guarantees: with shapes computed from shapes nothing is bound at run time.
Not here: slices' arithmetic (slicing), gather and scatter (indexing), contents (content).
"""

from __future__ import annotations

from tilewright.core.shape import Dim, product, shape_text
from tilewright.graph.info import NodeInfo
from tilewright.graph.shapes.algebra import divide_sizes, same_count
from tilewright.graph.shapes.registry import ONE, RuleContext, Shape, shape_rule

_ZERO, _MINUS = Dim.of(0), Dim.of(-1)


@shape_rule("Reshape")
def reshape(ctx: RuleContext) -> NodeInfo:
    """``0`` copies a size (unless allowzero), one ``-1`` is what is left."""
    dims = ctx.dims(1)
    shape = ctx.info(0).shape
    if shape is None:
        rank = ctx.length(1)
        return ctx.result(ctx.late(0, rank))
    if dims is None or not all(dim.is_const or ctx.facts.non_negative(dim) for dim in dims):
        rank = ctx.length(1)
        if rank is None:
            return ctx.result(None)
        allow = ctx.integer("allowzero", 0)
        return ctx.result(ctx.bind_shape("reshape", [ctx.argument(1), shape, allow], rank))
    return ctx.result(reshaped(ctx, shape, dims, allow_zero=bool(ctx.integer("allowzero", 0))))


def reshaped(ctx: RuleContext, shape: Shape, target: Shape, *, allow_zero: bool) -> Shape:
    """The result of a reshape with known targets; adds a check where counts are not proven."""
    if target.count(_MINUS) > 1:
        ctx.mismatch(f"more than one -1 in {shape_text(target)}")
    if any(dim.is_const and dim.const < -1 for dim in target):
        ctx.mismatch(f"a negative size in {shape_text(target)}")
    filled = list(target)
    for axis, dim in enumerate(target):
        if dim == _ZERO and not allow_zero:
            if axis >= len(shape):
                ctx.mismatch(f"a 0 at axis {axis}, but the data is {shape_text(shape)}")
            filled[axis] = shape[axis]
    if not allow_zero:
        _check_zeros(ctx, shape, target)
    if _MINUS in filled:
        hole = filled.index(_MINUS)
        known = [dim for axis, dim in enumerate(filled) if axis != hole]
        if known.count(_ZERO) > (0 if allow_zero else shape.count(_ZERO)):
            ctx.mismatch(f"-1 beside a size of 0 in {shape_text(target)}")
        filled[hole], exact = divide_sizes(shape, known)
        if exact:
            return tuple(filled)
    _check_count(ctx, shape, tuple(filled))
    return tuple(filled)


def _check_zeros(ctx: RuleContext, shape: Shape, target: Shape) -> None:
    """A computed size that turns out to be 0 means what a written one does: the data's size."""
    doubtful = [
        (shape[axis] if axis < len(shape) else ONE, dim)
        for axis, dim in enumerate(target)
        if not dim.is_const
        and (axis >= len(shape) or shape[axis] != dim)
        and not ctx.facts.non_negative(dim - 1)
    ]
    if doubtful:
        own, sizes = zip(*doubtful, strict=True)
        ctx.check("require_no_copies", [own, sizes])


def _check_count(ctx: RuleContext, shape: Shape, target: Shape) -> None:
    if same_count(shape, target):
        return
    before, after = product(shape), product(target)
    if before == after:
        return
    if (before.is_const and after.is_const) or ctx.facts.different(before, after):
        ctx.mismatch(f"{shape_text(shape)} cannot become {shape_text(target)}")
    ctx.check("require_same_count", [shape, target])


@shape_rule("Flatten")
def flatten(ctx: RuleContext) -> NodeInfo:
    """Two axes: what lies before ``axis``, and the rest."""
    shape = ctx.info(0).shape
    if shape is None:
        return ctx.result(ctx.late(0, 2))
    axis = ctx.integer("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        ctx.mismatch(f"axis {axis} is outside of rank {len(shape)}")
    axis = axis + len(shape) if axis < 0 else axis
    return ctx.result((product(shape[:axis]), product(shape[axis:])))


@shape_rule("Squeeze")
def squeeze(ctx: RuleContext) -> NodeInfo:
    """Drops axes of size 1."""
    shape = ctx.shape(0)
    if not ctx.has(1):
        if not all(dim.is_const for dim in shape):
            return ctx.result(None)
        return ctx.result(tuple(dim for dim in shape if dim != ONE))
    axes = ctx.ints(1)
    if axes is None:
        count = ctx.length(1)
        if count is None:
            return ctx.result(None)
        rank = len(shape) - count
        return ctx.result(ctx.bind_shape("squeeze", [ctx.argument(1), shape], rank))
    dropped = ctx.normal_axes(axes, len(shape))
    for axis in dropped:
        ctx.equal(shape[axis], ONE, f"axis {axis} is squeezed")
    return ctx.result(tuple(dim for axis, dim in enumerate(shape) if axis not in dropped))


@shape_rule("Unsqueeze")
def unsqueeze(ctx: RuleContext) -> NodeInfo:
    """Adds axes of size 1."""
    shape = ctx.shape(0)
    axes = ctx.ints(1)
    if axes is None:
        count = ctx.length(1)
        if count is None:
            return ctx.result(None)
        return ctx.result(ctx.bind_shape("unsqueeze", [ctx.argument(1), shape], len(shape) + count))
    added = ctx.normal_axes(axes, len(shape) + len(axes))
    rest = iter(shape)
    return ctx.result(
        tuple(ONE if axis in added else next(rest) for axis in range(len(shape) + len(axes)))
    )


@shape_rule("Expand")
def expand(ctx: RuleContext) -> NodeInfo:
    """Broadcasts with the given sizes."""
    shape, target = ctx.shape(0), ctx.dims(1)
    if target is None or not all(ctx.facts.non_negative(dim) for dim in target):
        length = ctx.length(1)
        if length is None:
            return ctx.result(None)
        rank = max(length, len(shape))
        return ctx.result(ctx.bind_shape("expand", [ctx.argument(1), shape], rank))
    return ctx.result(ctx.broadcast(shape, target))


@shape_rule("Tile")
def tile(ctx: RuleContext) -> NodeInfo:
    """Each axis repeated."""
    shape, repeats = ctx.shape(0), ctx.dims(1)
    if repeats is None:
        return ctx.result(ctx.bind_shape("tile", [ctx.argument(1), shape], len(shape)))
    if len(repeats) != len(shape):
        ctx.mismatch(f"{len(repeats)} repeats for {shape_text(shape)}")
    if any(dim.is_const and dim.const < 0 for dim in repeats):
        ctx.mismatch("a negative repeat")
    return ctx.result(tuple(dim * count for dim, count in zip(shape, repeats, strict=True)))


@shape_rule("Transpose")
def transpose(ctx: RuleContext) -> NodeInfo:
    """Axes permuted; reversed by default."""
    shape = ctx.shape(0)
    permutation = ctx.integers("perm")
    if permutation is None:
        permutation = tuple(reversed(range(len(shape))))
    if len(permutation) != len(shape):
        ctx.mismatch(f"perm {list(permutation)} does not fit {shape_text(shape)}")
    return ctx.result(tuple(shape[axis] for axis in ctx.normal_axes(permutation, len(shape))))


@shape_rule("Concat")
def concat(ctx: RuleContext) -> NodeInfo:
    """Sizes add up along the axis and agree elsewhere."""
    ctx.same_dtype(*range(len(ctx.inputs)))
    first = ctx.shape(0)
    axis = ctx.axis(rank=len(first))
    result = list(first)
    for position in range(1, len(ctx.inputs)):
        shape = ctx.shape_of_rank(position, len(first))
        for own, dim in enumerate(shape):
            if own == axis:
                result[axis] = result[axis] + dim
            else:
                result[own] = ctx.equal(result[own], dim, f"axis {own} of input {position}")
    return ctx.result(tuple(result))


@shape_rule("Split")
def split(ctx: RuleContext) -> NodeInfo:
    """Parts along an axis; ``offsets`` says where each begins."""
    shape = ctx.shape(0)
    axis = ctx.axis(0, rank=len(shape))
    count = len(ctx.node.outputs)
    size = shape[axis]
    sizes = ctx.dims(1)
    if ctx.has(1) and sizes is None:
        bound = ctx.bind(
            "split",
            [ctx.argument(1), (size,), count],
            [f"{name}{part}" for name in ("offset", "size") for part in range(count)],
        )
        offsets, sizes = bound[:count], bound[count:]
        ctx.facts.learn(bound)
    elif sizes is None:
        offsets, sizes = _even_parts(ctx, size, int(ctx.integer("num_outputs", count)))
    else:
        if len(sizes) != count or any(dim.is_const and dim.const < 0 for dim in sizes):
            ctx.mismatch(f"split {shape_text(sizes)} for {count} outputs")
        offsets = tuple(sum(sizes[:part], Dim.of(0)) for part in range(count))
        ctx.equal(sum(sizes, Dim.of(0)), size, f"the parts of axis {axis}")
    parts = [(*shape[:axis], part, *shape[axis + 1 :]) for part in sizes]
    return ctx.result(*parts, params={"offsets": offsets})


def _even_parts(ctx: RuleContext, size: Dim, count: int) -> tuple[Shape, Shape]:
    """Equal parts; the last is smaller where the size is not a multiple."""
    if count < len(ctx.node.outputs):
        ctx.mismatch(f"num_outputs {count} for {len(ctx.node.outputs)} outputs")
    part, wanted = size.ceildiv(count), len(ctx.node.outputs)
    if part * count == size:
        return tuple(part * k for k in range(wanted)), (part,) * wanted
    offsets = tuple(ctx.facts.smaller(part * k, size) for k in range(wanted + 1))
    return offsets[:-1], tuple(offsets[k + 1] - offsets[k] for k in range(wanted))


@shape_rule("Pad")
def pad(ctx: RuleContext) -> NodeInfo:
    """``pads``: begins then ends of all axes; may be negative."""
    shape = ctx.shape(0)
    rank = len(shape)
    axes = ctx.ints(3) if ctx.has(3) else list(range(rank))
    pads = ctx.dims(1)
    if axes is None or pads is None:
        names = [f"pad{k}" for k in range(2 * rank)]
        given = ctx.bind("pad", [ctx.argument(1), ctx.argument(3), shape], names)
    else:
        where = ctx.normal_axes(axes, rank)
        if len(pads) != 2 * len(where):
            ctx.mismatch(f"{len(pads)} pads for {len(where)} axes")
        full = [_ZERO] * (2 * rank)
        for number, axis in enumerate(where):
            full[axis], full[rank + axis] = pads[number], pads[len(where) + number]
        given = tuple(full)
    result = tuple(shape[axis] + given[axis] + given[rank + axis] for axis in range(rank))
    if any(dim.is_const and dim.const < 0 for dim in result):
        ctx.mismatch(f"pads {shape_text(given)} leave nothing of {shape_text(shape)}")
    return ctx.result(result, params={"pads": given})


@shape_rule("DepthToSpace")
def depth_to_space(ctx: RuleContext) -> NodeInfo:
    """Blocks of channels become pixels."""
    batch, channels, height, width = ctx.shape_of_rank(0, 4)
    block = ctx.integer("blocksize")
    ctx.require_least("blocksize", [block])
    depth = _exact(ctx, channels, block * block, "channels")
    return ctx.result((batch, depth, height * block, width * block))


@shape_rule("SpaceToDepth")
def space_to_depth(ctx: RuleContext) -> NodeInfo:
    """Blocks of pixels become channels."""
    batch, channels, height, width = ctx.shape_of_rank(0, 4)
    block = ctx.integer("blocksize")
    ctx.require_least("blocksize", [block])
    rows, columns = _exact(ctx, height, block, "height"), _exact(ctx, width, block, "width")
    return ctx.result((batch, channels * (block * block), rows, columns))


def _exact(ctx: RuleContext, dim: Dim, divisor: int, what: str) -> Dim:
    quotient = dim // divisor
    ctx.equal(quotient * divisor, dim, f"{what} must be a multiple of {divisor}")
    return quotient


@shape_rule("ReverseSequence")
def reverse_sequence(ctx: RuleContext) -> NodeInfo:
    """The same shape; one length for each batch entry."""
    shape = ctx.shape(0)
    batch = ctx.axis(1, rank=len(shape), name="batch_axis")
    ctx.equal(ctx.shape_of_rank(1, 1)[0], shape[batch], "the number of lengths")
    return ctx.result(shape)


@shape_rule("Trilu")
def trilu(ctx: RuleContext) -> NodeInfo:
    """The same shape; ``k`` is the diagonal, 0 when absent."""
    shape = ctx.shape(0)
    if len(shape) < 2:
        ctx.mismatch("a matrix is needed")
    k = ctx.dims(1) if ctx.has(1) else (_ZERO,)
    if k is None:
        k = ctx.bind("integer", [ctx.argument(1)], ["k"])
    return ctx.result(shape, params={"k": k[:1]})
