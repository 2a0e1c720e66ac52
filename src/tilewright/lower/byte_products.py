"""Sums of products of narrow numbers: how operands are stored, factors beside each other.

Input -> Output: a segment's kernels -> layouts of 8-bit images; kernels over those, or over blocks
of bfloat16 -> the same with sums in dot products of four bytes, of two bfloat16.
    channels:  sum co, ci: u8(x[n, co, h, w, ci]) * s8(w[m, 16*co + ci])   ->
               sum co, cq, j: u8(x[n, co, h, w, 4*cq + j]) * s8(packed[mo, co, cq, mi, j])
    taps:      sum kh, kw: u8(x[n, co, h + kh, w + kw, ci]) * s8(w[16*co + ci, kh, kw])   ->
               sum kh, kq, j: u8(x[n, co, h + kh, w + 4*kq + j, ci]) * s8(packed[co, kh, kq, ci, j])
               of one channel a sum, or of few channels, which stay row by row
Guarantees: terms of sums are unchanged, and integer sums, which are exact in any order; what is
read beyond the last tap lies in the buffer, and is multiplied by 0.
Not here: rewriting of layouts (kernel.blocked), packing (lower.pack), instructions (codegen).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tilewright.core.dtypes import BFLOAT16, INT8, UINT8
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.kernel.affine import access, affine
from tilewright.kernel.blocked import (
    Blocker,
    Layout,
    accesses,
    axis_extents,
    splittable,
)
from tilewright.kernel.dot import BYTES, DotKind, factors, is_dot, kind_of
from tilewright.kernel.ir import (
    Axis,
    AxisVar,
    Buffer,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    constant,
    dim_value,
    reduce_axes,
    select,
    substitute,
    transform,
    walk,
)
from tilewright.kernel.ranges import beyond
from tilewright.lower.borders import MAX_BORDER, border_needs, filled_loads

_MAX_PADDING = 1.4
_MUCH_PADDING = 1.25
_HALVINGS = 3
_CHANNELS = 1
_LEAST_RANK = 2
BYTE_TYPES = (INT8, UINT8)

# --- layouts --------------------------------------------------------------------------------------


def byte_layouts(
    kernels: Sequence[Kernel],
    fixed: Collection[str],
    constants: Collection[str],
    blocks: tuple[int, int],
    log: DecisionLog,
) -> dict[str, Layout]:
    """Layouts of 8-bit images around convolutions of bytes: channels in blocks.

    An image of few channels, of bytes or bfloat16, stays row by row, and gets a border.

    Args:
        fixed: names of buffers that stay row by row.
        constants: names of known arrays.
        blocks: int32 lanes of one vector, and of the least that costs no more for each lane.
    """
    written = {buffer.name for kernel in kernels for buffer in kernel.outputs}
    layouts: dict[str, Layout] = {}
    for kernel in kernels:
        if not _is_convolution(kernel, constants):
            continue
        for buffer in (*kernel.inputs, *kernel.outputs):
            if buffer.name in layouts or buffer.name in constants:
                continue
            is_few = has_few_channels(buffer)
            if buffer.dtype not in BYTE_TYPES and not (is_few and buffer.dtype is BFLOAT16):
                continue
            reason = _against(buffer, kernels, fixed, written)
            if reason is None:
                block = 1 if is_few else _block(buffer, kernels, blocks)
                layouts[buffer.name] = Layout(_CHANNELS, block)
                log.add("layout", buffer.name, f"channels in blocks of {block}")
            else:
                log.add("layout", buffer.name, "row-major", (("blocked channels", reason),))
    _add_borders(layouts, kernels)
    return layouts


def has_few_channels(buffer: Buffer) -> bool:
    """True for images whose windows are taken along rows, as channels fill no block."""
    if len(buffer.shape) not in (3, 4, 5) or not buffer.shape[_CHANNELS].is_const:
        return False
    return buffer.shape[_CHANNELS].const < BYTES.unit


def _block(buffer: Buffer, kernels: Sequence[Kernel], blocks: tuple[int, int]) -> int:
    """The largest block that pads little; finer ones where they cost nothing, or pad less."""
    channels = buffer.shape[_CHANNELS].const
    most, free = blocks
    allowed = (_MUCH_PADDING if free < most else _MAX_PADDING, _MAX_PADDING)
    for limit in allowed:
        for size in _sizes(most):
            if -(-channels // size) * size <= limit * channels and channels >= BYTES.unit:
                return size if _is_blockable(buffer, kernels, size) else 1
    return 1


def _sizes(most: int) -> list[int]:
    """A vector's lanes, and what smaller vectors hold."""
    return [most >> shift for shift in range(_HALVINGS) if most >> shift >= BYTES.unit]


