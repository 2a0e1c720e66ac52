"""Shape rules of attention, linear attention, rotary embedding and causal convolution with state.

Input -> Output: query, key, value (and past) shapes -> result and present shapes.
Source: ONNX Attention-25, LinearAttention-27, RotaryEmbedding-23, CausalConvWithState-27,
ai.onnx.preview FlexAttention-1.
"""

from __future__ import annotations

from tilewright.core.dtypes import BY_CODE, FLOAT32, FLOAT64
from tilewright.core.shape import Dim
from tilewright.graph.info import NodeInfo, TensorInfo
from tilewright.graph.shapes.registry import RuleContext, Shape, like, shape_rule
from tilewright.graph.view import GraphView

Heads = tuple[Dim, Dim, Dim, Dim]  # batch, heads, sequence, head size


def _heads(ctx: RuleContext, position: int, attribute: str) -> Heads:
    """An operand as [batch, heads, sequence, head size]."""
    shape = ctx.shape(position)
    if len(shape) == 4:
        return shape[0], shape[1], shape[2], shape[3]
    if len(shape) != 3:
        ctx.mismatch(f"input {position} must have rank 3 or 4")
    count = ctx.integer(attribute)
    return shape[0], Dim.of(count), shape[1], _per_head(ctx, shape[2], count)


def _per_head(ctx: RuleContext, hidden: Dim, count: int) -> Dim:
    if count < 1:
        ctx.fail("the number of heads must be positive")
    size = hidden // count
    ctx.equal(size * count, hidden, f"hidden size for {count} heads")
    return size


def _group(ctx: RuleContext, query: Dim, key: Dim) -> None:
    if query.is_const and key.is_const and (not key.const or query.const % key.const):
        ctx.mismatch(f"{query} query heads for {key} key heads")


@shape_rule("Attention", dtypes=(like(0), like(1), like(2), like(0)))
def attention(ctx: RuleContext) -> NodeInfo:
    """The query's layout with the value's head size; presents are past and new keys together."""
    batch, heads, rows, size = _heads(ctx, 0, "q_num_heads")
    key = _heads(ctx, 1, "kv_num_heads")
    value = _heads(ctx, 2, "kv_num_heads")
    ctx.equal(size, key[3], "head sizes of query and key")
    ctx.equal(key[2], value[2], "lengths of key and value")
    ctx.equal(key[1], value[1], "heads of key and value")
    for other in (key, value):
        ctx.equal(batch, other[0], "batches")
    _group(ctx, heads, key[1])
    total = key[2]
    if ctx.has(4) != ctx.has(5):
        ctx.fail("past key and past value go together")
    if ctx.has(4):
        past_key, past_value = ctx.shape_of_rank(4, 4), ctx.shape_of_rank(5, 4)
        ctx.equal(past_key[2], past_value[2], "lengths of past key and value")
        for past, new in ((past_key, key), (past_value, value)):
            for axis in (0, 1, 3):
                ctx.equal(new[axis], past[axis], f"axis {axis} of the past")
        total = total + past_key[2]
    if ctx.has(6):
        ctx.equal(ctx.shape_of_rank(6, 1)[0], batch, "one length for each batch entry")
    if len(ctx.shape(0)) == 4:
        result: Shape = (batch, heads, rows, value[3])
    else:
        result = (batch, rows, heads * value[3])
    return ctx.result(
        result,
        (batch, key[1], total, size),
        (batch, value[1], total, value[3]),
        (batch, heads, rows, total),
    )


