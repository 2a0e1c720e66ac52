"""LinearAttention: a matrix-valued state, updated and read once for each token.

    S = exp(g_t) * S;  u = beta_t * (v_t - S^T k_t)  (or v_t);  S = S + k_t u^T
    o_t = scale * S^T q_t
Guarantees: one kernel with an ordered axis over tokens; the state is float32 or wider; query heads
that share a key/value head read the same state.
Not here: the chunk-parallel form (``chunk_size`` does not change results).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.core.dtypes import DType
from tilewright.core.shape import Dim
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Expr,
    Stage,
    Store,
    axis_var,
    call,
    constant,
    dim_value,
    select,
)
from tilewright.lower.attention_heads import Heads, heads_of
from tilewright.lower.context import Lowering
from tilewright.lower.contraction import axes_of, common_compute_type, dim_index, is_one, sum_over
from tilewright.lower.registry import lowers


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Operands of one node; ``at`` is the token of the current step."""

    q: Heads
    k: Heads
    v: Heads
    decay: Buffer | None
    beta: Buffer | None
    compute: DType
    at: Expr

    def key(self, b: Expr, h: Expr, d: Expr) -> Expr:
        return self.k.at(b, h, self.at, d).cast(self.compute)

    def fade(self, state: Expr, b: Expr, h: Expr, d: Expr) -> Expr:
        """A state element after decay."""
        if self.decay is None:
            return state
        size, per_key = self.decay.shape[2], h * dim_value(self.k.width) + d
        if size == self.k.count:
            column = h
        elif size.is_const:
            column = per_key
        else:
            column = select(dim_value(size).eq(dim_value(self.k.count)), h, per_key)
        return call("exp", self.decay[b, self.at, column].cast(self.compute)) * state

    def rate(self, b: Expr, h: Expr) -> Expr | None:
        """The update rate; None for rules without correction."""
        if self.beta is None:
            return None
        column = dim_index(h, self.beta.shape[2], self.k.count)
        return self.beta[b, self.at, column].cast(self.compute)


@lowers("LinearAttention")
def linear_attention(ctx: Lowering) -> None:
    """All update rules, grouped queries, initial state."""
    q = heads_of(ctx.input(0), int(ctx.node.attribute("q_num_heads", 0)))
    k = heads_of(ctx.input(1), int(ctx.node.attribute("kv_num_heads", 0)))
    v = heads_of(ctx.input(2), int(ctx.node.attribute("kv_num_heads", 0)))
    compute = common_compute_type(q.buffer, k.buffer, v.buffer)
    tokens = Tokens(
        q=q,
        k=k,
        v=v,
        decay=ctx.optional(4),
        beta=ctx.optional(5),
        compute=compute,
        at=axis_var("t"),
    )
    past, out, present = ctx.optional(3), ctx.output(0), ctx.output(1)
    shape = (q.batch, k.count, k.width, v.width)
    state = ctx.temporary(compute, shape)
    stages, extra = _stages(ctx, tokens, state, past, out)
    written = (state, *([out] if out is not None else []))
    steps = Axis("t", q.length, ordered=True)
    ctx.stages(written, stages, extra=extra, steps=steps)
    if present is not None:
        _emit_present(ctx, present, state, past, q.length)


def _initial(past: Buffer | None, index: tuple[Expr, ...], compute: DType) -> Expr:
    return constant(0, compute) if past is None else past[index].cast(compute)


def _emit_present(
    ctx: Lowering, present: Buffer, state: Buffer, past: Buffer | None, length: Dim
) -> None:
    """The last state; the initial one if there are no tokens."""

    def body(*index: Expr) -> Expr:
        last = state[index]
        if not length.is_const or length.const == 0:
            last = select(dim_value(length).gt(0), last, _initial(past, index, state.dtype))
        return last.cast(present.dtype)

    ctx.pure(present, body)


def _stages(
    ctx: Lowering, tokens: Tokens, state: Buffer, past: Buffer | None, out: Buffer | None
) -> tuple[tuple[Stage, ...], tuple[Buffer, ...]]:
    """One token: (first one) initial state, correction, update, reading."""
    axes = axes_of(state.shape)
    b, h, d, m = at = tuple(axis.var for axis in axes)
    first = Store(state.name, at, _initial(past, at, state.dtype), tokens.at.eq(0))
    stages = [Stage(axes, (first,))]
    value = tokens.v.at(b, h, tokens.at, m).cast(state.dtype)
    extra: tuple[Buffer, ...] = ()
    rate = tokens.rate(b, h)
    if rate is not None:
        change = ctx.temporary(state.dtype, (*state.shape[:2], state.shape[3]))
        recalled = sum_over(
            [state.shape[2]],
            lambda n: tokens.fade(state[b, h, n, m], b, h, n) * tokens.key(b, h, n),
        )
        store = Store(change.name, (b, h, m), rate * (value - recalled))
        stages.append(Stage((axes[0], axes[1], axes[3]), (store,)))
        value, extra = change[b, h, m], (change,)
    updated = tokens.fade(state[at], b, h, d) + tokens.key(b, h, d) * value
    stages.append(Stage(axes, (Store(state.name, at, updated),)))
    if out is not None:
        stages.append(_reading(ctx, tokens, state, out))
    return tuple(stages), extra


def _reading(ctx: Lowering, tokens: Tokens, state: Buffer, out: Buffer) -> Stage:
    q, group = tokens.q, tokens.q.count // tokens.k.count
    batch, kv_heads, depth, width = state.shape
    axes = axes_of((batch, kv_heads, group, width))
    b, h, g, m = (axis.var for axis in axes)
    head = h if is_one(group) else h * dim_value(group) + g
    total = sum_over(
        [depth],
        lambda n: q.at(b, head, tokens.at, n).cast(state.dtype) * state[b, h, n, m],
    )
    place = (b, tokens.at, head * dim_value(width) + m)
    value = (total * _scale(ctx, q.width, state.dtype)).cast(out.dtype)
    return Stage(axes, (Store(out.name, place, value),))


def _scale(ctx: Lowering, width: Dim, dtype: DType) -> Expr:
    scale = float(ctx.node.attribute("scale", 0.0))
    if scale:
        return constant(scale, dtype)
    if width.is_const:
        return constant(1.0 / math.sqrt(max(width.const, 1)), dtype)
    return 1.0 / call("sqrt", dim_value(width).cast(dtype))