def _is_blockable(buffer: Buffer, kernels: Sequence[Kernel], block: int) -> bool:
    for kernel in kernels:
        for stage in kernel.stages if buffer in kernel.buffers else ():
            extents = axis_extents(stage)
            for name, index in accesses(stage):
                size = buffer.shape[_CHANNELS]
                if name == buffer.name and not splittable(index[_CHANNELS], extents, block, size):
                    return False
    return True


def _is_convolution(kernel: Kernel, constants: Collection[str]) -> bool:
    """A sum of products of bytes whose known factor moves along the channels of an image."""
    for stage in kernel.stages:
        for store in stage.stores:
            if len(store.index) not in (3, 4, 5):
                continue
            channel, last = (_axes_of(store.index[place]) for place in (_CHANNELS, -1))
            for node in walk(store.value):
                found = factors(node) if isinstance(node, Reduce) else None
                if found is not None and found[1].buffer in constants:
                    moving = _axes_of(*found[1].index)
                    if channel & moving and not last & moving:
                        return True
    return False


def _axes_of(*exprs: Expr) -> set[str]:
    return {node.name for node in walk(*exprs) if isinstance(node, AxisVar)}


def _against(
    buffer: Buffer, kernels: Sequence[Kernel], fixed: Collection[str], written: Collection[str]
) -> str | None:
    if buffer.name in fixed:
        return "it is read outside of the segment, or under another shape"
    if buffer.name not in written:
        return "it is written outside of the segment"
    if len(buffer.shape) not in (3, 4, 5):
        return "it has no spatial dims"
    if not buffer.shape[_CHANNELS].is_const:
        return f"the number of channels, {buffer.shape[_CHANNELS]}, is not known"
    if all(size == Dim.of(1) for size in buffer.shape[_CHANNELS + 1 :]):
        return "its spatial dims are 1"
    for kernel in kernels:
        if buffer not in kernel.buffers:
            continue
        ordered = any(axis.ordered for stage in kernel.stages for axis in stage.axes)
        if kernel.steps is not None or kernel.temporaries or ordered:
            return f"{kernel.name} steps through it"
    return None


def _add_borders(layouts: dict[str, Layout], kernels: Sequence[Kernel]) -> None:
    """Borders of the zero point, where loads are guarded with it, and for taps beyond the last."""
    shapes = {buffer.name: buffer.shape for kernel in kernels for buffer in kernel.buffers}
    stages = [stage for kernel in kernels for stage in kernel.stages]
    for stage in stages:
        extents = axis_extents(stage)
        for load, condition, fill in filled_loads(stage):
            needs = border_needs(load, condition, shapes[load.buffer], extents)
            _widen(layouts, load.buffer, needs, fill)
    for stage in stages:
        extents = axis_extents(stage)
        for load, taps, unit in _tap_loads(stage, layouts):
            place = len(load.index) - 1
            whole = {**extents, taps.name: taps.extent.ceildiv(unit) * unit}
            after = beyond(affine(load.index[place]), shapes[load.buffer][place], whole)
            if 0 < after <= MAX_BORDER:
                _widen(layouts, load.buffer, {place: (0, after)}, None)


def _widen(
    layouts: dict[str, Layout],
    name: str,
    needs: Mapping[int, tuple[int, int]],
    fill: float | None,
) -> None:
    """Gives a buffer a border; the fill that is asked for first stays."""
    layout = layouts.get(name)
    if layout is None or not needs:
        return
    if fill is not None and layout.border and layout.fill != fill:
        return
    border = dict(layout.border)
    for position, (before, after) in needs.items():
        old = border.get(position, (0, 0))
        border[position] = (max(old[0], before), max(old[1], after))
    layouts[name] = replace(layout, border=border, fill=layout.fill if fill is None else fill)


def _tap_loads(stage: Stage, layouts: Mapping[str, Layout]) -> list[tuple[Load, Axis, int]]:
    """Loads whose taps along the last dim become dot products, and factors of one: few channels,
    or one a sum.
    """
    found: list[tuple[Load, Axis, int]] = []
    for node in walk(*(store.value for store in stage.stores)):
        kind = kind_of(node) if isinstance(node, Reduce) else None
        if kind is None or not isinstance(node, Reduce):
            continue
        loads = _data_of(node)
        if loads is None or loads[0].buffer not in layouts:
            continue
        data = loads[0]
        channel = affine(data.index[_CHANNELS]).terms
        dense = any(axis.name in channel for axis in node.axes)
        along = affine(data.index[-1]).terms
        if layouts[data.buffer].block == 1 or (not dense and kind is BYTES):
            taps = [axis for axis in node.axes if along.get(axis.name) == Dim.of(1)]
            found += [(data, axis, kind.unit) for axis in taps]
    return found


