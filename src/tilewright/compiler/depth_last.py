"""Lay weights out along the depth of the sums that read them.

    sum over k: x[m, k] * w[k, n]   ->   sum over k: x[m, k] * v[n, k],  v = transposed w
Input -> Output: a fused draft, edited in place; such weights join the constants again, laid out so.
Why: both operands then reach tensor cores in the same way, in chunks along the depth.
Requires: weights of narrow types (only then do contractions copy chunks of neighbours to tensor
cores); others stay.
Guarantees: what is computed does not change; weights that are read elsewhere keep their layout.
Not here: weights of convolutions and what they are applied to (channels_last).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.codegen.cuda.elements import is_narrow
from tilewright.compiler.build_program import DraftProgram, DraftSegment
from tilewright.core.record import DecisionLog
from tilewright.kernel.ir import AxisVar, Buffer, Expr, Kernel, Load, Reduce, load, walk
from tilewright.kernel.ir import transform as rewrite
from tilewright.lower.context import View

Array = npt.NDArray[Any]
_SUFFIX = "$depth_last"


def depth_last_program(
    program: DraftProgram, constants: dict[str, Array], log: DecisionLog
) -> None:
    """Chooses the layout of weights in every segment, those of sub-programs too."""
    for segment in program.segments():
        _segment(segment, constants, log)


def _segment(step: DraftSegment, constants: dict[str, Array], log: DecisionLog) -> None:
    kernels = [item for item in step.items if isinstance(item, Kernel)]
    viewed = {item.source.name for item in step.items if isinstance(item, View)}
    places = {
        name: place
        for name, place in _places(kernels, constants).items()
        if place is not None and name not in viewed and place != constants[name].ndim - 1
    }
    for name, place in places.items():
        moved = np.ascontiguousarray(np.moveaxis(constants[name], place, -1))
        constants[name + _SUFFIX] = moved
    step.items = [_kernel(i, places) if isinstance(i, Kernel) else i for i in step.items]
    if places:
        text = f"{len(places)} weights have the depth of their sums last"
        log.add("layout", f"segment of {len(kernels)} kernels", text)


def _places(kernels: list[Kernel], constants: Mapping[str, Array]) -> dict[str, int | None]:
    """The dim of each weight that its sums run along; None where they differ."""
    found: dict[str, int | None] = {}
    for kernel in kernels:
        inside: set[Load] = set()
        for node in walk(*kernel.roots):
            if isinstance(node, Reduce) and node.combiner == "sum" and kernel.steps is None:
                for part in _weights(node, constants):
                    place = _depth(part, node)
                    inside.add(part)
                    known = found.setdefault(part.buffer, place)
                    found[part.buffer] = place if known == place else None
        for other in walk(*kernel.roots):
            if isinstance(other, Load) and other.buffer in constants and other not in inside:
                found[other.buffer] = None
    return found


def _weights(node: Reduce, constants: Mapping[str, Array]) -> list[Load]:
    return [
        part
        for part in walk(node.body)
        if isinstance(part, Load)
        and part.buffer in constants
        and is_narrow(constants[part.buffer].dtype)
    ]


def _depth(part: Load, node: Reduce) -> int | None:
    """The one dim that the innermost axis of a sum indexes by itself."""
    last = node.axes[-1].name
    uses = [place for place, index in enumerate(part.index) if last in index.free_axes]
    return uses[0] if len(uses) == 1 and isinstance(part.index[uses[0]], AxisVar) else None


def _kernel(kernel: Kernel, places: Mapping[str, int]) -> Kernel:
    """The kernel, of the weights in their new layout."""

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer in places:
            return load(node.buffer + _SUFFIX, node.dtype, _moved(node.index, places[node.buffer]))
        return None

    def buffer(own: Buffer) -> Buffer:
        if own.name not in places:
            return own
        return Buffer(own.name + _SUFFIX, own.dtype, _moved(own.shape, places[own.name]))

    if not any(own.name in places for own in kernel.inputs):
        return kernel
    stages = tuple(
        replace(s, stores=tuple(x.mapped(lambda root: rewrite(root, rule)) for x in s.stores))
        for s in kernel.stages
    )
    return replace(kernel, inputs=tuple(map(buffer, kernel.inputs)), stages=stages)


def _moved(parts: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return (*parts[:place], *parts[place + 1 :], parts[place])
