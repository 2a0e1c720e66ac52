"""What a model declares of its values against what its nodes give.

    another type, or a sequence for a tensor  ->  ``InvalidModel``
    another rank, or another number in a dim  ->  a decision: what the nodes give holds
    a number for a size that inputs decide    ->  a decision: no run is held to it
Guarantees: names of dims are only names: ``[n]`` does not contradict ``[batch]`` or ``[4]``.
Not here: declarations of graph inputs, which every run is held to (runtime.feeds).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.core.errors import InvalidModel
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim, shape_text
from tilewright.graph.info import TensorInfo
from tilewright.graph.view import ValueView


def check_type(declared: ValueView, found: TensorInfo) -> None:
    """Refuses a value that is declared as something else than it is.

    Raises:
        InvalidModel: the element types differ, or only one of them is a sequence.
    """
    given = found.dtype, found.container
    stated = declared.dtype or found.dtype, declared.container
    if given[0] is stated[0] and (given[1] == stated[1] or "optional" in (given[1], stated[1])):
        return
    raise InvalidModel(
        f"{declared.name!r} is declared as {_kind(*stated)}, and the nodes give {_kind(*given)}",
        remedy="mend the declaration, or cast the value to the declared type",
    )


def _kind(dtype: object, container: str) -> str:
    return f"{container} of {dtype}"


def note_shapes(
    outputs: Sequence[ValueView], found: Mapping[str, TensorInfo], log: DecisionLog
) -> None:
    """Notes the declared shapes of graph outputs that do not hold, or that no run is held to."""
    for declared in outputs:
        info = found.get(declared.name)
        if info is None or info.shape is None or declared.shape is None:
            continue
        reason = _difference(declared.shape, info.shape)
        if reason is not None:
            rejected = ((f"the declared shape {shape_text(declared.shape)}", reason),)
            log.add("shapes", declared.name, f"shape {shape_text(info.shape)}", rejected)


def _difference(declared: Sequence[Dim], found: Sequence[Dim]) -> str | None:
    if len(declared) != len(found):
        return f"the nodes give rank {len(found)}, not {len(declared)}"
    open_axes: list[str] = []
    for axis, (stated, given) in enumerate(zip(declared, found, strict=True)):
        if not stated.is_const or stated == given:
            continue
        if given.is_const:
            return f"the nodes give axis {axis} the size {given}, not {stated}"
        open_axes.append(f"axis {axis} is {given}")
    return f"inputs decide: {', '.join(open_axes)}" if open_axes else None
