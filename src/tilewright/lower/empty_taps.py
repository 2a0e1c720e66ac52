"""Taps of windows that meet nothing but a border of zeros are left out of sums.

    sum(kh, kw: x[h + kh, w + kw] * k[kh, kw])   ->
    sum(kh, kw: select(1 <= h + kh < H + 1, x[h + kh, w + kw] * k[kh, kw], 0))
Input -> Output: a kernel over blocked images of bytes, and their layouts -> the same sums with
conditions that say where terms are 0.
Requires: borders are filled with what ``layouts`` says; processors with vectors of 16 lanes: others
join short lines (codegen.cpu.joined), which gains as much, and conditions would keep them from it.
Guarantees: values are unchanged; each term that a condition leaves out is 0.
Why: lines of 7 pixels, 3x3 taps: 80 of 441 products have a factor in the border.
Not here: loops that leave terms out (codegen.cpu.taps).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.core.shape import Dim
from tilewright.kernel.affine import affine
from tilewright.kernel.blocked import Layout, axis_extents
from tilewright.kernel.dot import factors, is_dot, terms_of
from tilewright.kernel.ir import (
    Call,
    Const,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    constant,
    dim_value,
    reduce_axes,
    select,
    transform,
    walk,
)
from tilewright.kernel.ranges import beyond, reach

_WIDE = 16  # lanes of vectors
_SHORT = 14  # pixels of a line that one register tile holds


def skip_empty_taps(kernel: Kernel, layouts: Mapping[str, Layout], block: int) -> Kernel:
    """The kernel with conditions in its sums of dot products.

    Args:
        block: float32 lanes of one vector.
    """
    if block < _WIDE or kernel.temporaries:
        return kernel
    shapes = {buffer.name: buffer.shape for buffer in kernel.buffers}
    stages = tuple(_with_conditions(stage, layouts, shapes) for stage in kernel.stages)
    changed = any(new is not old for new, old in zip(stages, kernel.stages, strict=True))
    return replace(kernel, stages=stages) if changed else kernel


def _with_conditions(
    stage: Stage, layouts: Mapping[str, Layout], shapes: Mapping[str, tuple[Dim, ...]]
) -> Stage:
    extents = axis_extents(stage)
    line = stage.axes[-2].extent if len(stage.axes) > 1 else Dim.of(1)
    is_short = line.is_const and line.const <= _SHORT
    changed: dict[int, Expr] = {}
    for node in walk(*(store.value for store in stage.stores)):
        if not isinstance(node, Reduce) or not is_dot(node) or terms_of(node)[0] is not None:
            continue
        data = _bordered(node, layouts)
        if data is None:
            continue
        # Where a sum has one channel, a dot product has several taps, which come together.
        pixels = is_short and node.axes[-1].name not in data.index[-2].free_axes
        inside = _inside(data, layouts[data.buffer], shapes, extents, pixels=pixels)
        if inside is not None:
            term = select(inside, node.body, constant(0, node.dtype))
            changed[id(node)] = reduce_axes(node.combiner, node.axes, term)
    if not changed:
        return stage

    def rule(part: Expr) -> Expr | None:
        return changed.get(id(part))

    stores = tuple(store.mapped(lambda root: transform(root, rule)) for store in stage.stores)
    return replace(stage, stores=stores)


def _bordered(node: Reduce, layouts: Mapping[str, Layout]) -> Load | None:
    """The data of a dot product, if it is blocked and 0 in its border."""
    found = factors(node)
    loads = [] if found is None else [n for n in walk(found[0]) if isinstance(n, Load)]
    layout = layouts.get(loads[0].buffer) if len(loads) == 1 else None
    if found is None or layout is None or layout.block == 1 or not layout.border:
        return None
    data, flip = found[0], 0
    if isinstance(data, Call) and data.op == "xor" and isinstance(data.args[1], Const):
        flip = int(data.args[1].value)
    return loads[0] if int(layout.fill) & 255 == flip else None


def _inside(
    data: Load,
    layout: Layout,
    shapes: Mapping[str, tuple[Dim, ...]],
    extents: Mapping[str, Dim],
    *,
    pixels: bool,
) -> Expr | None:
    """Where a load reads no border of lines, and, if asked, of pixels; None for everywhere."""
    shape = shapes[data.buffer]
    last = len(shape) - 2  # of the spatial dims; behind it is the block
    total: Expr | None = None
    for position, (before, after) in sorted(layout.border.items()):
        part, size = data.index[position], shape[position]
        form = affine(part)
        if not size.is_const or form.rest or (position == last and not pixels):
            continue
        if reach(affine(part - before), extents) > 0:
            total = _and(total, part.ge(before))
        if beyond(form, size - after, extents) > 0:
            total = _and(total, part.lt(dim_value(size - after)))
    return total


def _and(total: Expr | None, part: Expr) -> Expr:
    return part if total is None else total & part
