"""Kernels that join values along an axis, one stage for each of the joined parts.

Input -> Output: a ``Kernel`` -> the same kernel with stages that do not choose.
    out[i] = select(i < 24, x[i], y[i - 24])  for i < 48
    ->  out[i] = x[i]  for i < 24;  out[i + 24] = y[i]  for i < 24
Requires: the axis has a known extent.
Guarantees: each element is stored by exactly one stage; other kernels are returned as they are.
Why: a choice between loads costs masks, or a branch at every vector.
Not here: choices by remainders (kernel.phases), layouts (lower.layout).
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.core.shape import Dim, product
from tilewright.kernel.affine import affine
from tilewright.kernel.ir import (
    Axis,
    Call,
    Const,
    Expr,
    Kernel,
    Load,
    Stage,
    rebuild,
    substitute,
    walk,
)

_MAX_STAGES = 16
_FEW_POINTS = 4096
ONE = Dim.of(1)


def split_pieces(kernel: Kernel) -> Kernel:
    """Splits every axis along which a value is chosen (see the module's docstring)."""
    if kernel.steps is not None:
        return kernel
    stages: list[Stage] = []
    waiting = list(reversed(kernel.stages))
    while waiting:
        stage = waiting.pop()
        cut = _cut(stage) if len(stages) + len(waiting) < _MAX_STAGES else None
        if cut is None:
            stages.append(stage)
            continue
        axis, position = cut
        waiting.append(_part(stage, axis, position, axis.extent.const))
        waiting.append(_part(stage, axis, 0, position))
    if len(stages) == len(kernel.stages):
        return kernel
    return replace(kernel, stages=tuple(stages))


def _cut(stage: Stage) -> tuple[Axis, int] | None:
    """The axis of the first choice between loads, and where it changes."""
    points = product(axis.extent for axis in stage.axes)
    if points.is_const and points.const < _FEW_POINTS:
        return None  # another stage would take longer than the choices
    axes = {axis.name: axis for axis in stage.axes if axis.extent.is_const and not axis.ordered}
    for node in walk(*(store.value for store in stage.stores)):
        if not isinstance(node, Call) or node.op != "select":
            continue
        if not all(_loads(branch) for branch in node.args[1:]):
            continue
        found = _bound(node.args[0])
        if found is not None and found[0] in axes:
            axis, position = axes[found[0]], found[1]
            if 0 < position < axis.extent.const:
                return axis, position
    return None


def _loads(expr: Expr) -> bool:
    return any(isinstance(node, Load) for node in walk(expr))


def _bound(condition: Expr) -> tuple[str, int] | None:
    """Axis and number of ``axis < number``."""
    if not isinstance(condition, Call) or condition.op != "lt":
        return None
    form, limit = affine(condition.args[0]), condition.args[1]
    if (
        form.rest
        or len(form.terms) != 1
        or not form.offset.is_const
        or not isinstance(limit, Const)
    ):
        return None
    ((axis, factor),) = form.terms.items()
    return (axis, int(limit.value) - form.offset.const) if factor == ONE else None


def _part(stage: Stage, axis: Axis, begin: int, end: int) -> Stage:
    """The stage for ``begin <= axis < end``."""
    shorter = replace(axis, extent=Dim.of(end - begin))
    axes = tuple(shorter if one is axis else one for one in stage.axes)
    moved = {axis.name: shorter.var + begin} if begin else {}

    def part(root: Expr) -> Expr:
        return _decided(substitute(root, moved) if moved else root, shorter)

    return Stage(axes, tuple(store.mapped(part) for store in stage.stores))


def _decided(root: Expr, axis: Axis) -> Expr:
    """Choices by an axis that always go one way are what they choose."""
    done: dict[int, Expr] = {}
    for node in walk(root):
        fresh = rebuild(node, [done[id(child)] for child in node.children])
        if isinstance(fresh, Call) and fresh.op == "select":
            found = _bound(fresh.args[0])
            if found is not None and found[0] == axis.name:
                if found[1] >= axis.extent.const:
                    fresh = fresh.args[1]
                elif found[1] <= 0:
                    fresh = fresh.args[2]
        done[id(node)] = fresh
    return done[id(root)]
