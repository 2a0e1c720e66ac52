"""Attention and FlexAttention as three kernels: scores, exponentials with sums, weighted values.

    s[b, h, g, i, j] = mask(softcap(scale * sum_d q[b, h*G+g, i, d] * k[b, h, j, d]))
    e = exp(s - max_j s),  l = sum_j e
    y[b, h*G+g, i, d] = sum_j e[b, h, g, i, j] * v[b, h, j, d] / l
Guarantees: h runs over key/value heads and g over the G query heads that share one, so indices are
affine; scores and sums are float32 or wider and each output is rounded once; a row without visible
keys gives 0.
Not here: masks (attention_mask), packing and caches (attention_heads), fusing the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.core.dtypes import BY_CODE, FLOAT64, DType
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Buffer, Expr, Stage, Store, call, constant, dim_value, select
from tilewright.lower.attention_heads import Heads, emit_heads, heads_of, with_past
from tilewright.lower.attention_mask import Mask, mask_of
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.contraction import (
    axes_of,
    common_compute_type,
    fold_over,
    is_one,
    known_extent,
    sum_over,
)
from tilewright.lower.precision import compute_type
from tilewright.lower.registry import lowers

_RAW, _CAPPED, _BIASED, _PROBABILITIES = range(4)  # qk_matmul_output_mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Operands of one attention; ``group`` query heads share a key/value head."""

    q: Heads
    k: Heads
    v: Heads
    group: Dim
    scale: Expr
    softcap: float
    mask: Mask
    compute: DType
    softmax: DType

    @property
    def score_shape(self) -> tuple[Dim, ...]:
        """[batch, key/value heads, group, queries, keys]."""
        return (self.q.batch, self.k.count, self.group, self.q.length, self.k.length)

    def query_head(self, h: Expr, g: Expr) -> Expr:
        """The query head of a key/value head and a position in its group."""
        return h if is_one(self.group) else h * dim_value(self.group) + g

    def product(self, b: Expr, h: Expr, g: Expr, i: Expr, j: Expr) -> Expr:
        """The scaled product of a query and a key."""

        def term(d: Expr) -> Expr:
            left = self.q.at(b, self.query_head(h, g), i, d).cast(self.compute)
            return left * self.k.at(b, h, j, d).cast(self.compute)

        return sum_over([known_extent(self.q.width, self.k.width)], term) * self.scale

    def capped(self, score: Expr) -> Expr:
        if self.softcap <= 0:
            return score
        return call("tanh", score / self.softcap) * self.softcap

    def masked(self, score: Expr, b: Expr, h: Expr, g: Expr, i: Expr, j: Expr) -> Expr:
        return self.mask.apply(score, b, self.query_head(h, g), i, j)


def make_problem(ctx: Lowering, q: Heads, k: Heads, v: Heads, mask: Mask) -> Problem:
    """Collects operands and attributes."""
    compute = common_compute_type(q.buffer, k.buffer, v.buffer)
    precision = ctx.node.attribute("softmax_precision")
    asked = compute_type(BY_CODE[int(precision)]) if precision else compute
    scale = ctx.node.attribute("scale")
    if scale is not None:
        factor = constant(float(scale), compute)
    elif q.width.is_const:
        factor = constant(1.0 / math.sqrt(max(q.width.const, 1)), compute)
    else:
        factor = 1.0 / call("sqrt", dim_value(q.width).cast(compute))
    return Problem(
        q=q,
        k=k,
        v=v,
        group=Dim.of(1) if q.count == k.count else q.count // k.count,
        scale=factor,
        softcap=float(ctx.node.attribute("softcap", 0.0)),
        mask=mask,
        compute=compute,
        softmax=FLOAT64 if FLOAT64 in (asked, compute) else compute,
    )


@lowers("Attention")
def attention(ctx: Lowering) -> None:
    """3-D and 4-D operands, grouped queries, masks, windows, softcap, both kinds of cache."""
    q_heads, kv_heads = ctx.node.attribute("q_num_heads"), ctx.node.attribute("kv_num_heads")
    q = heads_of(ctx.input(0), q_heads)
    k = with_past(ctx, heads_of(ctx.input(1), kv_heads), ctx.optional(4), ctx.output(1))
    v = with_past(ctx, heads_of(ctx.input(2), kv_heads), ctx.optional(5), ctx.output(2))
    mask = mask_of(ctx, (q.batch, q.count, q.length, k.length))
    emit_attention(ctx, make_problem(ctx, q, k, v, mask), ctx.output(0), ctx.output(3))


