"""The two axes of an image as one, where its lines are too short for a tile of registers.

Input -> Output: a kernel and a target -> the kernel, with some pairs of axes joined
    for h, w: out[h, w] = sum ..   ->   for p: out[p / W, p - p / W * W] = sum ..
Why: 16 registers hold 6 rows of 2 vectors, but a line of 7 pixels is cut into 4 and 3; so few sums
wait for each other.  Accesses without borders stay linear in p; others divide once a row.
Guarantees: stages that do not gain are the same objects; values are unchanged.
Not here: the tile (tactics), axes that are linear together everywhere (kernel.nest).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import prod

from tilewright.codegen.cpu.tactics import choose
from tilewright.codegen.cpu.target import CpuTarget
from tilewright.codegen.cpu.traits import is_product, num_points
from tilewright.core.dtypes import INT64
from tilewright.kernel.ir import (
    Axis,
    AxisVar,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    constant,
    transform,
    walk,
)
from tilewright.kernel.nest import evaluated, prepare

_ENOUGH = 12  # sums of products under way; fewer wait for each other
_LONG = 64  # points of a sum that are worth an address for each row


def join_lines(kernel: Kernel, target: CpuTarget) -> Kernel:
    """Joins the axes of every stage that computes more sums at once then."""
    stages = tuple(
        _better(kernel, stage, target) if any(map(_is_long, walk(*stage.roots))) else stage
        for stage in kernel.stages
    )
    changed = any(new is not old for new, old in zip(stages, kernel.stages, strict=True))
    return replace(kernel, stages=stages) if changed else kernel


def _is_long(node: Expr) -> bool:
    """True for sums of many products; those of a depthwise convolution are too short."""
    return isinstance(node, Reduce) and is_product(node) and num_points(node.axes) >= _LONG


def _better(kernel: Kernel, stage: Stage, target: CpuTarget) -> Stage:
    pair = _short_lines(kernel, stage, target)
    if pair is None or not _is_only_index(stage, {axis.name for axis in pair}):
        return stage
    joined = _joined(stage, *pair)
    return joined if _sums(kernel, joined, target) > _sums(kernel, stage, target) else stage


def _short_lines(kernel: Kernel, stage: Stage, target: CpuTarget) -> tuple[Axis, Axis] | None:
    """The axes of lines and of pixels in them, where a tile has too few pixels."""
    nest = prepare(kernel, stage)
    schedule, _ = choose(nest, target)
    if schedule.tactic != "contraction" or prod(schedule.unroll.values()) >= _ENOUGH:
        return None
    whole = {axis.name for axis in stage.axes if nest.merged.get(axis.name, axis.name) == axis.name}
    whole -= {new for old, new in nest.merged.items() if old != new}
    for h, w in zip(stage.axes, stage.axes[1:], strict=False):
        named = {h.name, w.name} <= whole and w.name != schedule.vector
        known = all(axis.extent.is_const and axis.extent.const > 1 for axis in (h, w))
        if named and known and schedule.copies(w.name) > 1 and not (h.ordered or w.ordered):
            return h, w
    return None


def _sums(kernel: Kernel, stage: Stage, target: CpuTarget) -> int:
    schedule, _ = choose(prepare(kernel, stage), target)
    return prod(schedule.unroll.values()) if schedule.tactic == "contraction" else 0


def _is_only_index(stage: Stage, names: Collection[str]) -> bool:
    """True where axes are used in addresses alone: nothing else is worth a division."""
    outside = [root for store in stage.stores for root in evaluated(store)]
    seen: set[int] = set()
    while outside:
        node = outside.pop()
        if isinstance(node, AxisVar) and node.name in names:
            return False
        if id(node) not in seen and not isinstance(node, Load):
            seen.add(id(node))
            outside.extend(node.children)
    return not any(
        isinstance(node, Load) and any(isinstance(inner, Load) for inner in walk(*node.index))
        for node in walk(*stage.roots)
    )


def _joined(stage: Stage, h: Axis, w: Axis) -> Stage:
    both = Axis(f"{h.name}.{w.name}", h.extent * w.extent)
    width = constant(w.extent.const, INT64)
    line = both.var / width
    places = {h.name: line, w.name: both.var - line * width}

    def rule(node: Expr) -> Expr | None:
        return places.get(node.name) if isinstance(node, AxisVar) else None

    axes = [both if axis is w else axis for axis in stage.axes if axis is not h]
    stores = tuple(store.mapped(lambda root: transform(root, rule)) for store in stage.stores)
    return replace(stage, axes=tuple(axes), stores=stores)
