"""The text of a symbolic dimension back to the dimension.

Input -> Output: ``2*batch+floor(h/2)`` -> ``Dim``.
    sum of products of names, `` `any name` ``, numbers, (...), floor(a/b), ceil(a/b),
    floordiv(a, b), mod(a, b), max(a, ...), min(a, ...), a // b, a % b
Guarantees: whatever the text, it takes little time and ends with a dim or a ``ValueError``; a
division by what is 0 for all sizes is ``DividesByZero``.
Not here: arithmetic (core.shape).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, reduce

from tilewright.core.errors import InvalidModel
from tilewright.core.shape import Dim, total

_TOKEN = re.compile(
    r"\s*(?:(?P<int>\d+)|(?P<name>[A-Za-z_][A-Za-z_0-9]*)|`(?P<quoted>(?:[^`]|``)*)`"
    r"|(?P<sign>//|[-+*%/(),]))"
)
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "//": 2, "%": 2}


class DividesByZero(ValueError):
    """The text divides by 0."""


def _quotient(divide: Callable[[Dim, Dim], Dim]) -> Callable[[Dim, Dim], Dim]:
    def checked(left: Dim, right: Dim) -> Dim:
        if not right.terms:
            raise DividesByZero(f"{left} is divided by 0")
        return divide(left, right)

    return checked


_FLOOR, _REST = _quotient(Dim.__floordiv__), _quotient(Dim.__mod__)
_OPERATIONS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "*": lambda left, right: left * right,
    "//": _FLOOR,
    "%": _REST,
    "floor": _FLOOR,
    "floordiv": _FLOOR,
    "ceil": _quotient(Dim.ceildiv),
    "mod": _REST,
    "max": Dim.max,
    "min": Dim.min,
}
_MAX_TEXT = 32_768
_MAX_REMEMBERED = 4_096  # an engine repeats few texts thousands of times
_MAX_TOKENS = 8_192
_MAX_LEVELS = 220  # parentheses and calls; a dim of the largest depth has two for each level


@lru_cache(maxsize=_MAX_REMEMBERED)
def parse(text: str) -> Dim:
    """Reads a dim from its text; ``/`` is only read as ``floor(a/b)`` or ``ceil(a/b)``.

    Raises:
        ValueError: the text is no such expression, or is too large.
    """
    parser = _Parser(text)
    try:
        value = parser.expression()
    except InvalidModel as error:
        raise ValueError(error.message) from error
    parser.expect_end()
    return value


class _Parser:
    """Precedence climbing over the tokens (kind, text)."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split(text)
        self._position = 0
        self._level = 0

    def _split(self, text: str) -> list[tuple[str, str]]:
        if len(text) > _MAX_TEXT:
            raise ValueError(f"a dimension of {len(text)} characters")
        tokens: list[tuple[str, str]] = []
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None or len(tokens) == _MAX_TOKENS:
                raise self._error()
            kind, part = match.lastgroup, match[match.lastgroup]
            if kind == "quoted":
                kind, part = "name", part.replace("``", "`")
            elif kind == "name":
                kind = "call" if part in _OPERATIONS else "name"
            tokens.append((kind, part))
            position = match.end()
        return [*tokens, ("end", "")]

    def _error(self) -> ValueError:
        return ValueError(f"not a dimension: {self._text[:80]!r}")

    def expect_end(self) -> None:
        """Refuses what follows an expression."""
        if self._tokens[self._position][0] != "end":
            raise self._error()

    def expression(self, least: int = 1) -> Dim:
        """Operands joined by operators that bind at least so tightly."""
        value = self._operand()
        addends: list[Dim] = []
        while True:
            kind, sign = self._tokens[self._position]
            level = _PRECEDENCE.get(sign, 0) if kind == "sign" else 0
            if level < least:
                return total([*addends, value]) if addends else value
            self._position += 1
            right = self.expression(level + 1)
            if level == _PRECEDENCE["+"]:
                addends.append(value)
                value = right if sign == "+" else -right
            else:
                value = _OPERATIONS[sign](value, right)

    def _operand(self) -> Dim:
        negative = False
        while self._taken("-"):
            negative = not negative
        kind, text = self._tokens[self._position]
        if (kind, text) == ("sign", "("):
            value = self._arguments("")[0]
        elif kind == "call" and self._tokens[self._position + 1] == ("sign", "("):
            self._position += 1
            value = reduce(_OPERATIONS[text], self._arguments(text))
        elif kind in ("int", "name", "call"):
            self._position += 1
            value = Dim.of(int(text)) if kind == "int" else Dim.symbol(text)
        else:
            raise self._error()
        return -value if negative else value

    def _arguments(self, name: str) -> list[Dim]:
        """What stands in parentheses; only functions take more than one."""
        self._level += 1
        if self._level > _MAX_LEVELS:
            raise ValueError("a dimension is nested too deeply")
        self._position += 1
        found = [self.expression()]
        if name in ("floor", "ceil") and self._taken("/"):
            found.append(self._operand())
        while name and self._taken(","):
            found.append(self.expression())
        if not self._taken(")"):
            raise self._error()
        self._level -= 1
        return found

    def _taken(self, sign: str) -> bool:
        if self._tokens[self._position] != ("sign", sign):
            return False
        self._position += 1
        return True
