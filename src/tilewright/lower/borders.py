"""Borders of zeros, which make the guards of convolutions superfluous.

Input -> Output: guarded loads -> the border that they need; a segment whose convolutions guard
loads of its inputs -> the same with copies that can have a border.
    conv(select(inside, x[i], 0))  ->  y = x;  conv(select(inside, y[i], 0))
Requires: the copied buffer is a float32 image that nothing in the segment writes; the convolution
has enough channels.
Guarantees: values are unchanged.
Why: a guard costs a branch at each pixel, which is half the time of a network's first convolution;
the copy costs one pass over the image.
Not here: which buffers get a border, and how it is stored (lower.layout, kernel.blocked).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from tilewright.core.dtypes import FLOAT32
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.kernel.affine import affine
from tilewright.kernel.blocked import axis_extents, conjuncts
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Kernel,
    Load,
    Stage,
    Store,
    load,
)
from tilewright.kernel.ranges import beyond, reach
from tilewright.kernel.traverse import transform, walk
from tilewright.lower.context import Item, View

FIRST = 2  # dims behind batch and channels
MAX_BORDER = 8
_MIN_CHANNELS = 8


def copy_guarded_inputs(
    items: Sequence[Item],
    is_convolution: Callable[[Kernel], bool],
    constants: Collection[str],
    log: DecisionLog,
) -> tuple[list[Item], list[str]]:
    """Copies each input of a segment that a convolution guards with zeros.

    Returns:
        The items, convolutions reading the copies, and the copies' names.
    """
    written = {name for item in items for name in _targets(item)}
    copies: dict[str, Buffer] = {}
    result: list[Item] = []
    for item in items:
        if isinstance(item, View) or not is_convolution(item):
            result.append(item)
            continue
        wanted = [
            buffer
            for buffer in item.inputs
            if buffer.name not in written and buffer.name not in constants and _gains(item, buffer)
        ]
        for buffer in wanted:
            if buffer.name not in copies:
                copies[buffer.name] = copy = replace(buffer, name=f"{buffer.name}/bordered")
                result.append(_copy(buffer, copy, item.sources))
                log.add("layout", copy.name, f"a copy of {buffer.name} with a border of zeros")
        result.append(_reading(item, {b.name: copies[b.name] for b in wanted}))
    return result, [copy.name for copy in copies.values()]


def _targets(item: Item) -> list[str]:
    return [item.target.name] if isinstance(item, View) else [b.name for b in item.outputs]


def _gains(kernel: Kernel, buffer: Buffer) -> bool:
    """True when a border makes guards of a kernel superfluous."""
    if buffer.dtype is not FLOAT32 or len(buffer.shape) not in (3, 4, 5):
        return False
    if not buffer.shape[FIRST - 1].is_const:  # whose number of channels the layout has to state
        return False
    if not all(_is_wide(out) for out in kernel.outputs):
        return False
    return any(
        load.buffer == buffer.name
        and border_needs(load, condition, buffer.shape, axis_extents(stage))
        for stage in kernel.stages
        for load, condition in guarded_loads(stage)
    )


def _is_wide(out: Buffer) -> bool:
    """True when each pixel is read for many channels, so that the copy does not matter."""
    channels = out.shape[FIRST - 1]
    return channels.is_const and channels.const >= _MIN_CHANNELS


def _copy(source: Buffer, target: Buffer, sources: tuple[str, ...]) -> Kernel:
    axes = tuple(Axis(f"i{k}", dim) for k, dim in enumerate(source.shape))
    index = tuple(axis.var for axis in axes)
    store = Store(target.name, index, load(source.name, source.dtype, index))
    return Kernel(
        name="Border",
        inputs=(source,),
        outputs=(target,),
        stages=(Stage(axes, (store,)),),
        sources=sources,
    )


def _reading(kernel: Kernel, copies: Mapping[str, Buffer]) -> Kernel:
    """The kernel with loads of some buffers from others of the same shape."""
    if not copies:
        return kernel

    def renamed(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer in copies:
            return load(copies[node.buffer].name, node.dtype, node.children)
        return None

    stages = tuple(
        replace(
            stage,
            stores=tuple(s.mapped(lambda part: transform(part, renamed)) for s in stage.stores),
        )
        for stage in kernel.stages
    )
    return replace(
        kernel, inputs=tuple(copies.get(b.name, b) for b in kernel.inputs), stages=stages
    )


# --- what a guard needs ---------------------------------------------------------------------------


def guarded_loads(stage: Stage) -> list[tuple[Load, Call]]:
    """Loads that a select guards with zero."""
    return [(load, condition) for load, condition, value in filled_loads(stage) if value == 0]


def filled_loads(stage: Stage) -> list[tuple[Load, Call, float]]:
    """Loads that a select guards with a constant: the load, the condition, the constant."""
    found: list[tuple[Load, Call, float]] = []
    for part in walk(*(store.value for store in stage.stores)):
        if not (isinstance(part, Call) and part.op == "select"):
            continue
        then, otherwise = part.args[1], part.args[2]
        while isinstance(then, Cast):
            then = then.arg
        if not (isinstance(otherwise, Const) and isinstance(then, Load)):
            continue
        if isinstance(part.args[0], Call):
            found.append((then, part.args[0], otherwise.value))
    return found


def border_needs(
    load: Load, condition: Call, shape: Sequence[Dim], extents: Mapping[str, Dim]
) -> dict[int, tuple[int, int]]:
    """The border that makes a guard superfluous, by dim."""
    needs: dict[int, tuple[int, int]] = {}
    for part in conjuncts(condition):
        if not isinstance(part, Call) or part.op not in ("ge", "lt"):
            continue
        form = affine(part.args[0])
        for position in range(FIRST, len(shape)):
            if affine(load.index[position]) != form:
                continue
            before, after = needs.get(position, (0, 0))
            if part.op == "ge":
                before = max(before, reach(form, extents))
            else:
                after = max(after, beyond(form, shape[position], extents))
            needs[position] = (before, after)
    return {
        position: ends for position, ends in needs.items() if max(ends) <= MAX_BORDER and any(ends)
    }
