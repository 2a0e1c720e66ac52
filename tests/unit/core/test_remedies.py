"""Every error that a user can mend says how: the sources are walked for what makes one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tilewright
from tilewright.core import errors

_SOURCES = Path(tilewright.__file__).parent
_KINDS = frozenset(
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.UserError)
)


def _made(tree: ast.AST) -> Iterator[ast.Call]:
    """The calls that make such an error."""
    for found in ast.walk(tree):
        if isinstance(found, ast.Call):
            function = found.func
            name = function.attr if isinstance(function, ast.Attribute) else None
            name = function.id if isinstance(function, ast.Name) else name
            if name in _KINDS:
                yield found


def _says_how(call: ast.Call) -> bool:
    """A remedy is passed on, or stands there and is a text."""
    for keyword in call.keywords:
        if keyword.arg == "remedy":
            value = keyword.value
            return not isinstance(value, ast.Constant) or bool(str(value.value or "").strip())
        if keyword.arg is None:  # **where
            return True
    return False


@pytest.mark.parametrize("path", sorted(_SOURCES.rglob("*.py")), ids=lambda path: path.stem)
def test_every_error_has_a_remedy(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bare = [f"line {call.lineno}" for call in _made(tree) if not _says_how(call)]
    assert not bare, f"{path.name} makes errors without a remedy: {', '.join(bare)}"


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("raise BadOption('no')", 1),
        ("raise errors.BadOption('no', remedy='')", 1),
        ("raise OutOfRange('no', remedy=None)", 1),
        ("raise OutOfRange('no', remedy='do')", 0),
        ("raise OutOfRange('no', remedy=text)", 0),
        ("raise InternalError('no')", 0),
    ],
)
def test_the_walk_sees_what_is_missing(text: str, bare: int) -> None:
    assert sum(not _says_how(call) for call in _made(ast.parse(text))) == bare
