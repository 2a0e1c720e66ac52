"""Running sums and products along an axis.

    CumSum(x)  ->  for k in order: out[o, k, i] = out[o, k-1, i] + x[o, k, i]
Requires: param ``outer_axis_inner``: products of the dims before, at and after the axis.
Guarantees: halves accumulate in float32.
Not here: reductions (lower.reduce).
"""

from __future__ import annotations

from tilewright.kernel.ir import Axis, Buffer, Expr, Stage, Store, call, dim_value, select
from tilewright.lower.broadcast import refuse_opaque
from tilewright.lower.context import Lowering
from tilewright.lower.precision import compute_type, flag
from tilewright.lower.registry import lowers


@lowers("CumSum", "CumProd")
def running(ctx: Lowering) -> None:
    """``exclusive`` leaves the element itself out; ``reverse`` runs from the end."""
    out, x = ctx.output(), ctx.input(0)
    if out is None:
        return
    refuse_opaque(x)
    outer, size, inner = ctx.param("outer_axis_inner")
    op, start = ("add", 0) if ctx.node.op_type == "CumSum" else ("mul", 1)
    kind, exclusive = compute_type(x.dtype), flag(ctx, "exclusive")
    shape = (outer, size, inner)
    source = ctx.view(ctx.temporary(x.dtype, shape), x)
    result = ctx.temporary(out.dtype, shape)
    total = result if kind is out.dtype else ctx.temporary(kind, shape)
    o, k, i = Axis("o", outer), Axis("k", size, ordered=True), Axis("i", inner)

    def place(step: Expr) -> tuple[Expr, Expr, Expr]:
        position = dim_value(size) - 1 - step if flag(ctx, "reverse") else step
        return o.var, position, i.var

    def element(buffer: Buffer, step: Expr) -> Expr:
        return buffer[place(step)].cast(kind)

    before = element(total, k.var - 1)
    if exclusive:
        value = select(k.var.eq(0), start, call(op, before, element(source, k.var - 1)))
    else:
        value = call(op, select(k.var.eq(0), start, before), element(source, k.var))
    stores = [Store(total.name, place(k.var), value)]
    if total is not result:
        rounded = total[place(k.var)].cast(out.dtype)
        stores.append(Store(result.name, place(k.var), rounded))
    extra = () if total is result else (total,)
    ctx.stages(result, (Stage((o, k, i), tuple(stores)),), extra=extra)
    ctx.view(out, result)
