"""Symbolic dimensions: integer polynomials over named sizes with floor division, modulo, min and
max.

Input -> Output: names and integers -> canonical expressions; equal text means equal value.
Guarantees: ``parse(str(dim)) == dim``; evaluation is exact; a division by zero evaluates to 0, but
``n*d // d`` is ``n`` and ``d // d`` is 1 for every d.
Bounds: a dim of more than 16 KiB of text, 100 levels or 256-bit factors is refused, so that
hostile models and files cost no time.
Not here: shape rules (graph.shapes), reading text (core.parse_dim), ranges (runtime.feeds).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, reduce

from tilewright.core.errors import InternalError, InvalidModel

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z_0-9]*\Z")
MAX_TEXT = 16_384
_MAX_TERMS = 4_096
_MAX_DEPTH = 100
_MAX_BITS = 256
_MAX_DEGREE = 64


@dataclass(frozen=True, slots=True, eq=False)
class Atom:
    """A name (``op`` is empty) or an opaque function of two dims; equal text means equal."""

    op: str
    name: str
    left: Dim | None = None
    right: Dim | None = None
    text: str = field(init=False, repr=False)
    depth: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        depth = 1 + max(part.depth if part is not None else 0 for part in (self.left, self.right))
        if depth > _MAX_DEPTH:
            raise _too_large(f"{depth} levels")
        object.__setattr__(self, "depth", depth)
        object.__setattr__(self, "text", self._render())

    def _render(self) -> str:
        if not self.op:
            plain = _IDENTIFIER.match(self.name)
            return self.name if plain else "`" + self.name.replace("`", "``") + "`"
        if self.op == "floordiv":
            return f"floor({_grouped(self.left)}/{_grouped(self.right)})"
        return f"{self.op}({self.left}, {self.right})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Atom) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text


Monomial = tuple[Atom, ...]


def _grouped(dim: Dim | None) -> str:
    text = str(dim)
    return f"({text})" if dim is not None and (len(dim.terms) > 1 or "*" in text) else text


def _too_large(what: str) -> InvalidModel:
    return InvalidModel(
        f"the expression of a symbolic size has {what}",
        remedy="declare fixed sizes for the dims that the model computes with",
    )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Dim:
    """A canonical sum of integer multiples of products of atoms."""

    terms: tuple[tuple[Monomial, int], ...]
    text: str = field(init=False)
    depth: int = field(init=False)

    def __post_init__(self) -> None:
        text = _sum_text(self.terms)
        if len(text) > MAX_TEXT:
            raise _too_large(f"{len(text)} characters")
        depth = 0
        for monomial, _ in self.terms:
            if len(monomial) > _MAX_DEGREE:
                raise _too_large(f"products of {len(monomial)} factors")
            for atom in monomial:
                depth = max(depth, atom.depth)
        object.__setattr__(self, "depth", depth)
        object.__setattr__(self, "text", text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Dim({self.text})"

    # --- construction ---------------------------------------------------------------------------

    @staticmethod
    def of(value: Dim | int) -> Dim:
        """Returns an integer as a dim; a dim as it is."""
        if isinstance(value, Dim):
            return value
        return _constant(operator.index(value))

    @staticmethod
    def symbol(name: str) -> Dim:
        """Returns the dim that is just a name."""
        return Dim((((Atom("", name),), 1),))

    # --- questions ------------------------------------------------------------------------------

    @property
    def is_const(self) -> bool:
        return not self.terms or (len(self.terms) == 1 and not self.terms[0][0])

    @property
    def const(self) -> int:
        """The value of a constant dim.

        Raises:
            InternalError: the dim is symbolic.
        """
        if not self.is_const:
            raise InternalError(f"dim {self} is symbolic")
        return self.terms[0][1] if self.terms else 0

    @property
    def symbols(self) -> frozenset[str]:
        """Names in the expression, also inside functions."""
        return _symbols(self)

    def as_symbol(self) -> str | None:
        """The name if the dim is exactly one name, else None."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            atom = self.terms[0][0][0]
            return None if atom.op else atom.name
        return None

    # --- arithmetic -----------------------------------------------------------------------------

    def __add__(self, other: Dim | int) -> Dim:
        right = Dim.of(other)
        if not right.terms:
            return self
        return _collect([*self.terms, *right.terms]) if self.terms else right

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return Dim(tuple((monomial, -factor) for monomial, factor in self.terms))

    def __sub__(self, other: Dim | int) -> Dim:
        return self + -Dim.of(other)

    def __rsub__(self, other: Dim | int) -> Dim:
        return Dim.of(other) - self

    def __mul__(self, other: Dim | int) -> Dim:
        right = Dim.of(other)
        if right.text == "1" or not self.terms:
            return self
        if self.text == "1" or not right.terms:
            return right
        if len(self.terms) * len(right.terms) > _MAX_TERMS:
            raise _too_large(f"{len(self.terms)} times {len(right.terms)} terms")
        return _collect(
            (tuple(sorted((*m1, *m2), key=_text)), f1 * f2)
            for m1, f1 in self.terms
            for m2, f2 in right.terms
        )

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim | int) -> Dim:
        return _floordiv(self, Dim.of(other))

    def __mod__(self, other: Dim | int) -> Dim:
        return _modulo(self, Dim.of(other))

    def ceildiv(self, other: Dim | int) -> Dim:
        """Division rounded up."""
        return -((-self) // other)

    def max(self, other: Dim | int) -> Dim:
        """The larger of two dims."""
        right = Dim.of(other)
        difference = self - right
        if difference.is_const:
            return self if difference.const >= 0 else right
        first, second = sorted((self, right), key=_text)
        return _function("max", first, second)

    def min(self, other: Dim | int) -> Dim:
        """The smaller of two dims."""
        right = Dim.of(other)
        difference = self - right
        if difference.is_const:
            return right if difference.const >= 0 else self
        first, second = sorted((self, right), key=_text)
        return _function("min", first, second)

    # --- evaluation -----------------------------------------------------------------------------

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        """Returns the value under the given sizes.

        Raises:
            KeyError: a name has no size.
        """
        total = 0
        for monomial, factor in self.terms:
            product = factor
            for atom in monomial:
                product *= _evaluate_atom(atom, sizes)
            total += product
        return total

    def substitute(self, values: Mapping[str, Dim]) -> Dim:
        """Returns the dim with names replaced by other dims."""
        if not self.symbols & values.keys():
            return self
        total = Dim(())
        for monomial, factor in self.terms:
            product = Dim.of(factor)
            for atom in monomial:
                product = product * _substitute_atom(atom, values)
            total = total + product
        return total


@lru_cache(maxsize=1 << 14)
def _constant(number: int) -> Dim:
    return Dim((((), number),)) if number else Dim(())


def product(dims: Iterable[Dim | int]) -> Dim:
    """Returns the product of dims; 1 for none."""
    return reduce(lambda left, right: left * right, map(Dim.of, dims), Dim.of(1))


def total(dims: Iterable[Dim]) -> Dim:
    """Returns the sum of dims; 0 for none."""
    return _collect(term for dim in dims for term in dim.terms)


def shape_text(shape: Iterable[Dim]) -> str:
    """Renders a shape as ``[batch, 3, h//2]``."""
    return "[" + ", ".join(str(dim) for dim in shape) + "]"


@lru_cache(maxsize=65536)
def _symbols(dim: Dim) -> frozenset[str]:
    names: set[str] = set()
    for monomial, _ in dim.terms:
        for atom in monomial:
            if not atom.op:
                names.add(atom.name)
            for part in (atom.left, atom.right):
                names |= part.symbols if part is not None else set()
    return frozenset(names)


def _text(part: Atom | Dim) -> str:
    return part.text


def _sum_text(terms: tuple[tuple[Monomial, int], ...]) -> str:
    if not terms:
        return "0"
    parts: list[str] = []
    for monomial, factor in terms:
        names = "*".join([atom.text for atom in monomial])
        size = abs(factor)
        if size.bit_length() > _MAX_BITS:
            raise _too_large(f"a factor of {size.bit_length()} bits")
        body = str(size) if not monomial else names if size == 1 else f"{size}*{names}"
        sign = "-" if factor < 0 else "+" if parts else ""
        parts.append(f"{sign}{body}")
    return "".join(parts)


def _collect(terms: Iterable[tuple[Monomial, int]]) -> Dim:
    sums: dict[Monomial, int] = {}
    for monomial, factor in terms:
        sums[monomial] = sums.get(monomial, 0) + factor
    kept = [(monomial, factor) for monomial, factor in sums.items() if factor]
    if len(kept) < 2:
        return Dim(tuple(kept))
    return Dim(tuple(sorted(kept, key=lambda term: (-len(term[0]), [a.text for a in term[0]]))))


def _function(op: str, left: Dim, right: Dim) -> Dim:
    return Dim((((Atom(op, "", left, right),), 1),))


def _divides(dim: Dim, divisor: Dim) -> Dim | None:
    """The exact quotient when every term is a multiple of a one-term divisor, else None."""
    if len(divisor.terms) != 1:
        return Dim.of(1) if dim == divisor and divisor.terms else None
    monomial, factor = divisor.terms[0]
    result: list[tuple[Monomial, int]] = []
    for own, own_factor in dim.terms:
        rest = list(own)
        for atom in monomial:
            if atom not in rest:
                return None
            rest.remove(atom)
        if own_factor % factor:
            return None
        result.append((tuple(rest), own_factor // factor))
    return _collect(result)


def _modulo(dim: Dim, divisor: Dim) -> Dim:
    if not divisor.terms or _divides(dim, divisor) is not None:
        return Dim.of(0)
    if divisor.is_const and divisor.const > 0:
        dim = _collect((monomial, factor % divisor.const) for monomial, factor in dim.terms)
    if dim.is_const and divisor.is_const:
        return Dim.of(dim.const % divisor.const)
    return _function("mod", dim, divisor)


def _floordiv(dim: Dim, divisor: Dim) -> Dim:
    if not divisor.terms:
        return divisor
    if dim.is_const and divisor.is_const:
        return Dim.of(dim.const // divisor.const)
    exact = _divides(dim, divisor)
    if exact is not None:
        return exact
    if divisor.is_const and divisor.const > 0:
        number = divisor.const
        whole = _collect((m, f // number) for m, f in dim.terms if f % number == 0 or not m)
        if whole.terms:
            return whole + _floordiv(dim - whole * number, divisor)
    return _function("floordiv", dim, divisor)


def _evaluate_atom(atom: Atom, sizes: Mapping[str, int]) -> int:
    if not atom.op:
        return sizes[atom.name]
    if atom.left is None or atom.right is None:
        raise InternalError("a function atom lacks an operand")
    left, right = atom.left.evaluate(sizes), atom.right.evaluate(sizes)
    if atom.op == "max":
        return max(left, right)
    if atom.op == "min":
        return min(left, right)
    if right == 0:
        return 0
    return left // right if atom.op == "floordiv" else left % right


def _substitute_atom(atom: Atom, values: Mapping[str, Dim]) -> Dim:
    if not atom.op:
        return values.get(atom.name, Dim(((((atom,)), 1),)))
    if atom.left is None or atom.right is None:
        raise InternalError("a function atom lacks an operand")
    return FUNCTIONS[atom.op](atom.left.substitute(values), atom.right.substitute(values))


FUNCTIONS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "floordiv": lambda left, right: left // right,
    "mod": lambda left, right: left % right,
    "max": lambda left, right: left.max(right),
    "min": lambda left, right: left.min(right),
}