def dot_splits(node: Reduce, stage: Stage, lanes: int) -> dict[str, int]:
    """The axis of outputs that the weights of dot products move along, split by lanes."""
    loads = _data_of(node)
    if loads is None:
        return {}
    moving = _axes_of(*loads[1].index)
    outputs = [axis for axis in stage.axes if axis.name in moving]
    if len(outputs) != 1 or not outputs[0].extent.is_const:
        return {}
    size = outputs[0].extent.const
    fitting = (n for n in _sizes(lanes) if -(-size // n) * n <= _MAX_PADDING * size)
    found = next(fitting, None)
    return {} if found is None else {outputs[0].name: found}


# --- dot products of blocks -----------------------------------------------------------------------


def in_dots(kernel: Kernel, kinds: Collection[DotKind]) -> Kernel:
    """The kernel with sums over blocks of channels, or over taps, in dot products.

    Args:
        kinds: those that there are instructions for.
    """
    shapes = {buffer.name: buffer.shape for buffer in kernel.buffers}
    splits: dict[str, int] = {}
    stages: list[Stage] = []
    for stage in kernel.stages:
        changed: dict[int, Expr] = {}
        for node in walk(*(store.value for store in stage.stores)):
            kind = kind_of(node) if isinstance(node, Reduce) else None
            if not isinstance(node, Reduce) or kind is None or kind not in kinds or is_dot(node):
                continue
            inner = _block_axis(node, shapes)
            if inner is not None:
                splits[inner] = kind.unit
            elif (taps := _taps_in_units(node, kind, stage, shapes)) is not None:
                changed[id(node)] = taps
        stages.append(_with(stage, changed) if changed else stage)
    kernel = replace(kernel, stages=tuple(stages))
    return Blocker({}, shapes).kernel(kernel, splits) if splits else kernel


def _data_of(node: Reduce) -> tuple[Load, Load] | None:
    """The only load of the data, and that of the weights."""
    found = factors(node)
    if found is None:
        return None
    loads = [part for part in walk(found[0]) if isinstance(part, Load)]
    return (loads[0], found[1]) if len(loads) == 1 else None


def _block_axis(node: Reduce, shapes: Mapping[str, tuple[Dim, ...]]) -> str | None:
    """The innermost axis of a sum, where the data lies along it and it has whole units."""
    loads, kind = _data_of(node), kind_of(node)
    axis = node.axes[-1]
    if loads is None or kind is None or not axis.extent.is_const or axis.extent.const % kind.unit:
        return None
    data, weights = (access(load.index, shapes[load.buffer]) for load in loads)
    steps = data.stride(axis.name) == Dim.of(1) and axis.name in weights.terms
    return axis.name if steps else None


def _taps_in_units(
    node: Reduce, kind: DotKind, stage: Stage, shapes: Mapping[str, tuple[Dim, ...]]
) -> Expr | None:
    """A sum over taps: the data of the next tap is one block of lanes further, or one element."""
    loads, found = _data_of(node), factors(node)
    if loads is None or found is None:
        return None
    data, weights = loads
    shape = shapes[data.buffer]
    along = affine(data.index[-2]).terms if len(shape) >= _LEAST_RANK else {}
    taps = next((axis for axis in node.axes if along.get(axis.name) == Dim.of(1)), None)
    if taps is None or not taps.extent.is_const or not stage.axes:
        return None
    lane = stage.axes[-1]
    form = access(data.index, shape)
    strides = form.stride(lane.name), form.stride(taps.name)
    spread = [(Dim.of(1), lane.extent)] if kind is BYTES else []
    if strides not in ((Dim.of(0), Dim.of(1)), *spread):
        return None
    outer = Axis(f"{taps.name}o", taps.extent.ceildiv(kind.unit))
    inner = Axis(f"{taps.name}i", Dim.of(kind.unit))
    extents = {**axis_extents(stage), outer.name: outer.extent, inner.name: inner.extent}
    tap = outer.var * kind.unit + inner.var
    moved = substitute(found[0], {taps.name: tap})
    read = next(part for part in walk(moved) if isinstance(part, Load))
    if beyond(affine(read.index[-2]), shape[-2], extents):
        return None
    factor: Expr = substitute(weights, {taps.name: tap})
    if taps.extent.const % kind.unit:
        factor = select(tap.lt(dim_value(taps.extent)), factor, constant(0, weights.dtype))
    body = moved.cast(node.dtype) * factor.cast(node.dtype)
    others = (axis for axis in node.axes if axis is not taps)
    return reduce_axes("sum", (*others, outer, inner), body)


def _with(stage: Stage, changed: Mapping[int, Expr]) -> Stage:
    def rule(part: Expr) -> Expr | None:
        return changed.get(id(part))

    return replace(
        stage,
        stores=tuple(store.mapped(lambda root: transform(root, rule)) for store in stage.stores),
    )
