"""Writes at data-dependent places: ScatterElements, ScatterND, MaxUnpool.

Input -> Output: a ``Lowering`` -> one kernel: copy (or clear), then write.
Guarantees: duplicates take effect in row-major order of the indices (axes on which they can meet
are ordered, the others parallel); an index outside raises ``OutOfRange``, negative ones wrap.
Not here: TensorScatter (gather), which needs no scattered writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.core.dtypes import BOOL, DType
from tilewright.core.shape import Dim, product
from tilewright.kernel.ir import Axis, Buffer, Expr, Stage, Store, call, cast, dim_value
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.indexing import (
    axis_of,
    checked,
    computed,
    refuse_opaque,
    replaced,
    unflatten,
    zero,
)
from tilewright.lower.registry import lowers

_COMBINE = {"add": "add", "mul": "mul", "max": "max", "min": "min"}
_COMBINE_BOOL = {"add": "or", "mul": "and", "max": "or", "min": "and"}


@lowers("ScatterElements")
def lower_scatter_elements(ctx: Lowering) -> None:
    """``out[i with indices[i] on the axis]`` takes ``updates[i]``."""
    refuse_opaque(ctx)
    x, indices, updates, out = ctx.input(0), ctx.input(1), ctx.input(2), ctx.output()
    if out is None:
        return
    if not x.shape:
        raise Unlowerable("a scatter into a scalar")
    axis = axis_of(int(ctx.node.attribute("axis", 0)), len(x.shape))
    axes = tuple(
        Axis(f"u{k}", dim, ordered=k == axis and dim != Dim.of(1))
        for k, dim in enumerate(indices.shape)
    )
    at = tuple(part.var for part in axes)
    target = replaced(at, axis, checked(indices[at], x.shape[axis]))
    value = _combined(ctx, out, target, updates[at])
    ctx.stages(out, (_copy(x, out), Stage(axes, (Store(out.name, target, value),))), extra=())


@lowers("ScatterND")
def lower_scatter_nd(ctx: Lowering) -> None:
    """``out[*indices[i.., :], s..]`` takes ``updates[i.., s..]``."""
    refuse_opaque(ctx)
    x, indices, updates, out = ctx.input(0), ctx.input(1), ctx.input(2), ctx.output()
    if out is None:
        return
    if not indices.shape[-1].is_const:
        raise Unlowerable("the length of index tuples is known only at run time")
    depth, outer = indices.shape[-1].const, len(indices.shape) - 1
    axes = tuple(
        Axis(f"u{k}", dim, ordered=k < outer and dim != Dim.of(1))
        for k, dim in enumerate(updates.shape)
    )
    at = tuple(part.var for part in axes)
    picked = tuple(checked(indices[(*at[:outer], k)], x.shape[k]) for k in range(depth))
    target = (*picked, *at[outer:])
    value = _combined(ctx, out, target, updates[at])
    ctx.stages(out, (_copy(x, out), Stage(axes, (Store(out.name, target, value),))), extra=())


@lowers("MaxUnpool")
def lower_max_unpool(ctx: Lowering) -> None:
    """Zeros, with each element at the flat position of MaxPool's operand that it came from."""
    refuse_opaque(ctx)
    x, indices, out = ctx.input(0), ctx.input(1), ctx.output()
    if out is None:
        return
    pooled = _pooled_shape(ctx, x)
    axes = tuple(Axis(f"u{k}", dim, ordered=dim != Dim.of(1)) for k, dim in enumerate(x.shape))
    at = tuple(part.var for part in axes)
    target = unflatten(checked(indices[at], product(pooled)), pooled)
    guard: Expr | None = None
    for part, dim, size in zip(target, pooled, out.shape, strict=True):
        if dim != size:
            inside = part.lt(dim_value(size))
            guard = inside if guard is None else guard & inside
    clear = _filled(out, zero(out.dtype))
    ctx.stages(out, (clear, Stage(axes, (Store(out.name, target, x[at], guard),))), extra=())


def _pooled_shape(ctx: Lowering, x: Buffer) -> tuple[Dim, ...]:
    """Shape of the tensor that MaxPool had: ``(d-1)*stride - pads + kernel`` on spatial axes."""
    kernel = [int(size) for size in ctx.node.attribute("kernel_shape")]
    strides = [int(step) for step in ctx.node.attribute("strides") or [1] * len(kernel)]
    pads = [int(pad) for pad in ctx.node.attribute("pads") or [0] * (2 * len(kernel))]
    spatial = (
        (dim - 1) * strides[k] - pads[k] - pads[len(kernel) + k] + kernel[k]
        for k, dim in enumerate(x.shape[2:])
    )
    return (*x.shape[:2], *spatial)


def _copy(x: Buffer, out: Buffer) -> Stage:
    axes = tuple(Axis(f"i{k}", dim) for k, dim in enumerate(out.shape))
    at = tuple(axis.var for axis in axes)
    return Stage(axes, (Store(out.name, at, x[at]),))


def _filled(out: Buffer, value: Expr) -> Stage:
    axes = tuple(Axis(f"i{k}", dim) for k, dim in enumerate(out.shape))
    return Stage(axes, (Store(out.name, tuple(axis.var for axis in axes), value),))


def _combined(ctx: Lowering, out: Buffer, target: Sequence[Expr], update: Expr) -> Expr:
    """The new value of an element: the update, or its combination with what is there."""
    reduction = ctx.node.attribute("reduction", "none")
    if reduction == "none":
        return update
    names = _COMBINE_BOOL if out.dtype is BOOL else _COMBINE
    if reduction not in names:
        raise Unlowerable(f"reduction {reduction}")
    return _wide(names[reduction], out[tuple(target)], update, out.dtype)


def _wide(op: str, left: Expr, right: Expr, dtype: DType) -> Expr:
    wide = computed(dtype)
    return cast(call(op, cast(left, wide), cast(right, wide)), dtype)
