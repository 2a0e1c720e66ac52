"""Whatever is given for an option, it is read or refused with its name, the value and a remedy."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.core import check_option as check
from tilewright.core.errors import BadOption, BadTarget


class Odd:
    """Of no use for anything, not even for a message."""

    def __repr__(self) -> str:
        raise RuntimeError


JUNK: list[Any] = [
    None,
    5,
    -1,
    1.5,
    float("nan"),
    "abc",
    "",
    b"abc",
    "\0",
    "\ud800",
    True,
    (),
    [1],
    {1: 2},
]
JUNK += [{"a": "b"}, object(), Odd(), np.ones(2), np.array([1]), 2**63, 1 << 9999, int, print]
READERS: dict[Callable[[Any], Any], Any] = {
    partial(check.whole, "option", low=1, high=9): int,
    partial(check.flag, "option"): bool,
    partial(check.one_of, "option", known=("a", "b")): str,
    partial(check.text, "option"): str,
    partial(check.file_path, "option"): Path,
    partial(check.names, "option", example="a"): list,
    partial(check.by_name, "option", example="a"): dict,
    partial(check.sizes, "option"): dict,
    partial(check.shapes, "option"): dict,
}


def _refusal(read: Callable[[Any], Any], value: Any, kind: Any) -> BadOption | None:
    try:
        assert isinstance(read(value), kind)
    except BadOption as error:
        return error
    return None


@pytest.mark.parametrize("value", JUNK, ids=lambda value: type(value).__name__)
def test_what_is_read_has_the_type_and_what_is_refused_is_named(value: Any) -> None:
    for read, kind in READERS.items():
        refusal = _refusal(read, value, kind)
        if refusal is not None:
            assert "option" in refusal.message
            assert "\n" not in refusal.message
            assert len(refusal.message) < 200
            assert refusal.remedy


def test_whole_numbers() -> None:
    assert [check.whole("n", n, 0, 9) for n in (0, 9, np.int8(3), np.array(4))] == [0, 9, 3, 4]
    for wrong in (-1, 10, True, 1.0, "1", None, np.ones(1), np.True_):
        with pytest.raises(BadOption, match=r"^n is ") as caught:
            check.whole("n", wrong, 0, 9)
        assert caught.value.remedy == "use a whole number, 0 .. 9"
    assert type(check.whole("n", np.int64(1), 0)) is int
    assert check.whole("n", check.MAX_SIZE, 0) == operator.index(2**63 - 1)


def test_flags() -> None:
    assert [check.flag("f", value) for value in (True, False, np.True_)] == [True, False, True]
    for wrong in (1, 0, "no", "", None, np.ones(2)):
        with pytest.raises(BadOption, match="f is"):
            check.flag("f", wrong)


def test_one_of_some_names_with_an_error_of_choice() -> None:
    assert check.one_of("target", "cpu", ("cpu",)) == "cpu"
    with pytest.raises(BadTarget, match="unknown target 'tpu'"):
        check.one_of("target", "tpu", ("cpu",), BadTarget)


def test_paths(tmp_path: Path) -> None:
    assert check.file_path("p", str(tmp_path)) == check.file_path("p", tmp_path) == tmp_path
    for wrong, message in (
        ("", "p is an empty path"),
        (b"a", r"p is b'a' \(bytes\)"),
        (5, r"p is 5 \(int\)"),
        ("a\0", "cannot be a path"),
    ):
        with pytest.raises(BadOption, match=message):
            check.file_path("p", wrong)


def test_names() -> None:
    assert check.names("n", None, "") == []
    assert check.names("n", "a, b", "") == check.names("n", ("a", " b"), "") == ["a", "b"]
    junk: list[Any] = [5, b"ab", ["a", 5], [[]], {"a": 1}.values()]
    for wrong in junk:
        with pytest.raises(BadOption, match="n is .*"):
            check.names("n", wrong, "")


def test_sizes_by_name() -> None:
    assert check.sizes("s", None) == {}
    assert check.sizes("s", {"n": np.int64(3)}) == {"n": 3}
    with pytest.raises(BadOption, match=r"s\['n'\] is -1"):
        check.sizes("s", {"n": -1})
    with pytest.raises(BadOption, match=r"s is \[\('n', 1\)\]"):
        check.sizes("s", [("n", 1)])


def test_shapes_by_name() -> None:
    assert check.shapes("s", {"x": [np.int64(3), 2]}) == {"x": (3, 2)}
    for wrong in (5, (2, "a"), (-1,), "ab"):
        with pytest.raises(BadOption, match=r"s\['x'\] is"):
            check.shapes("s", {"x": wrong})


def test_functions() -> None:
    assert check.function("f", print) is print
    assert check.function("f", None) is None
    with pytest.raises(BadOption, match="f is 5"):
        check.function("f", 5)
