"""Attention as one kernel, in the forms that networks have.

Input -> Output: sizes -> a kernel (inputs are made by ``contractions.feeds_of``).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Axis, Buffer, Expr, Kernel, call, constant, reduce_axes, select
from unit.codegen.cpu.kernels import buffer, pure


def attention(
    heads: int,
    queries: int,
    keys: int,
    width: int,
    *,
    wide: int = 0,
    packed: bool = False,
    hidden: int = 0,
    guarded: bool = False,
    causal: bool = False,
    inverse: bool = False,
    past: int = 0,
    dtype: DType = FLOAT16,
) -> Kernel:
    """``softmax(q k^T / sqrt(width) + mask) v`` of [2, heads, ..].

    Args:
        wide: elements of a value, if not ``width``.
        packed: operands are [2, length, heads * width], and so is the result.
        past: so many of the first keys and values are those of ``old_k`` and ``old_v``.
        inverse: weights are multiplied by the inverse of their sum.
        hidden: so many of the last keys get -inf; all of them for the first query.
    """
    wide = wide or width

    def operand(name: str, length: int, size: int) -> tuple[Kernel, object]:
        shape = (2, length, heads * size) if packed else (2, heads, length, size)
        own = buffer(name, *shape, dtype=dtype)

        def at(b: Expr, h: Expr, s: Expr, d: Expr) -> Expr:
            return own[b, s, h * size + d] if packed else own[b, h, s, d]

        return own, at  # type: ignore[return-value]

    (q, q_at), (k, k_at), (v, v_at) = (
        operand(name, length, size)
        for name, length, size in (("q", queries, width), ("k", keys, width), ("v", keys, wide))
    )
    mask = buffer("mask", 2, keys)
    before: tuple[Buffer, ...] = ()
    if past:
        before = tuple(buffer(f"old_{n}", 2, heads, past, width, dtype=dtype) for n in "kv")
        new = [buffer(n, 2, heads, keys - past, width, dtype=dtype) for n in "kv"]
        pairs = [(own, _joined(old, own, past)) for old, own in zip(before, new, strict=True)]
        (k, k_at), (v, v_at) = pairs  # type: ignore[assignment]

    def score(b: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
        c = Axis("c", Dim.of(width))
        left, right = q_at(b, h, i, c.var), k_at(b, h, j, c.var)  # type: ignore[operator]
        total = reduce_axes("sum", (c,), left.cast(FLOAT32) * right.cast(FLOAT32))
        found = total * (1.0 / math.sqrt(width)) + mask[b, j]
        if hidden:
            found = select(j.lt(keys - hidden) & i.gt(0), found, -math.inf)
        return select(j.le(i), found, -math.inf) if causal else found

    def body(b: Expr, h: Expr, i: Expr, d: Expr) -> Expr:
        j, l, m = (Axis(name, Dim.of(keys)) for name in ("j", "l", "m"))
        highest = reduce_axes("max", (m,), score(b, h, i, m.var))
        below = reduce_axes("sum", (l,), call("exp", score(b, h, i, l.var) - highest))
        weight = call("exp", score(b, h, i, j.var) - highest)
        weight = weight * (1.0 / below) if inverse else weight / below
        if guarded:
            weight = select(call("isnan", weight), constant(0.0, FLOAT32), weight)
        value = v_at(b, h, j.var, d).cast(FLOAT32)  # type: ignore[operator]
        weight = weight.cast(dtype).cast(FLOAT32)
        return reduce_axes("sum", (j,), weight * value).cast(dtype)

    if packed:
        out = buffer("out", 2, queries, heads, wide, dtype=dtype)
        return pure(out, (q, k, v, mask), lambda b, i, h, d: body(b, h, i, d))  # type: ignore[arg-type]
    out = buffer("out", 2, heads, queries, wide, dtype=dtype)
    return pure(out, (q, k, v, mask, *before), body)  # type: ignore[arg-type]


def _joined(old: Buffer, new: Buffer, past: int) -> Callable[..., Expr]:
    def at(b: Expr, h: Expr, j: Expr, d: Expr) -> Expr:
        return select(j.lt(past), old[b, h, j, d], new[b, h, j - past, d])

    return at


IN_BFLOAT16 = attention(2, 33, 70, 64, packed=True, hidden=9, guarded=True, dtype=BFLOAT16)
ATTENTIONS: dict[str, Kernel] = {
    "plain": attention(2, 40, 96, 64),
    "short": attention(3, 5, 7, 32),
    "inverse": attention(1, 5, 7, 32, inverse=True),
    "packed": attention(2, 33, 130, 32, packed=True),
    "packed, guarded": attention(2, 33, 70, 64, packed=True, hidden=9, guarded=True),
    "wide values": attention(1, 20, 70, 32, wide=64),
    "causal": attention(1, 80, 80, 32, causal=True),
    "hidden": attention(1, 18, 150, 32, hidden=90),
    "128 wide": attention(1, 17, 65, 128),
}
DECODES: dict[str, Kernel] = {
    "a token": attention(2, 1, 300, 64),
    "a group, several rounds": attention(1, 4, 700, 64, past=699),
    "128 wide": attention(1, 2, 130, 128, past=100),
    "in bfloat16": attention(1, 3, 140, 64, dtype=BFLOAT16),
}
