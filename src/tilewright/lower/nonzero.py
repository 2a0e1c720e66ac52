"""Compaction: NonZero and Compress, whose result length depends on the data.

Input -> Output: a ``Lowering`` whose output length is a symbol bound before the kernel runs -> one
sequential kernel that lists positions (and, for Compress, a pure kernel that gathers them).
Guarantees: positions are in row-major order; nothing is written beyond the bound length.
Not here: the length itself (a ``Binding``); Unique and NonMaxSuppression, which are interpreted.
"""

from __future__ import annotations

from tilewright.core.dtypes import BOOL, INT64
from tilewright.core.shape import Dim, product
from tilewright.kernel.ir import Axis, Buffer, Expr, Stage, Store, cast, constant, dim_value
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.indexing import axis_of, checked, refuse_opaque, replaced, zero
from tilewright.lower.registry import lowers


@lowers("NonZero")
def lower_nonzero(ctx: Lowering) -> None:
    """The indices of elements that are not zero, one column each."""
    refuse_opaque(ctx)
    x, out = ctx.input(0), ctx.output()
    if out is None:
        return
    if not x.shape:
        ctx.pure(out, lambda *_: zero(INT64))
        return
    _list_positions(ctx, x, out)


def _list_positions(ctx: Lowering, x: Buffer, out: Buffer) -> None:
    """Emits ``out[k, n]`` = index on axis k of the n-th non-zero element of ``x``."""
    filled = ctx.temporary(INT64, (1,))
    axes = tuple(Axis(f"i{k}", dim, ordered=True) for k, dim in enumerate(x.shape))
    at = tuple(axis.var for axis in axes)
    kept, place = cast(x[at], BOOL), filled[0]
    guard = kept & place.lt(dim_value(out.shape[1]))
    stores = [
        Store(out.name, (constant(k, INT64), place), index, guard) for k, index in enumerate(at)
    ]
    stores.append(Store(filled.name, (constant(0, INT64),), place + cast(kept, INT64)))
    clear = Stage((), (Store(filled.name, (constant(0, INT64),), constant(0, INT64)),))
    ctx.stages(out, (clear, Stage(axes, tuple(stores))), extra=(filled,))


@lowers("Compress")
def lower_compress(ctx: Lowering) -> None:
    """The slices of an axis (or elements of the flat operand) where the condition holds."""
    refuse_opaque(ctx)
    x, condition, out = ctx.input(0), ctx.input(1), ctx.output()
    if out is None:
        return
    given = ctx.node.attribute("axis")
    if given is None:
        flat = ctx.temporary(x.dtype, (product(x.shape),))
        x, axis = ctx.view(flat, x), 0
    else:
        axis = axis_of(int(given), len(x.shape))
    listed = ctx.temporary(INT64, (Dim.of(1), out.shape[axis]))
    _list_positions(ctx, condition, listed)

    def body(*index: Expr) -> Expr:
        return x[replaced(index, axis, checked(listed[0, index[axis]], x.shape[axis]))]

    ctx.pure(out, body)


@lowers("Unique")
def lower_unique(ctx: Lowering) -> None:
    """Refused: it sorts."""
    raise Unlowerable(f"{ctx.node.op_type} sorts and its result length depends on the data")


@lowers("NonMaxSuppression")
def lower_non_max_suppression(ctx: Lowering) -> None:
    """Refused: each step depends on all boxes kept so far."""
    raise Unlowerable(f"{ctx.node.op_type} is sequential and its result length depends on the data")
