"""Shape rules of normalisations and losses.

Input -> Output: the data's shape, with scales and statistics checked against its channels.
"""

from __future__ import annotations

from tilewright.core.dtypes import BY_CODE, DType
from tilewright.core.shape import Dim
from tilewright.graph.info import NodeInfo
from tilewright.graph.shapes.elementwise import broadcast_into
from tilewright.graph.shapes.registry import ONE, RuleContext, Shape, like, shape_rule


@shape_rule("BatchNormalization", dtypes=(like(0), like(3)))
def batch_norm(ctx: RuleContext) -> NodeInfo:
    """The data's shape; running statistics one a channel."""
    shape = ctx.shape(0)
    channels = shape[1] if len(shape) > 1 else ONE
    for position in range(1, 5):
        channels = _one_per_channel(ctx, position, channels)
    return ctx.result(shape, (channels,))


@shape_rule("InstanceNormalization", "GroupNormalization")
def channel_norm(ctx: RuleContext) -> NodeInfo:
    """The data's shape; scale and bias one a channel."""
    shape = ctx.shape(0)
    if len(shape) < 2:
        ctx.mismatch("batch and channels are needed")
    for position in (1, 2):
        _one_per_channel(ctx, position, shape[1])
    if ctx.node.op_type == "GroupNormalization":
        groups = ctx.integer("num_groups")
        ctx.require_least("num_groups", [groups])
        ctx.equal(shape[1] // groups * groups, shape[1], f"channels in {groups} groups")
    return ctx.result(shape)


def _one_per_channel(ctx: RuleContext, position: int, channels: Dim) -> Dim:
    (own,) = ctx.shape_of_rank(position, 1)
    return ctx.equal(channels, own, f"input {position} has one value a channel")


def _stash(ctx: RuleContext) -> DType:
    code = ctx.integer("stash_type", 1)
    if code not in BY_CODE:
        ctx.fail(f"stash_type {code} is no element type")
    return BY_CODE[code]


@shape_rule("LayerNormalization", dtypes=(like(0), _stash))
def layer_norm(ctx: RuleContext) -> NodeInfo:
    """The data's shape; statistics keep the normalised axes as 1."""
    shape = ctx.shape(0)
    axis = ctx.axis(-1, rank=len(shape))
    for position in (1, 2):
        if ctx.has(position):
            broadcast_into(ctx, position, 0)
    statistics = (*shape[:axis], *(ONE,) * (len(shape) - axis))
    return ctx.result(shape, statistics)


@shape_rule("RMSNormalization", dtypes=(like(1),))
def rms_norm(ctx: RuleContext) -> NodeInfo:
    """The data's shape in the scale's type."""
    ctx.axis(-1, rank=len(ctx.shape(0)))
    return ctx.result(broadcast_into(ctx, 1, 0))


def _loss_shape(ctx: RuleContext) -> Shape:
    scores, target = ctx.shape(0), ctx.shape(1)
    if len(scores) != len(target) + 1 or len(scores) < 2:
        ctx.mismatch("scores need one axis more than the labels, the second")
    plain = (scores[0], *scores[2:])
    shape = tuple(ctx.equal(a, b, "labels") for a, b in zip(plain, target, strict=True))
    if ctx.has(2):
        _one_per_channel(ctx, 2, scores[1])
    reduction = ctx.text("reduction", "mean")
    if reduction not in ("none", "sum", "mean"):
        ctx.fail(f"reduction {reduction!r} is unknown")
    return shape if reduction == "none" else ()


@shape_rule("NegativeLogLikelihoodLoss")
def nll_loss(ctx: RuleContext) -> NodeInfo:
    """A scalar, or one loss for each label."""
    return ctx.result(_loss_shape(ctx))


@shape_rule("SoftmaxCrossEntropyLoss")
def cross_entropy(ctx: RuleContext) -> NodeInfo:
    """A scalar, or one loss for each label; the log probabilities look like the scores."""
    return ctx.result(_loss_shape(ctx), ctx.shape(0))
