"""Classification losses.

    NegativeLogLikelihoodLoss(x, t, w)  ->  out[n] = -x[n, t[n]] * w[t[n]]
Guarantees: labels outside of the classes raise at run time, unless they are ``ignore_index``; half
precision is computed in float32 from scores to loss.
Not here: gradients.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.core.dtypes import INT64, DType
from tilewright.core.shape import product
from tilewright.kernel.ir import Buffer, Expr, cast, constant, reduce_over, select
from tilewright.lower.broadcast import position_in, refuse_opaque
from tilewright.lower.context import Lowering
from tilewright.lower.precision import compute_type, dim_as, text_attribute
from tilewright.lower.registry import lowers
from tilewright.lower.softmax import log_softmax, row_slots


@lowers("NegativeLogLikelihoodLoss")
def negative_log_likelihood(ctx: Lowering) -> None:
    refuse_opaque(ctx.input(0))
    _emit_loss(ctx, ctx.input(0))


@lowers("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(ctx: Lowering) -> None:
    """The log probabilities are computed once, for both outputs."""
    scores = ctx.input(0)
    refuse_opaque(scores)
    kind = compute_type(scores.dtype)
    wanted = ctx.output(1)
    logits = wanted if wanted is not None and wanted.dtype is kind else None
    if logits is None:
        logits = ctx.temporary(kind, scores.shape)

    def body(*index: Expr) -> Expr:
        return log_softmax(scores[index].cast(kind), row_slots(scores, index, 1, kind))

    ctx.pure(logits, body)
    if wanted is not None and wanted is not logits:
        source, narrow = logits, wanted.dtype
        ctx.pure(wanted, lambda *index: source[index].cast(narrow))
    _emit_loss(ctx, logits)


def _emit_loss(ctx: Lowering, logits: Buffer) -> None:
    out, labels, weights = ctx.output(), ctx.input(1), ctx.optional(2)
    if out is None:
        return
    kind = compute_type(logits.dtype)
    how = text_attribute(ctx, "reduction", "mean")
    loss, weight = _terms(ctx, logits, labels, weights, kind)
    if how == "none":
        ctx.pure(out, lambda *index: loss(*index).cast(out.dtype))
        return
    unweighted = weights is None and ctx.node.attribute("ignore_index") is None

    def total() -> Expr:
        value = reduce_over("sum", labels.shape, loss)
        if how == "mean" and unweighted:
            value = value / dim_as(product(labels.shape), kind)
        elif how == "mean":
            value = value / reduce_over("sum", labels.shape, weight)
        return value.cast(out.dtype)

    ctx.pure(out, total)


def _terms(
    ctx: Lowering, logits: Buffer, labels: Buffer, weights: Buffer | None, kind: DType
) -> tuple[Callable[..., Expr], Callable[..., Expr]]:
    """The loss of one label and its weight; both 0 where the label is ignored."""
    ignored = ctx.node.attribute("ignore_index")
    classes = logits.shape[1]

    def unless_ignored(label: Expr, value: Expr) -> Expr:
        if ignored is None:
            return value
        return select(label.eq(int(ignored)), constant(0, kind), value)

    def weight_of(label: Expr) -> Expr:
        if weights is None:
            return constant(1, kind)
        return weights[position_in(label, classes)].cast(kind)

    def loss(*index: Expr) -> Expr:
        label = cast(labels[index], INT64)
        place = position_in(label, classes)
        value = -logits[(index[0], place, *index[1:])].cast(kind)
        if weights is not None:
            value = value * weight_of(label)
        return unless_ignored(label, value)

    def weight(*index: Expr) -> Expr:
        label = cast(labels[index], INT64)
        return unless_ignored(label, weight_of(label))

    return loss, weight
