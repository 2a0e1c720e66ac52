"""Operands and results of attention: heads, their packing, and the key/value cache.

    [b, h, s, d]  and  [b, s, h*d]  are both read by ``Heads.at(b, h, s, d)``
Guarantees: packed and unpacked forms are read and written in place, without transposed copies.
Not here: the computation (attention).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.core.shape import Dim
from tilewright.kernel.ir import Buffer, Expr, dim_value, select
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.contraction import is_one


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """A tensor of ``count`` heads of ``width`` elements, [b, h, s, d] or packed [b, s, h*d]."""

    buffer: Buffer
    count: Dim
    width: Dim

    @property
    def packed(self) -> bool:
        return len(self.buffer.shape) == 3

    @property
    def batch(self) -> Dim:
        return self.buffer.shape[0]

    @property
    def length(self) -> Dim:
        """The sequence length."""
        return self.buffer.shape[1 if self.packed else 2]

    def at(self, b: Expr, h: Expr, s: Expr, d: Expr) -> Expr:
        """One element."""
        if self.packed:
            return self.buffer[b, s, h * dim_value(self.width) + d]
        return self.buffer[b, h, s, d]


def heads_of(buffer: Buffer, count: int | None) -> Heads:
    """An operand with its number of heads (``count`` is used for packed ones).

    Raises:
        Unlowerable: a packed operand without a number of heads.
    """
    if len(buffer.shape) == 4:
        return Heads(buffer=buffer, count=buffer.shape[1], width=buffer.shape[3])
    if not count or len(buffer.shape) != 3:
        raise Unlowerable("3-D operands need q_num_heads and kv_num_heads")
    return Heads(buffer=buffer, count=Dim.of(count), width=buffer.shape[2] // count)


def with_past(ctx: Lowering, new: Heads, past: Buffer | None, present: Buffer | None) -> Heads:
    """Past and new elements together; fills ``present`` if it is wanted."""
    if past is None:
        if present is not None and new.packed:
            ctx.pure(present, new.at)
        elif present is not None:
            ctx.view(present, new.buffer)
        return new
    before = past.shape[2]
    if present is None:
        shape = (new.batch, new.count, before + new.length, new.width)
        present = ctx.temporary(new.buffer.dtype, shape)
    first = dim_value(before)

    def body(b: Expr, h: Expr, s: Expr, d: Expr) -> Expr:
        return select(s.lt(first), past[b, h, s, d], new.at(b, h, s - first, d))

    ctx.pure(present, body)
    return Heads(buffer=present, count=new.count, width=new.width)


def emit_heads(
    ctx: Lowering,
    out: Buffer,
    kv_heads: Dim,
    group: Dim,
    body: Callable[[Expr, Expr, Expr, Expr, Expr], Expr],
) -> None:
    """Emits an output of query heads by ``body(b, kv head, position in group, s, d)``."""
    batch = out.shape[0]
    if len(out.shape) == 3:
        heads = kv_heads * group
        width = out.shape[2] // heads
        split = ctx.temporary(out.dtype, (batch, out.shape[1], kv_heads, group, width))
        ctx.pure(split, lambda b, s, h, g, d: body(b, h, g, s, d))
        ctx.view(out, split)
    elif is_one(group):
        zero = dim_value(0)
        ctx.pure(out, lambda b, h, s, d: body(b, h, zero, s, d))
    else:
        split = ctx.temporary(out.dtype, (batch, kv_heads, group, *out.shape[2:]))
        ctx.pure(split, body)
        ctx.view(out, split)