@lowers("FlexAttention", domain="ai.onnx.preview")
def flex_attention(ctx: Lowering) -> None:
    """Without modifiers; those are sub-graphs, for which the node's function body is used."""
    for name in ("score_mod", "prob_mod"):
        if ctx.node.attribute(name) is not None:
            raise Unlowerable(f"{name} is a sub-graph")
    q, k, v = (heads_of(ctx.input(position), None) for position in range(3))
    mask = Mask(shape=(q.batch, q.count, q.length, k.length))
    emit_attention(ctx, make_problem(ctx, q, k, v, mask), ctx.output(0), None)


def emit_attention(ctx: Lowering, problem: Problem, out: Buffer | None, qk: Buffer | None) -> None:
    """Emits the kernels for the wanted outputs: the result and the intermediate ``qk``."""
    mode = int(ctx.node.attribute("qk_matmul_output_mode", 0))
    if out is None and qk is None:
        return
    scores = _emit_scores(ctx, problem, qk, mode)
    if out is None and (qk is None or mode != _PROBABILITIES):
        return
    weights, total = _emit_softmax(ctx, problem, scores)
    if qk is not None and mode == _PROBABILITIES:
        _emit_scores_output(ctx, qk, problem, lambda *at: _divided(weights[at], total[at[:-1]]))
    if out is not None:
        _emit_values(ctx, problem, out, weights, total)


def _emit_scores(ctx: Lowering, problem: Problem, qk: Buffer | None, mode: int) -> Buffer:
    """The masked scores, in the compute type; also ``qk`` in the modes before the softmax."""
    scores = ctx.temporary(problem.compute, problem.score_shape)
    early = qk is not None and mode in (_RAW, _CAPPED)

    def first(*at: Expr) -> Expr:
        value = problem.product(*at)
        if early and mode == _RAW:
            return value
        value = problem.capped(value)
        return value if early else problem.masked(value, *at)

    ctx.pure(scores, first)
    if qk is not None and mode != _PROBABILITIES:
        if qk.dtype is scores.dtype:
            ctx.view(qk, scores)
        else:
            _emit_scores_output(ctx, qk, problem, lambda *at: scores[at])
    if not early or (problem.mask.is_empty and (mode == _CAPPED or problem.softcap <= 0)):
        return scores

    def second(*at: Expr) -> Expr:
        value = problem.capped(scores[at]) if mode == _RAW else scores[at]
        return problem.masked(value, *at)

    return ctx.pure(ctx.temporary(problem.compute, problem.score_shape), second)


def _emit_scores_output(
    ctx: Lowering, out: Buffer, problem: Problem, body: Callable[..., Expr]
) -> None:
    split = ctx.temporary(out.dtype, problem.score_shape)
    ctx.pure(split, lambda *at: body(*at).cast(out.dtype))
    ctx.view(out, split)


def _emit_softmax(ctx: Lowering, problem: Problem, scores: Buffer) -> tuple[Buffer, Buffer]:
    """Exponentials relative to each row's maximum, and their sums."""
    shape, dtype = problem.score_shape, problem.softmax
    weights, total = ctx.temporary(dtype, shape), ctx.temporary(dtype, shape[:-1])
    highest = ctx.temporary(dtype, shape[:-1])
    rows, points = axes_of(shape[:-1]), axes_of(shape)
    row, point = tuple(a.var for a in rows), tuple(a.var for a in points)
    keys = shape[-1]
    maximum = fold_over("max", [keys], lambda j: scores[(*row, j)].cast(dtype))
    top = select(highest[row].eq(-math.inf), 0.0, highest[row])
    exponential = call("exp", scores[point].cast(dtype) - top)
    summed = sum_over([keys], lambda j: weights[(*row, j)])
    ctx.stages(
        (weights, total),
        (
            Stage(rows, (Store(highest.name, row, maximum),)),
            Stage(points, (Store(weights.name, point, exponential),)),
            Stage(rows, (Store(total.name, row, summed),)),
        ),
        extra=(highest,),
    )
    return weights, total


def _divided(value: Expr, total: Expr) -> Expr:
    """A share of a row; a row without visible keys has the sum 0."""
    return select(total.eq(0.0), 0.0, value / total)


def _emit_values(
    ctx: Lowering, problem: Problem, out: Buffer, weights: Buffer, total: Buffer
) -> None:
    v, dtype = problem.v, problem.softmax

    def body(b: Expr, h: Expr, g: Expr, i: Expr, d: Expr) -> Expr:
        value = sum_over(
            [v.length], lambda j: weights[b, h, g, i, j] * v.at(b, h, j, d).cast(dtype)
        )
        return _divided(value, total[b, h, g, i]).cast(out.dtype)

    emit_heads(ctx, out, problem.k.count, problem.group, body)
