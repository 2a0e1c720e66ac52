"""How far an affine index may go, given the extents of its axes.

Input -> Output: an ``Affine`` and extents -> elements below 0, or past a size; ``FAR`` where that
is not proven.
Guarantees: never too small, also for symbolic extents.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.core.shape import Dim, Monomial
from tilewright.kernel.affine import Affine

FAR = 1 << 30


def reach(form: Affine, extents: Mapping[str, Dim]) -> int:
    """How far below 0 an index may go; ``FAR`` where it is not known."""
    lowest = form.offset
    for axis, factor in form.terms.items():
        if not factor.is_const:
            return FAR
        if factor.const < 0:
            extent = extents.get(axis)
            if extent is None:
                return FAR
            lowest = lowest + factor * (extent - 1)
    if form.rest or not lowest.is_const:
        return FAR
    return max(0, -lowest.const)


def beyond(form: Affine, size: Dim, extents: Mapping[str, Dim]) -> int:
    """How many elements past ``size - 1`` an index may go; ``FAR`` where it is not known."""
    highest = form.offset
    for axis, factor in form.terms.items():
        extent = extents.get(axis)
        if extent is None or not factor.is_const:
            return FAR
        if factor.const > 0:
            highest = highest + factor * (extent - 1)
    if form.rest:
        return FAR
    excess = highest - size + 1
    if not excess.is_const:
        excess = upper_bound(highest) - size + 1
    return max(0, excess.const) if excess.is_const else FAR


def upper_bound(dim: Dim) -> Dim:
    """A dim with ``k * floor(x/k)`` replaced by ``x``, which is not smaller."""
    total = Dim.of(0)
    for monomial, factor in dim.terms:
        total = total + (_unfloored(monomial, factor) or Dim(((monomial, factor),)))
    return total


def _unfloored(monomial: Monomial, factor: int) -> Dim | None:
    """``factor * floor(x/k)`` without the floor, where that is an integer form."""
    if len(monomial) != 1 or monomial[0].op != "floordiv" or factor <= 0:
        return None
    left, right = monomial[0].left, monomial[0].right
    if left is None or right is None or not right.is_const or right.const <= 0:
        return None
    return left * (factor // right.const) if factor % right.const == 0 else None
