"""Lay weights out along the outputs that neighbouring threads compute.

    y[.., c] = sum over k: x[.., k, c] * w[c, k]   ->   .. * v[k, c],  v = transposed w
Input -> Output: a draft, edited in place; such weights join the constants again, laid out so.
Why: neighbouring threads, or the packs of one, read what lies side by side; before, each read of a
weight took as many transactions as there are threads.
Requires: sums that no tensor core takes: of depthwise convolutions, say.
Guarantees: what is computed does not change; weights that are read elsewhere in another way keep
their layout.
Not here: weights of products (depth_last).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from tilewright.codegen.cuda.operands import draft_of
from tilewright.codegen.cuda.tactics import choose
from tilewright.compiler.build_program import DraftProgram, DraftSegment
from tilewright.compiler.move_weights import move_last
from tilewright.core.plural import plural
from tilewright.core.record import DecisionLog
from tilewright.kernel.ir import AxisVar, Kernel, Load, Reduce, walk

Array = npt.NDArray[Any]
_SUFFIX = "$lanes_last"
_BY_POINTS = ("pack", "point")


def lanes_last_program(
    program: DraftProgram,
    constants: dict[str, Array],
    log: DecisionLog,
    disabled: Collection[str] = (),
    clusters: bool = False,
) -> None:
    """Chooses the layout of weights in every segment, those of sub-programs too.

    Args:
        disabled: tactics that are not to be used.
        clusters: as for ``Draft``.
    """

    def by_points(kernel: Kernel) -> bool:
        """Whether each thread computes sums of its own."""
        draft = replace(draft_of(kernel), clusters=clusters)
        return choose(draft, disabled).shape.tactic in _BY_POINTS

    for segment in program.segments():
        _segment(segment, constants, log, by_points)


def _segment(
    step: DraftSegment,
    constants: dict[str, Array],
    log: DecisionLog,
    by_points: Callable[[Kernel], bool],
) -> None:
    kernels = [item for item in step.items if isinstance(item, Kernel)]
    count = move_last(step, _places(kernels, constants, by_points), constants, _SUFFIX)
    if count:
        text = f"{plural(count, 'weight')} laid out along neighbouring outputs"
        log.add("layout", f"segment of {plural(len(kernels), 'kernel')}", text)


def _places(
    kernels: list[Kernel], constants: Mapping[str, Array], by_points: Callable[[Kernel], bool]
) -> dict[str, int | None]:
    """The dim of each weight that neighbouring outputs move along; None where readers differ."""
    found: dict[str, int | None] = {}
    for kernel in kernels:
        moving: dict[Load, int] = {}
        if _has_weighed_sums(kernel, constants) and by_points(kernel):
            moving = _moving(kernel, constants)
        for node in walk(*kernel.roots):
            if isinstance(node, Load) and node.buffer in constants:
                place = moving.get(node)
                known = found.setdefault(node.buffer, place)
                found[node.buffer] = place if known == place else None
    return found


def _has_weighed_sums(kernel: Kernel, constants: Mapping[str, Array]) -> bool:
    """Whether it is one stage with a sum of constants of several dims."""
    if len(kernel.stages) != 1 or kernel.steps is not None or not kernel.stages[0].axes:
        return False
    return any(
        isinstance(part, Load) and part.buffer in constants and constants[part.buffer].ndim > 1
        for node in walk(*kernel.roots)
        if isinstance(node, Reduce)
        for part in walk(node.body)
    )


def _moving(kernel: Kernel, constants: Mapping[str, Array]) -> dict[Load, int]:
    """The dim of weights within sums that the last axis indexes by itself."""
    last = kernel.stages[0].axes[-1].name
    found = {}
    for node in walk(*kernel.roots):
        for part in walk(node.body) if isinstance(node, Reduce) else ():
            if isinstance(part, Load) and part.buffer in constants:
                uses = [k for k, index in enumerate(part.index) if last in index.free_axes]
                if len(uses) == 1 and isinstance(part.index[uses[0]], AxisVar):
                    found[part] = uses[0]
    return found
