"""Integer matrix products with zero points: MatMulInteger and QLinearMatMul.

    acc[b.., m, n] = sum_k (a[b.., m, k] - a_zero) * (b[b.., k, n] - b_zero)      (int32)
Guarantees: zero points and scales may be single numbers, one a row of a / column of b, or have the
batch dims too; a known zero point of 0 is not subtracted.
Not here: the requantisation formula (quantized).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.core.shape import Dim
from tilewright.kernel.ir import Buffer, Expr
from tilewright.lower.broadcast import broadcast_load
from tilewright.lower.context import Lowering
from tilewright.lower.contraction import ZERO, is_one, scalar, sum_over
from tilewright.lower.matmul import depth_of, operand_indices
from tilewright.lower.quantized import (
    Locate,
    centred,
    combined_scale,
    parameter,
    requantized,
)
from tilewright.lower.registry import lowers


def _along(kept: int, index: Sequence[Expr], shape: Sequence[Dim]) -> Locate:
    """Reads a parameter of the rows (``kept`` = -2) or the columns (-1) of the result."""

    def locate(buffer: Buffer) -> Expr:
        rank = len(buffer.shape)
        if all(is_one(dim) for dim in buffer.shape) or rank == 0 or not shape:
            return scalar(buffer)
        if rank == 1:
            axis = max(kept, -len(shape))
            return broadcast_load(buffer, [shape[axis]], [index[axis]])
        other = -3 - kept
        places = list(index)
        places[other] = ZERO
        return broadcast_load(buffer, shape, places)

    return locate


def _accumulate(
    operands: tuple[Buffer, Buffer],
    zeros: tuple[Expr | None, Expr | None],
    index: tuple[Expr, ...],
    shape: tuple[Dim, ...],
) -> Expr:
    a, b = operands

    def term(k: Expr) -> Expr:
        left, right = operand_indices(a, b, index, shape, k)
        return centred(a[left], zeros[0]) * centred(b[right], zeros[1])

    return sum_over([depth_of(a, b)], term)


@lowers("MatMulInteger")
def matmul_integer(ctx: Lowering) -> None:
    """8-bit operands, int32 result."""
    out, a, b = ctx.output(), ctx.input(0), ctx.input(1)
    if out is None:
        return

    def body(*index: Expr) -> Expr:
        zeros = (
            parameter(ctx, 2, _along(-2, index, out.shape)),
            parameter(ctx, 3, _along(-1, index, out.shape)),
        )
        return _accumulate((a, b), zeros, index, out.shape)

    ctx.pure(out, body)


@lowers("QLinearMatMul")
def qlinear_matmul(ctx: Lowering) -> None:
    """Inputs: a, scale, zero point, b, scale, zero point, scale and zero point of y."""
    out, a, b = ctx.output(), ctx.input(0), ctx.input(3)
    if out is None:
        return

    def body(*index: Expr) -> Expr:
        rows, columns = _along(-2, index, out.shape), _along(-1, index, out.shape)
        zeros = (parameter(ctx, 2, rows), parameter(ctx, 5, columns))
        total = _accumulate((a, b), zeros, index, out.shape)
        factor = combined_scale(ctx, (1, 4, 6), rows, columns)
        return requantized(total, factor, parameter(ctx, 7, scalar), out.dtype)

    ctx.pure(out, body)
