"""Slice, Pad, CenterCropPad, ReverseSequence: a shifted or folded window of a tensor.

Input -> Output: a ``Lowering`` with ``starts``/``steps`` or ``pads`` -> one pure kernel or a view.
Guarantees: starts, steps and pads may be symbolic, pads negative; no read is outside the operand.
Not here: normal form of starts and pads (graph.shapes).
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.core.dtypes import BOOL
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Buffer, Expr, constant, dim_value, select
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.indexing import (
    as_index,
    checked,
    clamp,
    nonempty,
    refuse_opaque,
    replaced,
    zero,
)
from tilewright.lower.registry import lowers

_Remap = Callable[[Expr, Dim], Expr]


@lowers("Slice")
def lower_slice(ctx: Lowering) -> None:
    """``out[i] = x[start + step*i]``."""
    refuse_opaque(ctx)
    x, out = ctx.input(0), ctx.output()
    if out is None:
        return
    starts, steps = ctx.param("starts"), ctx.param("steps")
    if _covers(x, out, starts, steps):
        ctx.view(out, x)
        return

    def body(*index: Expr) -> Expr:
        parts = zip(index, starts, steps, strict=True)
        return x[tuple(dim_value(start) + i * dim_value(step) for i, start, step in parts)]

    ctx.pure(out, body)


def _covers(x: Buffer, out: Buffer, starts: tuple[Dim, ...], steps: tuple[Dim, ...]) -> bool:
    return (
        x.shape == out.shape
        and all(start == Dim.of(0) for start in starts)
        and all(step == Dim.of(1) for step in steps)
    )


@lowers("Pad")
def lower_pad(ctx: Lowering) -> None:
    """Constant, edge, reflect or wrap padding; negative pads crop first."""
    refuse_opaque(ctx)
    x, out = ctx.input(0), ctx.output()
    if out is None:
        return
    rank = len(x.shape)
    pads = ctx.param("pads")
    begins, ends = pads[:rank], pads[rank:]
    if all(pad == Dim.of(0) for pad in pads):
        ctx.view(out, x)
        return
    mode = ctx.node.attribute("mode", "constant")
    if mode == "constant":
        fill = ctx.optional(2)
        value = zero(x.dtype) if fill is None else fill[tuple(0 for _ in fill.shape)]
        _shifted(ctx, x, out, begins, value)
    elif mode in _REMAPS:
        _remapped(ctx, x, out, begins, ends, _REMAPS[mode])
    else:
        raise Unlowerable(f"pad mode {mode}")


def _shifted(ctx: Lowering, x: Buffer, out: Buffer, begins: tuple[Dim, ...], value: Expr) -> None:
    """Emits ``out[i] = x[i - begin]`` where that exists, else ``value``."""

    def body(*index: Expr) -> Expr:
        inside = constant(True, BOOL)
        source: list[Expr] = []
        for i, begin, dim, size in zip(index, begins, x.shape, out.shape, strict=True):
            position = i - dim_value(begin)
            source.append(position)
            if not (begin.is_const and begin.const <= 0):
                inside = inside & position.ge(0)
            overhang = begin + dim - size
            if not (overhang.is_const and overhang.const >= 0):
                inside = inside & position.lt(dim_value(dim))
        return select(inside, x[tuple(source)], value)

    ctx.pure(out, body)


def _remapped(
    ctx: Lowering,
    x: Buffer,
    out: Buffer,
    begins: tuple[Dim, ...],
    ends: tuple[Dim, ...],
    remap: _Remap,
) -> None:
    """Emits a pad that folds positions back into what negative pads leave of the operand."""
    firsts = [(-begin).max(0) for begin in begins]
    sizes = [
        dim - first - (-end).max(0) for dim, first, end in zip(x.shape, firsts, ends, strict=True)
    ]
    padded = [
        axis
        for axis, (begin, end) in enumerate(zip(begins, ends, strict=True))
        if (begin, end) != (Dim.of(0), Dim.of(0))
    ]
    there = nonempty([sizes[axis] for axis in padded])

    def body(*index: Expr) -> Expr:
        source = list(index)
        for axis in padded:
            position = index[axis] - dim_value(begins[axis].max(0))
            source[axis] = dim_value(firsts[axis]) + remap(position, sizes[axis])
        return select(there, x[tuple(source)], zero(x.dtype))

    ctx.pure(out, body)


def _edge(position: Expr, size: Dim) -> Expr:
    return clamp(position, size)


def _wrap(position: Expr, size: Dim) -> Expr:
    return position % dim_value(size.max(1))


def _reflect(position: Expr, size: Dim) -> Expr:
    period = dim_value((2 * size - 2).max(1))
    folded = position % period
    return folded.min(period - folded)


_REMAPS: dict[str, _Remap] = {"edge": _edge, "wrap": _wrap, "reflect": _reflect}


@lowers("CenterCropPad")
def lower_center_crop_pad(ctx: Lowering) -> None:
    """Crops or zero-pads around the centre; the odd element goes to the end."""
    refuse_opaque(ctx)
    x, out = ctx.input(0), ctx.output()
    if out is None:
        return
    begins = tuple(
        (size - dim).max(0) // 2 - (dim - size).max(0) // 2
        for dim, size in zip(x.shape, out.shape, strict=True)
    )
    _shifted(ctx, x, out, begins, zero(x.dtype))


@lowers("ReverseSequence")
def lower_reverse_sequence(ctx: Lowering) -> None:
    """Reverses the first ``sequence_lens[b]`` steps of each batch entry."""
    refuse_opaque(ctx)
    x, lengths, out = ctx.input(0), ctx.input(1), ctx.output()
    if out is None:
        return
    time = int(ctx.node.attribute("time_axis", 0))
    batch = int(ctx.node.attribute("batch_axis", 1))

    def body(*index: Expr) -> Expr:
        step, length = index[time], as_index(lengths[index[batch]])
        mirrored = checked(length - 1 - step, x.shape[time])
        source = select(step.lt(length), mirrored, step)
        return x[replaced(index, time, source)]

    ctx.pure(out, body)
