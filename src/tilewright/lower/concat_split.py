"""Concat and Split along one axis.

Input -> Output: a ``Lowering`` -> one kernel for each wanted result.
    few parts    out[i] = i < n ? a[i] : b[i - n]            neighbours fuse on both sides
    many parts   out[i] = a[i];  out[n + i] = b[i];  ...    one loop nest a part
Guarantees: a part is loaded only where its element is asked for.
Not here: sequences (the executor joins and splits those).
"""

from __future__ import annotations

from tilewright.core.shape import Dim
from tilewright.kernel.ir import Axis, Buffer, Expr, Stage, Store, dim_value, select
from tilewright.lower.context import Lowering
from tilewright.lower.indexing import axis_of, refuse_opaque, replaced, zero
from tilewright.lower.registry import lowers

# Every vector looks at all parts that are selected from.
_MAX_SELECTED = 8


@lowers("Concat")
def lower_concat(ctx: Lowering) -> None:
    """Nested selects over a few parts; a copy of each of many."""
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

    if len(parts) > _MAX_SELECTED:
        stages = tuple(_copy(out, axis, part, start) for part, start in parts)
        ctx.stages(out, stages, extra=())
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


def _copy(out: Buffer, axis: int, part: Buffer, start: Dim) -> Stage:
    axes = tuple(Axis(f"i{k}", dim) for k, dim in enumerate(part.shape))
    index = tuple(own.var for own in axes)
    place = replaced(index, axis, index[axis] + dim_value(start))
    return Stage(axes, (Store(out.name, place, part[index]),))


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
