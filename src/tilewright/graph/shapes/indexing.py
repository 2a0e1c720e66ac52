"""Shape rules of gathers, scatters and operators whose result's length depends on values.

Input -> Output: shapes -> result shapes; lengths found in the data are symbols bound from it.
Not here: indices out of range (the kernels check them).
"""

from __future__ import annotations

from tilewright.core.dtypes import BOOL, INT64
from tilewright.core.shape import Dim, product, shape_text
from tilewright.graph.info import NodeInfo
from tilewright.graph.shapes.registry import RuleContext, Shape, UnknownRank, like, shape_rule


@shape_rule("Gather")
def gather(ctx: RuleContext) -> NodeInfo:
    """The axis is replaced by the indices' shape."""
    data, indices = ctx.shape(0), ctx.shape(1)
    axis = ctx.axis(0, rank=len(data))
    return ctx.result((*data[:axis], *indices, *data[axis + 1 :]))


@shape_rule("GatherElements")
def gather_elements(ctx: RuleContext) -> NodeInfo:
    """The indices' shape; other axes must not exceed the data's."""
    data = ctx.shape(0)
    indices = ctx.shape_of_rank(1, len(data))
    axis = ctx.axis(0, rank=len(data))
    _within(ctx, indices, data, axis)
    return ctx.result(indices)


def _within(ctx: RuleContext, small: Shape, large: Shape, but: int) -> None:
    for own, (size, limit) in enumerate(zip(small, large, strict=True)):
        if own == but or ctx.facts.at_most(size, limit):
            continue
        if size.is_const and limit.is_const:
            ctx.mismatch(f"{shape_text(small)} exceeds {shape_text(large)} at axis {own}")
        ctx.check("require_at_most", [(size,), (limit,), f"axis {own}"])


@shape_rule("GatherND")
def gather_nd(ctx: RuleContext) -> NodeInfo:
    """Rows of the last index axis pick slices."""
    data, indices = ctx.shape(0), ctx.shape(1)
    batch = ctx.integer("batch_dims", 0)
    depth = _index_depth(ctx, indices)
    if not 0 <= batch < min(len(data), len(indices)) or batch + depth > len(data):
        ctx.mismatch(f"indices {shape_text(indices)} into {shape_text(data)}")
    for left, right in zip(data[:batch], indices[:batch], strict=True):
        ctx.equal(left, right, "batch axes")
    return ctx.result((*indices[:-1], *data[batch + depth :]))


def _index_depth(ctx: RuleContext, indices: Shape) -> int:
    if not indices:
        ctx.mismatch("indices need an axis")
    if not indices[-1].is_const:
        raise UnknownRank
    return indices[-1].const


@shape_rule("ScatterND")
def scatter_nd(ctx: RuleContext) -> NodeInfo:
    """The data's shape; updates look like what GatherND would give."""
    data, indices = ctx.shape(0), ctx.shape(1)
    if indices and not indices[-1].is_const:
        return ctx.result(data)
    depth = _index_depth(ctx, indices)
    if depth > len(data):
        ctx.mismatch(f"indices {shape_text(indices)} into {shape_text(data)}")
    expected = (*indices[:-1], *data[depth:])
    updates = ctx.shape_of_rank(2, len(expected))
    for own, size in zip(updates, expected, strict=True):
        ctx.equal(size, own, "updates")
    return ctx.result(data)


@shape_rule("ScatterElements", "Scatter")
def scatter_elements(ctx: RuleContext) -> NodeInfo:
    """The data's shape; updates look like the indices."""
    data = ctx.shape(0)
    indices, updates = ctx.shape_of_rank(1, len(data)), ctx.shape_of_rank(2, len(data))
    for own, size in zip(updates, indices, strict=True):
        ctx.equal(size, own, "updates")
    _within(ctx, indices, data, ctx.axis(0, rank=len(data)))
    return ctx.result(data)


