"""Matrix products on floats and plain integers: MatMul and Gemm.

    MatMul: out[b.., m, n] = sum_k a[b.., m, k] * b[b.., k, n]        (batch dims broadcast)
    Gemm:   out[m, n] = alpha * sum_k a'[m, k] * b'[k, n] + beta * c[m, n]
Guarantees: one pure kernel; a constant operand that would be read with a stride is transposed
here.
Not here: integer products with zero points (integer_matmul), Einsum (einsum).
"""

from __future__ import annotations

import numpy as np

from tilewright.core.dtypes import FLOAT64, DType
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Buffer, Expr
from tilewright.lower.broadcast import broadcast_load
from tilewright.lower.context import Lowering
from tilewright.lower.contraction import dim_index, known_extent, sum_over, widen
from tilewright.lower.registry import lowers


def left_index(
    a: Buffer, index: tuple[Expr, ...], shape: tuple[Dim, ...], k: Expr
) -> tuple[Expr, ...]:
    """Where the left operand of a matrix product is read for an output index (a vector: ``[k]``).

    Args:
        index, shape: of the output's batch dims and row; ``index`` is empty for two vectors.
    """
    if len(a.shape) == 1:
        return (k,)
    return (*_batch(a, index[:-1], shape[:-1]), index[-1], k)


def right_index(
    b: Buffer, index: tuple[Expr, ...], shape: tuple[Dim, ...], k: Expr
) -> tuple[Expr, ...]:
    """Where the right operand is read; ``index`` holds the output's batch dims and column."""
    if len(b.shape) == 1:
        return (k,)
    return (*_batch(b, index[:-1], shape[:-1]), k, index[-1])


def _batch(operand: Buffer, index: tuple[Expr, ...], shape: tuple[Dim, ...]) -> tuple[Expr, ...]:
    own = operand.shape[:-2]
    skip = len(shape) - len(own)
    return tuple(
        dim_index(var, dim, target)
        for var, dim, target in zip(index[skip:], own, shape[skip:], strict=True)
    )


def operand_indices(
    a: Buffer, b: Buffer, index: tuple[Expr, ...], shape: tuple[Dim, ...], k: Expr
) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """Where both operands of ``a @ b`` are read for output ``index`` and reduction index ``k``."""
    rows, columns = len(a.shape) > 1, len(b.shape) > 1
    batch = len(shape) - rows - columns
    row = slice(batch, batch + 1) if rows else slice(0, 0)
    column = slice(len(shape) - 1, len(shape)) if columns else slice(0, 0)
    return (
        left_index(a, (*index[:batch], *index[row]), (*shape[:batch], *shape[row]), k),
        right_index(b, (*index[:batch], *index[column]), (*shape[:batch], *shape[column]), k),
    )


def depth_of(a: Buffer, b: Buffer) -> Dim:
    """The extent of the reduction of ``a @ b``."""
    return known_extent(a.shape[-1], b.shape[-2] if len(b.shape) > 1 else b.shape[0])


@lowers("MatMul")
def matmul(ctx: Lowering) -> None:
    """Any ranks from 1, with numpy's broadcasting of batch dims."""
    out, a, b = ctx.output(), ctx.input(0), ctx.input(1)
    if out is None:
        return

    def body(*index: Expr) -> Expr:
        def term(k: Expr) -> Expr:
            left, right = operand_indices(a, b, index, out.shape, k)
            return widen(a[left]) * widen(b[right])

        return sum_over([depth_of(a, b)], term).cast(out.dtype)

    ctx.pure(out, body)


def transposed_constant(ctx: Lowering, position: int) -> Buffer | None:
    """A constant matrix input, transposed at build time; None if its contents are unknown."""
    content = ctx.content(position)
    if content is None or content.ndim != 2:
        return None
    return ctx.constant(np.ascontiguousarray(content.T), ctx.input(position).dtype)


def _matrix(ctx: Lowering, position: int, transposed: bool) -> tuple[Buffer, bool]:
    """A Gemm operand, and whether it still has to be read transposed."""
    if transposed:
        stored = transposed_constant(ctx, position)
        if stored is not None:
            return stored, False
    return ctx.input(position), transposed


@lowers("Gemm")
def gemm(ctx: Lowering) -> None:
    """All attributes; C broadcasts in one direction."""
    out, c = ctx.output(), ctx.optional(2)
    if out is None:
        return
    alpha, beta = float(ctx.node.attribute("alpha", 1.0)), float(ctx.node.attribute("beta", 1.0))
    a, flip_a = _matrix(ctx, 0, bool(ctx.node.attribute("transA", 0)))
    b, flip_b = _matrix(ctx, 1, bool(ctx.node.attribute("transB", 0)))
    depth = known_extent(a.shape[0 if flip_a else 1], b.shape[1 if flip_b else 0])

    def body(m: Expr, n: Expr) -> Expr:
        def term(k: Expr) -> Expr:
            left = a[k, m] if flip_a else a[m, k]
            right = b[n, k] if flip_b else b[k, n]
            return widen(left) * widen(right)

        value = _scaled(sum_over([depth], term), alpha)
        if c is not None and beta != 0:
            added = _scaled(widen(broadcast_load(c, out.shape, (m, n))), beta)
            value, added = _same_type(value, added)
            value = value + added
        return value.cast(out.dtype)

    ctx.pure(out, body)


def _scaled(value: Expr, factor: float) -> Expr:
    """Times a factor; an integer times a fraction is a float64."""
    if factor == 1:
        return value
    if value.dtype.is_integer and factor != int(factor):
        return value.cast(FLOAT64) * factor
    return value * (factor if value.dtype.is_float else int(factor))


def _same_type(left: Expr, right: Expr) -> tuple[Expr, Expr]:
    wide: DType = left.dtype if left.dtype is right.dtype else FLOAT64
    return left.cast(wide), right.cast(wide)
