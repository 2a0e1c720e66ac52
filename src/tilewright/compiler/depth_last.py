"""Lay weights out along the depth of the sums that read them.

    sum over k: x[m, k] * w[k, n]   ->   sum over k: x[m, k] * v[n, k],  v = transposed w
Input -> Output: a fused draft, edited in place; such weights join the constants again, laid out so.
Why: both operands then reach tensor cores in the same way, in chunks along the depth.
Requires: weights of narrow types (only then do contractions copy chunks of neighbours to tensor
cores); others stay.
Guarantees: what is computed does not change; weights that are read elsewhere keep their layout.
Not here: weights of convolutions and what they are applied to (channels_last), of sums that no
tensor core takes (lanes_last).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from tilewright.codegen.cuda.elements import is_narrow
from tilewright.compiler.build_program import DraftProgram, DraftSegment
from tilewright.compiler.move_weights import move_last
from tilewright.core.record import DecisionLog
from tilewright.kernel.ir import AxisVar, Kernel, Load, Reduce, walk

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
    count = move_last(step, _places(kernels, constants), constants, _SUFFIX)
    if count:
        text = f"{count} weights have the depth of their sums last"
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
