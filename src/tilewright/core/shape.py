"""Symbolic dimensions: integer polynomials over named sizes with floor division, modulo, min and
max.

Input -> Output: names and integers -> canonical expressions; equal text means equal value.
Guarantees: ``parse(str(dim)) == dim``; evaluation is exact; a division by zero evaluates to 0.
Not here: shape rules of operators (graph.shapes); ranges are checked by the runtime.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce

from tilewright.core.errors import InternalError

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z_0-9]*\Z")
_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_][A-Za-z_0-9]*)|`([^`]*)`|(//|[-+*%/(),]))")
_FUNCTIONS = ("floordiv", "mod", "max", "min")


@dataclass(frozen=True, slots=True)
class Atom:
    """A name (``op`` is empty) or an opaque function of two dims."""

    op: str
    name: str
    left: Dim | None = None
    right: Dim | None = None

    def __str__(self) -> str:
        if not self.op:
            return self.name if _IDENTIFIER.match(self.name) else f"`{self.name}`"
        if self.op == "floordiv":
            return f"floor({_grouped(self.left)}/{_grouped(self.right)})"
        return f"{self.op}({self.left}, {self.right})"


Monomial = tuple[Atom, ...]


def _grouped(dim: Dim | None) -> str:
    text = str(dim)
    return f"({text})" if dim is not None and (len(dim.terms) > 1 or "*" in text) else text


@dataclass(frozen=True, slots=True)
class Dim:
    """A canonical sum of integer multiples of products of atoms."""

    terms: tuple[tuple[Monomial, int], ...]

    # --- construction ---------------------------------------------------------------------------

    @staticmethod
    def of(value: Dim | int) -> Dim:
        """Returns an integer as a dim; a dim as it is."""
        if isinstance(value, Dim):
            return value
        return Dim((((), int(value)),)) if value else Dim(())

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
        return _collect([*self.terms, *Dim.of(other).terms])

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return Dim(tuple((monomial, -factor) for monomial, factor in self.terms))

    def __sub__(self, other: Dim | int) -> Dim:
        return self + -Dim.of(other)

    def __rsub__(self, other: Dim | int) -> Dim:
        return Dim.of(other) - self

    def __mul__(self, other: Dim | int) -> Dim:
        right = Dim.of(other)
        return _collect(
            (tuple(sorted((*m1, *m2), key=str)), f1 * f2)
            for m1, f1 in self.terms
            for m2, f2 in right.terms
        )

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim | int) -> Dim:
        return _floordiv(self, Dim.of(other))

    def __mod__(self, other: Dim | int) -> Dim:
        divisor = Dim.of(other)
        if self.is_const and divisor.is_const:
            return Dim.of(self.const % divisor.const if divisor.const else 0)
        if _divides(self, divisor) is not None:
            return Dim.of(0)
        return _function("mod", self, divisor)

    def ceildiv(self, other: Dim | int) -> Dim:
        """Division rounded up."""
        return -((-self) // other)

    def max(self, other: Dim | int) -> Dim:
        """The larger of two dims."""
        right = Dim.of(other)
        difference = self - right
        if difference.is_const:
            return self if difference.const >= 0 else right
        first, second = sorted((self, right), key=str)
        return _function("max", first, second)

    def min(self, other: Dim | int) -> Dim:
        """The smaller of two dims."""
        right = Dim.of(other)
        difference = self - right
        if difference.is_const:
            return right if difference.const >= 0 else self
        first, second = sorted((self, right), key=str)
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

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        parts: list[str] = []
        for monomial, factor in self.terms:
            names = "*".join(str(atom) for atom in monomial)
            size = abs(factor)
            body = str(size) if not monomial else names if size == 1 else f"{size}*{names}"
            sign = "-" if factor < 0 else "+" if parts else ""
            parts.append(f"{sign}{body}")
        return "".join(parts)

    def __repr__(self) -> str:
        return f"Dim({self})"


def product(dims: Iterable[Dim | int]) -> Dim:
    """Returns the product of dims; 1 for none."""
    return reduce(lambda left, right: left * right, map(Dim.of, dims), Dim.of(1))


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


def _collect(terms: Iterable[tuple[Monomial, int]]) -> Dim:
    sums: dict[Monomial, int] = {}
    for monomial, factor in terms:
        sums[monomial] = sums.get(monomial, 0) + factor
    kept = [(monomial, factor) for monomial, factor in sums.items() if factor]
    return Dim(tuple(sorted(kept, key=lambda term: (-len(term[0]), [str(a) for a in term[0]]))))


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


def _floordiv(dim: Dim, divisor: Dim) -> Dim:
    if divisor.is_const and divisor.const == 1:
        return dim
    if dim.is_const and divisor.is_const:
        return Dim.of(dim.const // divisor.const if divisor.const else 0)
    exact = _divides(dim, divisor)
    if exact is not None:
        return exact
    if divisor.is_const and divisor.const > 0:
        number = divisor.const
        whole = _collect((m, f // number) for m, f in dim.terms if f % number == 0 or not m)
        rest = _collect(
            (m, f % number if not m else f) for m, f in dim.terms if f % number or not m
        )
        rest = _collect((m, f) for m, f in rest.terms if m or f)
        if whole.terms and rest != dim:
            return whole + _floordiv(rest, divisor)
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
    return _APPLY[atom.op](atom.left.substitute(values), atom.right.substitute(values))


_APPLY: dict[str, Callable[[Dim, Dim], Dim]] = {
    "floordiv": lambda left, right: left // right,
    "mod": lambda left, right: left % right,
    "max": lambda left, right: left.max(right),
    "min": lambda left, right: left.min(right),
}


class _Parser:
    """Recursive descent over ``+ - * // % floor(a/b) ceil(a/b) floordiv() mod() max() min()``."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens, position = text, [], 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None or len(self.tokens) > 4096:
                raise ValueError(f"not a dimension: {text[:80]!r}")
            number, name, quoted, sign = match.groups()
            kind = "int" if number else "sign" if sign else "name"
            self.tokens.append((kind, number or sign or (name if quoted is None else quoted)))
            position = match.end()
        self.position, self.depth = 0, 0

    tokens: list[tuple[str, str]]

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.position] if self.position < len(self.tokens) else ("end", "")

    def take(self, sign: str | None = None) -> str:
        kind, text = self.peek()
        if kind == "end" or (sign is not None and (kind, text) != ("sign", sign)):
            raise ValueError(f"not a dimension: {self.text[:80]!r}")
        self.position += 1
        return text

    def sum(self) -> Dim:
        self.depth += 1
        if self.depth > 64:
            raise ValueError("a dimension is nested too deeply")
        value = self.term()
        while self.peek() in (("sign", "+"), ("sign", "-")):
            value = value + self.term() if self.take() == "+" else value - self.term()
        self.depth -= 1
        return value

    def term(self) -> Dim:
        value = self.factor()
        while self.peek()[0] == "sign" and self.peek()[1] in ("*", "//", "%"):
            sign = self.take()
            right = self.factor()
            value = (
                value * right if sign == "*" else value % right if sign == "%" else value // right
            )
        return value

    def factor(self) -> Dim:
        kind, text = self.peek()
        if (kind, text) == ("sign", "-"):
            self.take()
            return -self.factor()
        if (kind, text) == ("sign", "("):
            self.take()
            value = self.sum()
            self.take(")")
            return value
        self.take()
        if kind == "int":
            return Dim.of(int(text))
        if kind != "name":
            raise ValueError(f"not a dimension: {self.text[:80]!r}")
        if self.peek() == ("sign", "(") and text in (*_FUNCTIONS, "floor", "ceil"):
            return self.call(text)
        return Dim.symbol(text)

    def call(self, name: str) -> Dim:
        self.take("(")
        arguments = [self.sum()]
        if self.peek() == ("sign", "/") and name in ("floor", "ceil"):
            self.take()
            arguments.append(self.factor())
        while self.peek() == ("sign", ","):
            self.take()
            arguments.append(self.sum())
        self.take(")")
        if name in ("floor", "ceil") and len(arguments) == 1:
            return arguments[0]
        if name == "floor":
            name = "floordiv"
        return reduce(_APPLY[name] if name != "ceil" else Dim.ceildiv, arguments)


def parse(text: str) -> Dim:
    """Reads a dim from its text; ``/`` is only read as ``floor(a/b)`` or ``ceil(a/b)``.

    Raises:
        ValueError: the text is no such expression.
    """
    parser = _Parser(text)
    value = parser.sum()
    if parser.peek()[0] != "end":
        raise ValueError(f"not a dimension: {text[:80]!r}")
    return value
