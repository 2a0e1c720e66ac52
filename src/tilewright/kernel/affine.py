"""Index expressions as sums of axis * coefficient.

Input -> Output: an int64 expression, or an access and its buffer's shape -> ``Affine``.
Guarantees: ``sum(coefficient * axis) + offset + sum(factor * expr for rest)`` equals the
expression; ``rest`` holds what is not affine (data-dependent parts, division, modulo).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from tilewright.core.shape import Dim
from tilewright.kernel.ir import AxisVar, Call, Const, DimValue, Expr

ZERO = Dim.of(0)
ONE = Dim.of(1)


@dataclass(frozen=True, slots=True)
class Affine:
    """``terms``: axis name -> coefficient; ``rest``: other parts with their factors."""

    terms: Mapping[str, Dim] = field(default_factory=dict)
    offset: Dim = ZERO
    rest: tuple[tuple[Expr, Dim], ...] = ()

    def __add__(self, other: Affine) -> Affine:
        terms = dict(self.terms)
        for axis, factor in other.terms.items():
            terms[axis] = terms.get(axis, ZERO) + factor
        kept = {axis: factor for axis, factor in terms.items() if factor.terms}
        return Affine(kept, self.offset + other.offset, _together(self.rest, other.rest))

    def scaled(self, factor: Dim) -> Affine:
        """The form times a size that does not depend on any axis."""
        if not factor.terms:
            return Affine()
        return Affine(
            {axis: own * factor for axis, own in self.terms.items()},
            self.offset * factor,
            tuple((expr, own * factor) for expr, own in self.rest),
        )

    @property
    def is_constant(self) -> bool:
        return not self.terms and not self.rest

    def stride(self, axis: str) -> Dim | None:
        """The coefficient of an axis, or None where the form is not affine in it."""
        if any(axis in expr.free_axes for expr, _ in self.rest):
            return None
        return self.terms.get(axis, ZERO)


def _together(
    left: tuple[tuple[Expr, Dim], ...], right: tuple[tuple[Expr, Dim], ...]
) -> tuple[tuple[Expr, Dim], ...]:
    """Parts with their factors, each part once; those that cancel out are gone."""
    if not (left and right):
        return left or right
    total: dict[int, tuple[Expr, Dim]] = {}
    for part, factor in left + right:
        before = total.get(id(part))
        total[id(part)] = part, factor if before is None else before[1] + factor
    return tuple(found for found in total.values() if found[1].terms)


@lru_cache(maxsize=1 << 16)
def affine(expr: Expr) -> Affine:
    """The affine form of an int64 expression (expressions are interned, so forms are kept)."""
    match expr:
        case Const():
            return Affine(offset=Dim.of(int(expr.value)))
        case DimValue():
            return Affine(offset=expr.dim)
        case AxisVar():
            return Affine({expr.name: ONE})
        case Call():
            found = _affine_call(expr)
            if found is not None:
                return found
    return Affine(rest=((expr, ONE),))


def _affine_call(expr: Call) -> Affine | None:
    if expr.op == "add":
        return affine(expr.args[0]) + affine(expr.args[1])
    if expr.op == "sub":
        return affine(expr.args[0]) + affine(expr.args[1]).scaled(Dim.of(-1))
    if expr.op == "neg":
        return affine(expr.args[0]).scaled(Dim.of(-1))
    if expr.op == "mul":
        left, right = affine(expr.args[0]), affine(expr.args[1])
        if right.is_constant:
            return left.scaled(right.offset)
        if left.is_constant:
            return right.scaled(left.offset)
    if expr.op == "select":
        size = _is_one_test(expr.args[0])
        if size is not None and isinstance(expr.args[1], Const) and expr.args[1].value == 0:
            # A dim that may be 1 at run time: its stride is 0 or as written. One of 0 has no index.
            return affine(expr.args[2]).scaled((size - 1).min(1))
    return None


def _is_one_test(condition: Expr) -> Dim | None:
    if isinstance(condition, Call) and condition.op == "eq":
        for size, one in (condition.args, condition.args[::-1]):
            if isinstance(size, DimValue) and isinstance(one, Const) and one.value == 1:
                return size.dim
    return None


def row_major(shape: Sequence[Dim]) -> list[Dim]:
    """Strides in elements of a dense array."""
    strides = [ONE]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return strides[::-1][: len(shape)] if shape else []


def access(index: Iterable[Expr], shape: Sequence[Dim]) -> Affine:
    """The linear element index of an access to a dense array."""
    total = Affine()
    for part, stride in zip(index, row_major(shape), strict=True):
        total = total + affine(part).scaled(stride)
    return total
