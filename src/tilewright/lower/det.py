"""Det: determinants of a batch of square matrices.

    n <= 3: the closed form;  else elimination, one ordered step for each column k:
    p = argmax_{i >= k} |A[i, k]|;  swap rows k, p;  det *= +-A[k, k]
    A[i] -= A[i, k] / A[k, k] * A[k]
Guarantees: any n, also symbolic; low-precision input is computed in float32.
"""

from __future__ import annotations

from tilewright.core.dtypes import INT64
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
    reduce_over,
    select,
)
from tilewright.lower.context import Lowering
from tilewright.lower.contraction import axes_of, known_extent, widen
from tilewright.lower.precision import compute_type
from tilewright.lower.registry import lowers

_CLOSED_FORM = 3


@lowers("Det")
def det(ctx: Lowering) -> None:
    """Input [.., n, n], output [..]."""
    out, x = ctx.output(), ctx.input(0)
    if out is None:
        return
    size = known_extent(*x.shape[-2:])
    if size.is_const and size.const <= _CLOSED_FORM:
        _emit_closed_form(ctx, out, x, size.const)
    else:
        _emit_elimination(ctx, out, x, size)


def _emit_closed_form(ctx: Lowering, out: Buffer, x: Buffer, size: int) -> None:
    def body(*batch: Expr) -> Expr:
        rows = [[widen(x[(*batch, i, j)]) for j in range(size)] for i in range(size)]
        if size == 0:
            return constant(1, out.dtype)
        if size == 1:
            return rows[0][0].cast(out.dtype)
        if size == 2:
            return _minor(rows[0], rows[1], 0, 1).cast(out.dtype)
        value = rows[0][0] * _minor(rows[1], rows[2], 1, 2)
        value = value - rows[0][1] * _minor(rows[1], rows[2], 0, 2)
        return (value + rows[0][2] * _minor(rows[1], rows[2], 0, 1)).cast(out.dtype)

    ctx.pure(out, body)


def _minor(first: list[Expr], second: list[Expr], i: int, j: int) -> Expr:
    return first[i] * second[j] - first[j] * second[i]


def _emit_elimination(ctx: Lowering, out: Buffer, x: Buffer, size: Dim) -> None:
    dtype, batch = compute_type(x.dtype), x.shape[:-2]
    result = ctx.temporary(dtype, batch)
    stages, extra = _elimination(ctx, x, result, size)
    ctx.stages(result, stages, extra=extra, steps=Axis("k", size, ordered=True))

    def body(*index: Expr) -> Expr:
        value = result[index]
        if not size.is_const:
            value = select(dim_value(size).gt(0), value, 1.0)
        return value.cast(out.dtype)

    ctx.pure(out, body)


def _elimination(
    ctx: Lowering, x: Buffer, result: Buffer, size: Dim
) -> tuple[tuple[Stage, ...], tuple[Buffer, ...]]:
    """The stages of column ``k``, and the temporaries they use."""
    dtype, batch, k = result.dtype, result.shape, axis_var("k")
    matrix = ctx.temporary(dtype, (*batch, size, size))
    pivot = ctx.temporary(INT64, batch)
    pivot_row, current_row, factors = (ctx.temporary(dtype, (*batch, size)) for _ in range(3))
    axes = axes_of((*batch, size, size))
    outer, row, column = axes[:-2], axes[-2], axes[-1]
    b = tuple(axis.var for axis in outer)
    i, j = row.var, column.var
    first = k.eq(0)
    rows = dim_value(size)

    largest = reduce_over(
        "max", [size], lambda r: select(r.ge(k), call("abs", matrix[(*b, r, k)]), -1.0)
    )
    found = reduce_over(
        "min",
        [size],
        lambda r: select(r.ge(k) & call("abs", matrix[(*b, r, k)]).eq(largest), r, rows - 1),
    )
    head = pivot_row[(*b, k)]
    swapped = select(i.eq(pivot[b]), current_row[(*b, k)], matrix[(*b, i, k)])
    factor = select(head.eq(0.0), 0.0, swapped / head)
    kept = select(i.eq(pivot[b]), current_row[(*b, j)], matrix[(*b, i, j)])
    sign = select(pivot[b].eq(k), head, -head)
    stages = (
        Stage(
            axes,
            (Store(matrix.name, (*b, i, j), widen(x[(*b, i, j)]), first),),
        ),
        Stage(outer, (Store(pivot.name, b, found),)),
        Stage(
            (*outer, column),
            (
                Store(current_row.name, (*b, j), matrix[(*b, k, j)]),
                Store(pivot_row.name, (*b, j), matrix[(*b, pivot[b], j)]),
            ),
        ),
        Stage((*outer, row), (Store(factors.name, (*b, i), factor),)),
        Stage(
            axes,
            (Store(matrix.name, (*b, i, j), kept - factors[(*b, i)] * pivot_row[(*b, j)]),),
        ),
        Stage(outer, (Store(result.name, b, select(first, sign, result[b] * sign)),)),
    )
    return stages, (matrix, pivot, pivot_row, current_row, factors)
