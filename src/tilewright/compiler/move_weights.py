"""Lay weights out anew: one dim of each comes to lie last.

Input -> Output: a segment, edited in place, and which dim of which weight; such weights join the
constants again under another name.
Guarantees: what is computed does not change; what a view reads keeps its layout.
Not here: which dim should be last (depth_last, lanes_last).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compiler.build_program import DraftSegment
from tilewright.kernel.ir import Buffer, Expr, Kernel, Load, load
from tilewright.kernel.ir import transform as rewrite
from tilewright.lower.context import View

Array = npt.NDArray[Any]


def move_last(
    step: DraftSegment,
    places: Mapping[str, int | None],
    constants: dict[str, Array],
    suffix: str,
) -> int:
    """Moves a dim of each weight to the end of its shape; how many were moved.

    Args:
        places: the dim of each; None where readers differ.
        suffix: what a moved weight's name ends with.
    """
    viewed = {item.source.name for item in step.items if isinstance(item, View)}
    wanted = {
        name: place
        for name, place in places.items()
        if place is not None and name not in viewed and place != constants[name].ndim - 1
    }
    for name, place in wanted.items():
        constants[name + suffix] = np.ascontiguousarray(np.moveaxis(constants[name], place, -1))
    step.items = [
        _kernel(item, wanted, suffix) if isinstance(item, Kernel) else item for item in step.items
    ]
    return len(wanted)


def _kernel(kernel: Kernel, places: Mapping[str, int], suffix: str) -> Kernel:
    """The kernel, of the weights in their new layout."""

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer in places:
            return load(node.buffer + suffix, node.dtype, _moved(node.index, places[node.buffer]))
        return None

    def buffer(own: Buffer) -> Buffer:
        if own.name not in places:
            return own
        return Buffer(own.name + suffix, own.dtype, _moved(own.shape, places[own.name]))

    if not any(own.name in places for own in kernel.inputs):
        return kernel
    stages = tuple(
        replace(s, stores=tuple(x.mapped(lambda root: rewrite(root, rule)) for x in s.stores))
        for s in kernel.stages
    )
    return replace(kernel, inputs=tuple(map(buffer, kernel.inputs)), stages=stages)


def _moved(parts: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return (*parts[:place], *parts[place + 1 :], parts[place])
