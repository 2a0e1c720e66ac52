"""Broadcasting of symbolic dims: what is known of an operand's size against the result's.

Input -> Output: (operand dim, result dim) -> ``Relation``.  The result's dim is made by
``RuleContext.broadcast``, with a run-time check where the sizes leave doubt.
Guarantees: ``SAME`` and ``ONE`` hold for every run that passes the checks; ``UNKNOWN`` operands are
read at ``select(dim == 1, 0, i)``.
Not here: the arithmetic of dims (core.shape), the check itself (runtime.bindings ``broadcast``).
"""

from __future__ import annotations

from enum import Enum

from tilewright.core.shape import Dim
from tilewright.graph.shapes.algebra import as_atom, never_one


class Relation(Enum):
    """How an operand's dim lies in the broadcast result."""

    SAME = "same"
    ONE = "one"
    UNKNOWN = "unknown"


def relation(operand: Dim, output: Dim) -> Relation:
    """What is known of an operand's dim against the output's dim (of the same axis)."""
    if operand == output or matches(operand, output):
        return Relation.SAME
    if operand == Dim.of(1):
        return Relation.ONE
    if never_one(operand):
        return Relation.SAME  # only an equal size fits, which was checked
    return Relation.UNKNOWN


def matches(operand: Dim, output: Dim) -> bool:
    """Whether two dims that broadcast together must be equal, though they are written differently.

    ``min(c, d)`` with c >= 2 is 1 only where d is; ``max(d, 0)`` is d because d is a size.
    """
    return _clamps(operand, output) or _clamps(output, operand)


def _clamps(clamped: Dim, dim: Dim) -> bool:
    atom = as_atom(clamped)
    if atom is None or atom.left is None or atom.right is None or dim.is_const:
        return False
    pairs = ((atom.left, atom.right), (atom.right, atom.left))
    if atom.op == "min":
        return any(one == dim and other.is_const and other.const >= 2 for one, other in pairs)
    if atom.op == "max":
        return any(one == dim and other == Dim.of(0) for one, other in pairs)
    return False
