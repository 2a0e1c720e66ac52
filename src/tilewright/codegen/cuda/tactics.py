"""Which of the ways to run a stage is taken, special ones first.

Input -> Output: a stage -> the first tactic that takes it, and why those before it did not.
A tactic is a name and a function: it writes the stage's function and returns its ``Launch`` shape,
or returns the reason why it does not fit. The last one takes everything.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tilewright.codegen.cuda.attention import attention
from tilewright.codegen.cuda.columns import columns
from tilewright.codegen.cuda.contraction import contraction
from tilewright.codegen.cuda.decode import decode
from tilewright.codegen.cuda.gemv import gemv
from tilewright.codegen.cuda.pack import pack
from tilewright.codegen.cuda.plan import Draft, Shape
from tilewright.codegen.cuda.point import point
from tilewright.codegen.cuda.row import row
from tilewright.core.errors import InternalError

TACTICS = (decode, attention, gemv, contraction, pack, columns, row, point)
OPTIONAL = (
    "decode",
    "attention",
    "gemv",
    "tensor_core",
    "tma",
    "deep",
    "pack",
    "columns",
    "row",
    "split_depth",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A written stage: its shape, its lines, and the tactics that were refused."""

    shape: Shape
    lines: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]


def choose(draft: Draft, disabled: Collection[str] = ()) -> Choice:
    """Writes a stage by the first tactic that fits."""
    refused: list[tuple[str, str]] = []
    for tactic in TACTICS:
        writer = draft.writer()
        found = tactic(draft, writer, disabled)
        if isinstance(found, Shape):
            return Choice(shape=found, lines=tuple(writer.lines), refused=tuple(refused))
        refused.append((found.name, found.reason))
    raise InternalError("the last tactic takes every stage")
