"""TopK by counting ranks: an element's place is the number of elements that come before it.

Input -> Output: a ``Lowering`` with param ``k`` -> a kernel that stores each element at its place.
Guarantees: results are sorted; equal values keep their order; NaN is the largest, as in NumPy.
Limits: comparisons grow with the square of the axis: a long axis of known length is left to a sort.
"""

from __future__ import annotations

from tilewright.core.dtypes import INT64
from tilewright.kernel.ir import (
    Axis,
    Expr,
    Stage,
    Store,
    call,
    cast,
    dim_value,
    reduce_over,
    select,
)
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.indexing import axis_of, computed, refuse_opaque, replaced
from tilewright.lower.registry import lowers

_LONGEST = 4096  # beyond it, sorting on one thread beats n*n comparisons


@lowers("TopK")
def lower_topk(ctx: Lowering) -> None:
    """Values and positions of the k largest or smallest elements of an axis."""
    refuse_opaque(ctx)
    x = ctx.input(0)
    outputs = [out for out in ctx.outputs if out is not None]
    if not outputs:
        return
    axis = axis_of(int(ctx.node.attribute("axis", -1)), len(x.shape))
    size = x.shape[axis]
    if size.is_const and size.const > _LONGEST:
        raise Unlowerable(f"an axis of {size} elements is sorted faster than it is ranked")
    axes = tuple(Axis(f"i{k}", dim) for k, dim in enumerate(x.shape))
    at = tuple(part.var for part in axes)
    wide = computed(x.dtype)
    mine = cast(x[at], wide)
    largest = bool(ctx.node.attribute("largest", 1))

    def ahead(other: Expr) -> Expr:
        theirs = cast(x[replaced(at, axis, other)], wide)
        return cast(_comes_first(theirs, mine, other.lt(at[axis]), largest), INT64)

    rank = reduce_over("sum", (size,), ahead)
    place, guard = replaced(at, axis, rank), rank.lt(dim_value(ctx.param("k")[0]))
    values = (x[at], at[axis])
    stores = tuple(
        Store(out.name, place, value, guard)
        for out, value in zip(ctx.outputs, values, strict=False)
        if out is not None
    )
    ctx.stages(tuple(outputs), (Stage(axes, stores),), extra=())


def _comes_first(other: Expr, mine: Expr, earlier: Expr, largest: bool) -> Expr:
    """Whether ``other`` is ranked before ``mine``; ``earlier`` decides between equals."""
    strict, loose = ("gt", "ge") if largest else ("lt", "le")
    ahead = select(earlier, call(loose, other, mine), call(strict, other, mine))
    if not mine.dtype.is_float:
        return ahead
    other_nan, mine_nan = call("isnan", other), call("isnan", mine)
    among_nan = select(other_nan & mine_nan, earlier, other_nan if largest else mine_nan)
    return select(other_nan | mine_nan, among_nan, ahead)
