"""Indices through a change of shape.

Input -> Output: an index into the view's shape -> the index into the source's shape, or a reason.
    [b, s, h, d] of (B, S, 12, 64)  ->  [b, s, h*64 + d] of (B, S, 768)
Guarantees: only additions and multiplications; where a division would be needed the answer is a
``Refusal``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.core.dtypes import INT64
from tilewright.core.shape import Dim, product
from tilewright.kernel.ir import Expr, constant, dim_value

ONE = Dim.of(1)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something was not done."""

    reason: str


def through_view(
    index: Sequence[Expr], view: Sequence[Dim], source: Sequence[Dim]
) -> tuple[Expr, ...] | Refusal:
    """Translates an index (see the module's docstring)."""
    result: list[Expr] = []
    position = 0
    kept = [k for k, size in enumerate(view) if size != ONE]
    for size in source:
        if size == ONE:
            result.append(constant(0, INT64))
            continue
        covered, part = ONE, None
        while covered != size:
            if position == len(kept):
                return Refusal("the view splits a dim, which needs a division")
            axis = kept[position]
            position += 1
            step = index[axis]
            part = step if part is None else part * dim_value(view[axis]) + step
            covered = covered * view[axis]
            if covered.is_const and size.is_const and covered.const > size.const:
                return Refusal("the view splits a dim, which needs a division")
        if part is None:
            return Refusal("the view has no axis for a dim")
        result.append(part)
    if position != len(kept) or product(view) != product(source):
        return Refusal("the view splits a dim, which needs a division")
    return tuple(result)
