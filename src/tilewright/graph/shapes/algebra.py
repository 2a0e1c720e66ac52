"""What can be proven of symbolic dims without knowing any size: signs, order, exact quotients.

Input -> Output: dims -> True only where it holds for all sizes (symbols are never negative).
Guarantees: "not proven" is False or None, never a guess.
Not here: the arithmetic itself (core.shape); what operators do with it (the rule files).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.core.shape import Atom, Dim, Monomial, product

HUGE = 2**31 - 1  # exporters write "to the end" as INT32_MAX or INT64_MAX


@dataclass(slots=True)
class Facts:
    """What is known beyond the syntax of a dim.

    Attributes:
        minimum: the smallest size that the caller promises for a symbol (0 where absent).
        sizes: dims of tensors; being sizes, they are not negative whatever they look like.
    """

    minimum: Mapping[str, int] = field(default_factory=dict)
    sizes: set[Dim] = field(default_factory=set)
    _order: list[Dim] = field(default_factory=list)
    _offsets: dict[Dim, set[int]] = field(default_factory=dict)

    def learn(self, shape: Iterable[Dim]) -> None:
        """Notes that these dims are sizes of a tensor."""
        for dim in shape:
            if not dim.is_const and dim not in self.sizes:
                self.sizes.add(dim)
                self._order.append(dim)
                base, offset = _split_constant(dim)
                self._offsets.setdefault(base, set()).add(offset)

    def mark(self) -> int:
        """How much is known now; what a branch teaches is given up by ``forget``."""
        return len(self._order)

    def forget(self, mark: int) -> None:
        """Goes back to what was known at a mark."""
        for dim in self._order[mark:]:
            self.sizes.discard(dim)
            base, offset = _split_constant(dim)
            self._offsets[base].discard(offset)
        del self._order[mark:]

    def lower_bound(self, dim: Dim) -> int | None:
        """A number that the dim is never below, None where none is known."""
        bound = self._polynomial(dim)
        base, offset = _split_constant(dim)
        known = self._offsets.get(base)
        if not known or dim.is_const:
            return bound
        # base + c >= 0 for the size base + c; the smallest c says most.
        learnt = offset - min(known)
        return learnt if bound is None else max(bound, learnt)

    def non_negative(self, dim: Dim) -> bool:
        """Whether the dim is proven to be >= 0."""
        bound = self.lower_bound(dim)
        return bound is not None and bound >= 0

    def at_most(self, left: Dim, right: Dim) -> bool:
        """Whether ``left <= right`` is proven."""
        if left == right:
            return True
        if any(self.non_negative(right - part) for part in _parts(left, "min")):
            return True
        return any(self.non_negative(part - left) for part in _parts(right, "max"))

    def different(self, left: Dim, right: Dim) -> bool:
        """Whether ``left != right`` is proven."""
        gap = left - right
        if gap.is_const:
            return gap.const != 0
        return self.non_negative(gap - 1) or self.non_negative(-gap - 1)

    def smaller(self, left: Dim, right: Dim) -> Dim:
        """The minimum, resolved where the order is proven."""
        if self.at_most(left, right):
            return left
        return right if self.at_most(right, left) else left.min(right)

    def larger(self, left: Dim, right: Dim) -> Dim:
        """The maximum, resolved where the order is proven."""
        if self.at_most(left, right):
            return right
        return left if self.at_most(right, left) else left.max(right)

    # --- bounds ---------------------------------------------------------------------------------

    def _polynomial(self, dim: Dim) -> int | None:
        total = 0
        for monomial, factor in dim.terms:
            if not monomial:
                total += factor
                continue
            if factor < 0:
                top = self._atom_above(monomial[0]) if len(monomial) == 1 else None
                if top is None:
                    return None
                total += factor * top
                continue
            low = 1
            for atom in monomial:
                bound = self._atom(atom)
                # A single atom may have a negative bound; a product of such has none.
                if bound is None or (bound < 0 and len(monomial) > 1):
                    return None
                low *= bound
            total += factor * low
        return total

    def _atom(self, atom: Atom) -> int | None:
        if not atom.op:
            return self.minimum.get(atom.name, 0)
        if atom.left is None or atom.right is None:
            return None
        left, right = self.lower_bound(atom.left), self.lower_bound(atom.right)
        if atom.op == "max":
            known = [bound for bound in (left, right) if bound is not None]
            return max(known) if known else None
        if atom.op == "min":
            return None if left is None or right is None else min(left, right)
        if atom.op == "mod":
            return 0 if right is not None and right >= 0 else None
        if left is None or right is None or right < 0:
            return None
        if left >= 0:
            return left // atom.right.const if atom.right.is_const and right > 0 else 0
        return left // right if right > 0 else left

    def _atom_above(self, atom: Atom) -> int | None:
        """A number that an atom never exceeds, None where none is known."""
        if atom.left is None or atom.right is None:
            return None
        tops: list[int] = []
        for part in (atom.left, atom.right):
            bound = self.lower_bound(-part)
            if bound is not None:
                tops.append(-bound)
            elif atom.op == "max" or (atom.op == "floordiv" and part is atom.left):
                return None
        if atom.op in ("max", "min"):
            pick = max if atom.op == "max" else min
            return pick(tops) if tops else None
        if not atom.right.is_const or atom.right.const <= 0:
            return None
        divisor = atom.right.const
        return tops[0] // divisor if atom.op == "floordiv" else divisor - 1


def _split_constant(dim: Dim) -> tuple[Dim, int]:
    """The dim without its constant, and the constant."""
    constant = sum(factor for monomial, factor in dim.terms if not monomial)
    return dim - constant, constant


def _parts(dim: Dim, op: str) -> list[Dim]:
    """The dim and, where it is ``min(a, b)`` (or max), also a and b."""
    parts = [dim]
    atom = as_atom(dim)
    if atom is not None and atom.op == op:
        parts.extend(part for part in (atom.left, atom.right) if part is not None)
    return parts


def as_atom(dim: Dim) -> Atom | None:
    """The single atom that the dim consists of, None where it is anything else."""
    if len(dim.terms) == 1 and dim.terms[0][1] == 1 and len(dim.terms[0][0]) == 1:
        return dim.terms[0][0][0]
    return None


def never_one(dim: Dim) -> bool:
    """Whether a dim is proven not to be 1: a constant, or by remainder (``2*h``, ``4*h + 3``)."""
    if dim.is_const:
        return dim.const != 1
    common = math.gcd(*(factor for monomial, factor in dim.terms if monomial))
    rest = sum(factor for monomial, factor in dim.terms if not monomial)
    return common > 1 and rest % common != 1


def exact_quotient(dividend: Dim, divisor: Dim) -> Dim | None:
    """The quotient of two polynomials where the division leaves nothing, else None.

    Long division in the graded lexicographic order in which ``Dim`` keeps its terms.
    """
    if not divisor.terms:
        return None
    lead, factor = divisor.terms[0]
    rest, quotient = dividend, Dim.of(0)
    for _ in range(64):
        if not rest.terms:
            return quotient
        own, own_factor = rest.terms[0]
        left = _without(own, lead)
        if left is None or own_factor % factor:
            return None
        term = Dim(((left, own_factor // factor),))
        quotient, rest = quotient + term, rest - term * divisor
    return None


def _without(monomial: Monomial, atoms: Monomial) -> Monomial | None:
    rest = list(monomial)
    for atom in atoms:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def divide_sizes(whole: Sequence[Dim], parts: Sequence[Dim]) -> tuple[Dim, bool]:
    """``product(whole) // product(parts)`` with common factors cancelled first.

    Returns:
        The quotient, and whether it is proven exact.
    """
    rest, divisors = list(whole), []
    for dim in parts:
        if dim in rest:
            rest.remove(dim)
        else:
            divisors.append(dim)
    dividend, divisor = product(rest), product(divisors)
    exact = exact_quotient(dividend, divisor)
    return (dividend // divisor, False) if exact is None else (exact, True)


def same_count(left: Sequence[Dim], right: Sequence[Dim]) -> bool:
    """Whether two shapes are proven to have the same number of elements."""
    rest, other = list(left), []
    for dim in right:
        if dim in rest:
            rest.remove(dim)
        else:
            other.append(dim)
    return product(rest) == product(other)
