"""Integer matrix products with zero points: MatMulInteger, QLinearMatMul and QGemm.

    acc[b.., m, n] = sum_k (a[b.., m, k] - a_zero) * (b[b.., k, n] - b_zero)      (int32)
    where b is a known matrix and b_zero is 0:
    acc[b.., m, n] = sum_k a[b.., m, k] * b[k, n] - a_zero * sum_k b[k, n]
Guarantees: zero points and scales may be single numbers, one a row of a / column of b, or have the
batch dims too; a known zero point of 0 is not subtracted; in the second form b is int8 and a is
uint8, or as it is (``quantized.unsigned``).
Not here: the requantisation formula (quantized).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.core.dtypes import FLOAT32, INT32
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Buffer, Expr, constant
from tilewright.lower.broadcast import broadcast_load
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.contraction import ZERO, is_one, scalar, sum_over
from tilewright.lower.matmul import depth_of, operand_indices
from tilewright.lower.quantized import (
    Locate,
    centred,
    combined_scale,
    known_factor,
    parameter,
    requantized,
    signed_weights,
    unsigned,
    unsigned_zero,
)
from tilewright.lower.registry import lowers

Accumulate = Callable[[tuple[Expr, ...]], Expr]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Positions:
    """Which inputs are what."""

    a: int
    a_zero: int
    b: int
    b_zero: int


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


def _product(ctx: Lowering, at: _Positions, out: Buffer, *, transposed: bool = False) -> Accumulate:
    """The exact sum for an index of the output; ``transposed``: b is stored as [n, k]."""
    a, content, zero = ctx.input(at.a), ctx.content(at.b), ctx.optional(at.a_zero)
    known = content is not None and content.ndim == 2 and len(a.shape) >= 2
    weights = None
    if known and not a.dtype.is_float:
        weights = signed_weights(ctx, at.b, at.b_zero, transposed=transposed)
    if weights is None or content is None:
        if transposed:
            raise Unlowerable("a transposed matrix that is not known, or has a zero point")
        return lambda index: _plain(ctx, at, index, out.shape)
    sums = ctx.constants.get(weights.name, content).astype(np.int64).sum(axis=0)

    def products(index: tuple[Expr, ...]) -> Expr:
        def term(k: Expr) -> Expr:
            left, right = operand_indices(a, weights, index, out.shape, k)
            return unsigned(ctx, a[left]).cast(INT32) * weights[right].cast(INT32)

        return sum_over([depth_of(a, weights)], term)

    zeros = np.zeros((), a.dtype.numpy) if zero is None else ctx.content(at.a_zero)
    if zeros is not None and zeros.size == 1:
        offset = -unsigned_zero(ctx, zeros.reshape(()), a.dtype) * sums
        if not offset.any():
            return products
        added = ctx.constant(offset.astype(np.int32), INT32)
        return lambda index: products(index) + added[index[-1]]
    wide = ctx.constant(sums.astype(np.int32), INT32)

    def corrected(index: tuple[Expr, ...]) -> Expr:
        own = parameter(ctx, at.a_zero, _along(-2, index, out.shape))
        shift = unsigned(ctx, constant(0, a.dtype) if own is None else own).cast(INT32)
        return products(index) + -shift * wide[index[-1]]

    return corrected


def _plain(ctx: Lowering, at: _Positions, index: tuple[Expr, ...], shape: tuple[Dim, ...]) -> Expr:
    """The sum of products of centred operands."""
    a, b = ctx.input(at.a), ctx.input(at.b)
    left_zero = parameter(ctx, at.a_zero, _along(-2, index, shape))
    right_zero = parameter(ctx, at.b_zero, _along(-1, index, shape))

    def term(k: Expr) -> Expr:
        left, right = operand_indices(a, b, index, shape, k)
        return centred(a[left], left_zero) * centred(b[right], right_zero)

    return sum_over([depth_of(a, b)], term)


@lowers("MatMulInteger")
def matmul_integer(ctx: Lowering) -> None:
    """8-bit operands, int32 result."""
    out = ctx.output()
    if out is None:
        return
    total = _product(ctx, _Positions(a=0, b=1, a_zero=2, b_zero=3), out)
    ctx.pure(out, lambda *index: total(index))


@lowers("QLinearMatMul")
def qlinear_matmul(ctx: Lowering) -> None:
    """Inputs: a, scale, zero point, b, scale, zero point, scale and zero point of y."""
    out = ctx.output()
    if out is None:
        return
    total = _product(ctx, _Positions(a=0, b=3, a_zero=2, b_zero=5), out)

    def body(*index: Expr) -> Expr:
        rows, columns = _along(-2, index, out.shape), _along(-1, index, out.shape)
        factor = combined_scale(ctx, (1, 4, 6), rows, columns)
        return requantized(total(index), factor, parameter(ctx, 7, scalar), out.dtype)

    ctx.pure(out, body)


@lowers("QGemm", domain="com.microsoft")
def qgemm(ctx: Lowering) -> None:
    """Inputs: a, scale, zero point, b, scale, zero point, int32 bias, scale and zero point of y."""
    out, bias = ctx.output(), ctx.optional(6)
    if out is None:
        return
    if ctx.node.attribute("transA", 0):
        raise Unlowerable("the left matrix is transposed")
    transposed = bool(ctx.node.attribute("transB", 0))
    total = _product(ctx, _Positions(a=0, b=3, a_zero=2, b_zero=5), out, transposed=transposed)
    scales = [ctx.content(position) for position in (1, 4)]
    y_scale = None if ctx.optional(7) is None else ctx.content(7)
    if any(scale is None for scale in scales) or (ctx.optional(7) is not None and y_scale is None):
        raise Unlowerable("a scale is not known")
    a_scale, b_scale = (np.asarray(scale).reshape(-1) for scale in scales)
    alpha = np.float32(ctx.node.attribute("alpha", 1.0))
    factors = ctx.constant(
        known_factor(alpha * a_scale.astype(np.float32), b_scale, y_scale), FLOAT32
    )

    def body(m: Expr, n: Expr) -> Expr:
        value = total((m, n))
        if bias is not None:
            value = value + broadcast_load(bias, out.shape, (m, n)).cast(INT32)
        factor = factors[n if factors.shape[0] == out.shape[-1] else ZERO]
        if ctx.optional(8) is None:
            return value.cast(FLOAT32) * factor
        return requantized(value, factor, parameter(ctx, 8, scalar), out.dtype)

    ctx.pure(out, body)
