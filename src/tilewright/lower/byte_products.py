"""Sums of products of bytes: which reductions are, and how their operands are stored.

Input -> Output: a segment's kernels -> layouts of 8-bit images (channels last), axes to split so
that four bytes along the sum stand beside each other.
    sum c: u8(x[n, c, h, w]) * s8(w[m, c])   ->
    sum co, c4: u8(x[n, h, w, 4*co + c4]) * s8(packed[mo, co, mi, c4]),  m = 16*mo + mi
Guarantees: values are unchanged, integer sums being exact in any order.
Not here: rewriting (kernel.blocked), packing (lower.pack), instructions (codegen).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tilewright.core.dtypes import INT8, UINT8
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.kernel.affine import affine
from tilewright.kernel.blocked import WHOLE, Layout, axis_extents
from tilewright.kernel.dot import UNIT, factors
from tilewright.kernel.ir import (
    Axis,
    AxisVar,
    Buffer,
    Kernel,
    Load,
    Reduce,
    Stage,
    walk,
)
from tilewright.lower.borders import border_needs, filled_loads

_LEAST_DEPTH = 3
_MAX_PADDING = 1.4
_CHANNELS = 1
_BYTES = (INT8, UINT8)

# --- layouts --------------------------------------------------------------------------------------


def channels_last(
    kernels: Sequence[Kernel],
    fixed: Collection[str],
    constants: Collection[str],
    log: DecisionLog,
) -> dict[str, Layout]:
    """Layouts of 8-bit images around convolutions of bytes.

    Args:
        fixed: names of buffers that stay row by row.
        constants: names of known arrays.
    """
    written = {buffer.name for kernel in kernels for buffer in kernel.outputs}
    layouts: dict[str, Layout] = {}
    for kernel in kernels:
        if not _is_convolution(kernel, constants):
            continue
        for buffer in (*kernel.inputs, *kernel.outputs):
            if buffer.name in layouts or buffer.name in constants or buffer.dtype not in _BYTES:
                continue
            reason = _against(buffer, kernels, fixed, written)
            if reason is None:
                layouts[buffer.name] = Layout(_CHANNELS, WHOLE)
                log.add("layout", buffer.name, "channels last")
            else:
                log.add("layout", buffer.name, "row-major", (("channels last", reason),))
    _add_borders(layouts, kernels)
    return layouts


def _is_convolution(kernel: Kernel, constants: Collection[str]) -> bool:
    """A sum of products of bytes, one factor known, of an image."""
    for stage in kernel.stages:
        for node in walk(*(store.value for store in stage.stores)):
            found = factors(node) if isinstance(node, Reduce) else None
            if found is not None and found[1].buffer in constants:
                return all(len(store.index) in (3, 4, 5) for store in stage.stores)
    return False


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
    """Borders of the zero point, where convolutions guard their loads with it."""
    shapes = {buffer.name: buffer.shape for kernel in kernels for buffer in kernel.buffers}
    for kernel in kernels:
        for stage in kernel.stages:
            extents = axis_extents(stage)
            for load, condition, fill in filled_loads(stage):
                layout = layouts.get(load.buffer)
                if layout is None or (layout.border and layout.fill != fill):
                    continue
                needs = border_needs(load, condition, shapes[load.buffer], extents)
                border = dict(layout.border)
                for position, (before, after) in needs.items():
                    old = border.get(position, (0, 0))
                    border[position] = (max(old[0], before), max(old[1], after))
                if border:
                    layouts[load.buffer] = replace(layout, border=border, fill=fill)


# --- splits ---------------------------------------------------------------------------------------


def dot_splits(
    node: Reduce, stage: Stage, layouts: Mapping[str, Layout], lanes: int
) -> dict[str, int]:
    """Axes to split for one sum: outputs by lanes, and what both operands step through by four.

    Nothing where the data does not lie in that order.
    """
    found = factors(node)
    if found is None:
        return {}
    data, weights = found
    loads = [part for part in walk(data) if isinstance(part, Load)]
    moving = {part.name for part in walk(*weights.index) if isinstance(part, AxisVar)}
    outputs = [axis for axis in stage.axes if axis.name in moving]
    if len(loads) != 1 or len(outputs) != 1 or not outputs[0].extent.is_const:
        return {}
    size = outputs[0].extent.const
    if -(-size // lanes) * lanes > _MAX_PADDING * size:
        return {}
    depth = _depth(node, loads[0], layouts.get(loads[0].buffer))
    if depth is None or depth.name not in moving:
        return {}
    return {outputs[0].name: lanes, depth.name: UNIT}


def _depth(node: Reduce, load: Load, layout: Layout | None) -> Axis | None:
    """The axis of a sum along which the data lies in memory."""
    place = -1 if layout is None else layout.dim
    terms = affine(load.index[place]).terms
    for axis in node.axes:
        if terms.get(axis.name) == Dim.of(1) and axis.extent.is_const:
            padded = axis.extent.const % UNIT != 0
            if axis.extent.const >= _LEAST_DEPTH and not (padded and layout is None):
                return axis
    return None