@shape_rule("FlexAttention", domain="ai.onnx.preview")
def flex_attention(ctx: RuleContext) -> NodeInfo:
    """Attention over four axes, with graphs that modify scores and probabilities."""
    query, key, value = (ctx.shape_of_rank(position, 4) for position in range(3))
    ctx.equal(query[3], key[3], "head sizes of query and key")
    ctx.equal(key[2], value[2], "lengths of key and value")
    ctx.equal(key[1], value[1], "heads of key and value")
    for other in (key, value):
        ctx.equal(query[0], other[0], "batches")
    _group(ctx, query[1], key[1])
    code = ctx.integer("softmax_precision", 0)
    default = FLOAT64 if ctx.dtype(0) is FLOAT64 else FLOAT32
    scores = TensorInfo(
        dtype=BY_CODE.get(code, default), shape=(query[0], query[1], query[2], key[2])
    )
    for name in ("score_mod", "prob_mod"):
        graph = ctx.node.attribute(name)
        if isinstance(graph, GraphView):
            ctx.recurse(graph, (scores,))
    return ctx.result((*query[:3], value[3]))


@shape_rule("LinearAttention", dtypes=(like(0), lambda ctx: ctx.dtype(3 if ctx.has(3) else 0)))
def linear_attention(ctx: RuleContext) -> NodeInfo:
    """[batch, time, query heads * value size], and a state of key size by value size a head."""
    query, key, value = (ctx.shape_of_rank(position, 3) for position in range(3))
    q_heads, kv_heads = ctx.integer("q_num_heads"), ctx.integer("kv_num_heads")
    key_size = _per_head(ctx, query[2], q_heads)
    value_size = _per_head(ctx, value[2], kv_heads)
    ctx.equal(key[2], key_size * kv_heads, "hidden size of the key")
    _group(ctx, Dim.of(q_heads), Dim.of(kv_heads))
    for other in (key, value):
        for axis in (0, 1):
            ctx.equal(query[axis], other[axis], f"axis {axis}")
    state = (query[0], Dim.of(kv_heads), key_size, value_size)
    if ctx.has(3):
        for own, size in zip(ctx.shape_of_rank(3, 4), state, strict=True):
            ctx.equal(size, own, "past state")
    for position in (4, 5):
        if ctx.has(position):
            gate = ctx.shape_of_rank(position, 3)
            for axis in (0, 1):
                ctx.equal(query[axis], gate[axis], f"axis {axis} of input {position}")
    return ctx.result((query[0], query[1], value_size * q_heads), state)


@shape_rule("RotaryEmbedding")
def rotary_embedding(ctx: RuleContext) -> NodeInfo:
    """The input's shape; caches of one half of the rotated size."""
    shape = ctx.shape(0)
    _, _, _, size = _heads(ctx, 0, "num_heads")
    rotated = ctx.integer("rotary_embedding_dim", 0)
    half = Dim.of(rotated // 2) if rotated else size // 2
    rank = 2 if ctx.has(3) else 3
    cosine, sine = ctx.shape_of_rank(1, rank), ctx.shape_of_rank(2, rank)
    for own, other in zip(cosine, sine, strict=True):
        ctx.equal(own, other, "the caches")
    ctx.equal(cosine[-1], half, "the caches' last size")
    length = shape[2] if len(shape) == 4 else shape[1]
    places = ctx.shape_of_rank(3, 2) if ctx.has(3) else cosine[:2]
    ctx.equal(places[0], shape[0], "batches")
    ctx.equal(places[1], length, "positions")
    return ctx.result(shape)


@shape_rule("CausalConvWithState")
def causal_conv(ctx: RuleContext) -> NodeInfo:
    """The input's shape, and the last kernel - 1 positions as state."""
    ctx.same_dtype(0, 1, 2, 3)
    data, weights = ctx.shape_of_rank(0, 3), ctx.shape_of_rank(1, 3)
    ctx.equal(weights[0], data[1], "channels")
    ctx.equal(weights[1], Dim.of(1), "weights of a depthwise convolution")
    if ctx.has(2):
        ctx.equal(ctx.shape_of_rank(2, 1)[0], data[1], "one bias a channel")
    state = (data[0], data[1], weights[2] - 1)
    if ctx.has(3):
        for own, size in zip(ctx.shape_of_rank(3, 3), state, strict=True):
            ctx.equal(size, own, "past state")
    return ctx.result(data, state)
