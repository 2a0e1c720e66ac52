"""The exception tree and what its messages say."""

import inspect

import pytest

from tilewright.core import errors
from tilewright.core.errors import InternalError, ShapeMismatch, UnsupportedOp, UserError


def test_the_docstring_lists_the_tree() -> None:
    listed = {line.split()[0] for line in (errors.__doc__ or "").splitlines()[2:] if line}
    classes = inspect.getmembers(errors, inspect.isclass)
    defined = {name for name, cls in classes if cls.__module__ == errors.__name__}
    assert listed == defined


def test_all_but_internal_errors_are_user_errors() -> None:
    for name, cls in inspect.getmembers(errors, inspect.isclass):
        assert issubclass(cls, UserError) != (name == "InternalError")
    assert not issubclass(InternalError, UserError)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UserError("wrong"), "wrong"),
        (UserError("wrong", remedy="mend it"), "wrong\n  remedy: mend it"),
        (ShapeMismatch("wrong", node="conv1"), "node conv1: wrong"),
        (ShapeMismatch("wrong", file="a.onnx", node="n"), "a.onnx, node n: wrong"),
    ],
)
def test_messages_name_place_and_remedy(error: UserError, text: str) -> None:
    assert str(error) == text


def test_unsupported_operators_are_listed() -> None:
    error = UnsupportedOp("2 operators", operators=("A", "B"), remedy="wait")
    assert error.operators == ("A", "B")
    assert "remedy: wait" in str(error)


def test_the_place_can_be_added_on_the_way_up() -> None:
    error = ShapeMismatch("wrong")
    error.node = "conv1"
    assert str(error) == "node conv1: wrong"
