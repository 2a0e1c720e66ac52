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

_TOKEN = re.compile(r"\d+|[A-Za-z_][A-Za-z_0-9]*|`(?:[^`]|``)*`|//|\S")
_LETTER = re.compile(r"[A-Za-z_]")
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
_Operation = Callable[[Dim, Dim], Dim]
_SIGNS: dict[str, _Operation] = {"*": Dim.__mul__, "//": _FLOOR, "%": _REST}
_FUNCTIONS: dict[str, _Operation] = {
    "floor": _FLOOR,
    "floordiv": _FLOOR,
    "ceil": _quotient(Dim.ceildiv),
    "mod": _REST,
    "max": Dim.max,
    "min": Dim.min,
}
_MAX_TEXT = 32_768
_MAX_REMEMBERED = 4_096  # a model repeats few texts thousands of times
_MAX_CALL = 1_024  # characters of a function that is remembered
_MAX_TOKENS = 8_192
_MAX_LEVELS = 220  # parentheses and calls; a dim of the largest depth has two for each level

_calls: dict[str, Dim] = {}  # functions by their text


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
    """Precedence climbing over the tokens; the empty one is the end."""

    def __init__(self, text: str) -> None:
        if len(text) > _MAX_TEXT:
            raise ValueError(f"a dimension of {len(text)} characters")
        self._text = text
        self._tokens = _TOKEN.findall(text)
        if len(self._tokens) > _MAX_TOKENS:
            raise self._error()
        self._closes = _closes(self._tokens)
        self._tokens.append("")
        self._position = 0

    def _error(self) -> ValueError:
        return ValueError(f"not a dimension: {self._text[:80]!r}")

    def expect_end(self) -> None:
        """Refuses what follows an expression."""
        if self._tokens[self._position]:
            raise self._error()

    def expression(self, least: int = 1) -> Dim:
        """Operands joined by operators that bind at least so tightly."""
        value = self._operand()
        addends: list[Dim] = []
        while True:
            sign = self._tokens[self._position]
            level = _PRECEDENCE.get(sign, 0)
            if level < least:
                return total([*addends, value]) if addends else value
            self._position += 1
            right = self.expression(level + 1)
            if level == _PRECEDENCE["+"]:
                addends.append(value)
                value = right if sign == "+" else -right
            else:
                value = _SIGNS[sign](value, right)

    def _operand(self) -> Dim:
        negative = False
        while self._taken("-"):
            negative = not negative
        token = self._tokens[self._position]
        if token == "(":
            value = self._arguments("")[0]
        elif token in _FUNCTIONS and self._tokens[self._position + 1] == "(":
            value = self._call(token)
        else:
            value = self._leaf(token)
            self._position += 1
        return -value if negative else value

    def _leaf(self, token: str) -> Dim:
        if _LETTER.match(token):
            return Dim.symbol(token)
        if len(token) > 1 and token[0] == "`":
            return Dim.symbol(token[1:-1].replace("``", "`"))
        if token.isdecimal():
            return Dim.of(int(token))
        raise self._error()

    def _call(self, name: str) -> Dim:
        """A function of dims; sizes of a deep network contain those of all layers before it."""
        first, close = self._position, self._closes.get(self._position + 1)
        if close is None:
            raise self._error()
        text = " ".join(self._tokens[first : close + 1])
        known = _calls.get(text)
        if known is not None:
            self._position = close + 1
            return known
        self._position += 1
        value = reduce(_FUNCTIONS[name], self._arguments(name))
        if len(_calls) >= _MAX_REMEMBERED:
            _calls.clear()
        if len(text) <= _MAX_CALL:
            _calls[text] = value
        return value

    def _arguments(self, name: str) -> list[Dim]:
        """What stands in parentheses; only functions take more than one."""
        self._position += 1
        found = [self.expression()]
        if name in ("floor", "ceil") and self._taken("/"):
            found.append(self._operand())
        while name and self._taken(","):
            found.append(self.expression())
        if not self._taken(")"):
            raise self._error()
        return found

    def _taken(self, sign: str) -> bool:
        if self._tokens[self._position] != sign:
            return False
        self._position += 1
        return True


def _closes(tokens: list[str]) -> dict[int, int]:
    """Which token closes each parenthesis."""
    found: dict[int, int] = {}
    opened: list[int] = []
    for number, token in enumerate(tokens):
        if token == "(":
            opened.append(number)
            if len(opened) > _MAX_LEVELS:
                raise ValueError("a dimension is nested too deeply")
        elif token == ")" and opened:
            found[opened.pop()] = number
    return found
