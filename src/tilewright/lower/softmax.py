"""Softmax and its relatives along one axis.

    Softmax(x)  ->  out[i, j] = exp(x[i, j] - m) * (1 / sum(r < n: exp(x[i, r] - m)))
                    where m = max(r < n: x[i, r])
Guarantees: no overflow; NaN and rows of only -inf give NaN, as IEEE has it.
Not here: attention.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.core.dtypes import DType
from tilewright.kernel.ir import Buffer, Expr, call
from tilewright.lower.broadcast import refuse_opaque
from tilewright.lower.context import Lowering
from tilewright.lower.precision import compute_type
from tilewright.lower.reduce import Slots, extreme_position
from tilewright.lower.registry import lowers


def row_slots(x: Buffer, index: tuple[Expr, ...], axis: int, kind: DType) -> Slots:
    """All elements along ``axis`` through ``index``."""

    def element(position: Expr) -> Expr:
        return x[(*index[:axis], position, *index[axis + 1 :])].cast(kind)

    return Slots((x.shape[axis],), element, kind)


def softmax(x: Expr, row: Slots) -> Expr:
    """One element of softmax, given the row that it is in."""
    largest = row.reduce("max")
    total = row.reduce("sum", lambda other: call("exp", other - largest))
    return call("exp", x - largest) * (1.0 / total)


def log_softmax(x: Expr, row: Slots) -> Expr:
    """The logarithm of softmax."""
    largest = row.reduce("max")
    total = row.reduce("sum", lambda other: call("exp", other - largest))
    return (x - largest) - call("log", total)


def along_axis(
    ctx: Lowering, x: Buffer, out: Buffer, axis: int, value: Callable[[Expr, Slots], Expr]
) -> None:
    """Emits ``out[i] = value(x[i], row through i)``, computed in one wide type."""
    kind = compute_type(x.dtype)

    def body(*index: Expr) -> Expr:
        row = row_slots(x, index, axis, kind)
        return value(x[index].cast(kind), row).cast(out.dtype)

    ctx.pure(out, body)


@lowers("Softmax", "LogSoftmax")
def softmax_operator(ctx: Lowering) -> None:
    out, x = ctx.output(), ctx.input(0)
    if out is None:
        return
    refuse_opaque(x)
    axis = int(ctx.node.attribute("axis", -1)) % len(x.shape)
    along_axis(ctx, x, out, axis, softmax if ctx.node.op_type == "Softmax" else log_softmax)


@lowers("Hardmax")
def hardmax(ctx: Lowering) -> None:
    """1 at the first largest element, else 0."""
    out, x = ctx.output(), ctx.input(0)
    if out is None:
        return
    refuse_opaque(x)
    axis = int(ctx.node.attribute("axis", -1)) % len(x.shape)
    kind, size = compute_type(x.dtype), x.shape[axis]

    def body(*index: Expr) -> Expr:
        row = row_slots(x, index, axis, kind)
        first = extreme_position(row, size, "max", last=False)
        return first.eq(index[axis]).cast(out.dtype)

    ctx.pure(out, body)