@shape_rule("TensorScatter")
def tensor_scatter(ctx: RuleContext) -> NodeInfo:
    """The cache's shape; updates differ on the sequence axis only."""
    cache = ctx.shape(0)
    updates = ctx.shape_of_rank(1, len(cache))
    axis = ctx.axis(-2, rank=len(cache))
    if axis == 0:
        ctx.fail("axis 0 is the batch")
    for own, (size, given) in enumerate(zip(cache, updates, strict=True)):
        if own != axis:
            ctx.equal(size, given, f"axis {own} of the update")
    if ctx.has(2):
        ctx.equal(ctx.shape_of_rank(2, 1)[0], cache[0], "one write index for each batch entry")
    return ctx.result(cache)


@shape_rule("OneHot", dtypes=(like(2),))
def one_hot(ctx: RuleContext) -> NodeInfo:
    """A new axis of size ``depth``."""
    indices = ctx.shape(0)
    axis = ctx.axis(-1, rank=len(indices) + 1)
    content = ctx.content(1)
    if content is not None and content.dtype != object and content.size == 1:
        depth = Dim.of(int(content.reshape(-1)[0]))
        if depth.const < 0:
            ctx.mismatch(f"a depth of {depth}")
    else:
        known = ctx.dims(1)
        if known is not None and ctx.facts.non_negative(known[0]):
            depth = known[0]
        else:
            (depth,) = ctx.bind_shape("onehot", [ctx.argument(1)], 1, "depth")
    return ctx.result((*indices[:axis], depth, *indices[axis:]), params={"depth": (depth,)})


@shape_rule("NonZero", dtypes=(INT64,))
def non_zero(ctx: RuleContext) -> NodeInfo:
    """[rank, count]; the count is found in the data."""
    shape = ctx.info(0).shape
    (count,) = ctx.bind_shape("nonzero_count", [ctx.argument(0)], 1, "count")
    if shape is None:
        (rank,) = ctx.bind_shape("tensor_rank", [ctx.argument(0)], 1, "rank")
        return ctx.result((rank, count))
    return ctx.result((Dim.of(len(shape)), count))


@shape_rule("Compress")
def compress(ctx: RuleContext) -> NodeInfo:
    """Slices where the condition holds, along an axis or of the flat data."""
    if ctx.dtype(1) is not BOOL:
        ctx.fail("the condition must be bool")
    axis = ctx.node.attribute("axis")
    if axis is None:
        shape = ctx.info(0).shape
        size = (product(shape),) if shape is not None else None
        arguments = [ctx.argument(1), size if size is not None else None]
        return ctx.result(ctx.bind_shape("compress_count", arguments, 1, "count"))
    data = ctx.shape(0)
    own = ctx.axis(rank=len(data))
    (count,) = ctx.bind_shape("compress_count", [ctx.argument(1), (data[own],)], 1, "count")
    return ctx.result((*data[:own], count, *data[own + 1 :]))


@shape_rule("Unique", dtypes=(like(0), INT64))
def unique(ctx: RuleContext) -> NodeInfo:
    """How many are distinct is known only once they are found."""
    data = ctx.shape(0)
    if ctx.node.attribute("axis") is None:
        count = ctx.late_dim(0, 0)
        return ctx.result((count,), (count,), (product(data),), (count,))
    own = ctx.axis(rank=len(data))
    count = ctx.late_dim(0, own)
    values = (*data[:own], count, *data[own + 1 :])
    return ctx.result(values, (count,), (data[own],), (count,))


@shape_rule("NonMaxSuppression", dtypes=(INT64,))
def non_max_suppression(ctx: RuleContext) -> NodeInfo:
    """[selected, 3]; the number selected is known only afterwards."""
    boxes, scores = ctx.shape_of_rank(0, 3), ctx.shape_of_rank(1, 3)
    ctx.equal(boxes[0], scores[0], "batches of boxes and scores")
    ctx.equal(boxes[1], scores[2], "boxes and scores")
    ctx.equal(boxes[2], Dim.of(4), "coordinates of a box")
    return ctx.result((ctx.late_dim(0, 0), Dim.of(3)))
