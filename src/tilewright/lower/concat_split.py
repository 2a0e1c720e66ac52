"""Concat and Split along one axis.

Input -> Output: a ``Lowering`` -> one pure kernel for each wanted result.
Guarantees: a part is loaded only where its element is asked for, so neighbours fuse into the parts.
Not here: sequences (the executor joins and splits those).
"""

from __future__ import annotations

from tilewright.core.shape import Dim
from tilewright.kernel.ir import Buffer, Expr, dim_value, select
from tilewright.lower.context import Lowering
from tilewright.lower.indexing import axis_of, refuse_opaque, replaced, zero
from tilewright.lower.registry import lowers


@lowers("Concat")
def lower_concat(ctx: Lowering) -> None:
    """Nested selects over the parts, in order."""
    refuse_opaque(ctx)
    out = ctx.output()
    if out is None:
        return
    axis = axis_of(int(ctx.node.attribute("axis")), len(out.shape))
    parts: list[tuple[Buffer, Dim]] = []
    offset = Dim.of(0)
    for position in range(len(ctx.inputs)):
        part = ctx.input(position)
        if part.shape[axis] != Dim.of(0):
            parts.append((part, offset))
        offset = offset + part.shape[axis]
    if len(parts) == 1:
        ctx.view(out, parts[0][0])
        return

    def body(*index: Expr) -> Expr:
        if not parts:
            return zero(out.dtype)
        last, start = parts[-1]
        value = last[replaced(index, axis, index[axis] - dim_value(start))]
        for part, start in reversed(parts[:-1]):
            inside = index[axis].lt(dim_value(start + part.shape[axis]))
            local = part[replaced(index, axis, index[axis] - dim_value(start))]
            value = select(inside, local, value)
        return value

    ctx.pure(out, body)


@lowers("Split")
def lower_split(ctx: Lowering) -> None:
    """``out_k[i] = x[offset_k + i]`` on the axis."""
    refuse_opaque(ctx)
    x = ctx.input(0)
    axis = axis_of(int(ctx.node.attribute("axis", 0)), len(x.shape))
    for offset, out in zip(ctx.param("offsets"), ctx.outputs, strict=False):
        if out is not None and out.shape == x.shape:
            ctx.view(out, x)
        elif out is not None:
            start = dim_value(offset)
            ctx.pure(out, lambda *index, s=start: x[replaced(index, axis, index[axis] + s)])
