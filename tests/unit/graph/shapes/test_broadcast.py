"""Broadcasting of sizes that are not known to be equal."""

from __future__ import annotations

import pytest

from tilewright.core.dtypes import INT64
from tilewright.core.errors import InvalidModel, ShapeMismatch
from tilewright.core.shape import Dim
from unit.graph.shapes.builder import Builder, dims


def _add(left: tuple[int | str, ...], right: tuple[int | str, ...], **minimum: int) -> object:
    graph = Builder()
    graph.add("Add", graph.input("x", *left), graph.input("y", *right), out="z")
    found = graph.infer(**minimum)
    return found.shape("z"), found.functions()


def test_equal_names_and_ones_need_no_check() -> None:
    assert _add(("b", 1, "s"), ("b", 4, "s")) == (dims("b", 4, "s"), [])
    assert _add(("s",), ("b", 1)) == (dims("b", "s"), [])


def test_two_names_meet_in_a_symbol_of_their_own() -> None:
    assert _add(("a",), ("b",)) == ((Dim.symbol("z.broadcast_1_0_0"),), ["broadcast"])


def test_a_size_that_is_never_one_decides() -> None:
    assert _add(("2*a",), ("b",)) == (dims("2*a"), ["require_broadcast"])
    assert _add(("2*a",), ("2*b",)) == (dims("2*a"), ["require_equal"])
    assert _add(("a",), ("b",), a=2) == (dims("a"), ["require_broadcast"])
    assert _add(("a",), (7,)) == (dims(7), ["require_broadcast"])


def test_the_same_pair_meets_in_the_same_symbol() -> None:
    graph = Builder()
    graph.input("x", "a")
    graph.input("y", "b")
    graph.add("Add", "x", "y", out="first")
    graph.add("Mul", "y", "x", out="second")
    graph.add("Sub", "first", "x", out="third")
    graph.add("Sub", "third", "second", out="fourth")
    found = graph.infer()
    assert found.shape("first") == found.shape("second") == found.shape("fourth")
    assert found.functions() == ["broadcast", "require_broadcast"]


def test_static_sizes_that_differ_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="node z"):
        _add((3,), (4,))


def test_types_that_differ_are_refused() -> None:
    graph = Builder()
    graph.add("Add", graph.input("x", 3), graph.input("y", 3, dtype=INT64))
    with pytest.raises(InvalidModel, match="one type"):
        graph.infer()


def test_inner_sizes_of_a_product_are_checked() -> None:
    graph = Builder()
    graph.add("MatMul", graph.input("x", "m", "k"), graph.input("y", "l", 8), out="z")
    found = graph.infer()
    assert (found.shape("z"), found.functions()) == (dims("m", 8), ["require_equal"])


def test_checks_are_not_repeated() -> None:
    graph = Builder()
    graph.input("x", "m", "k")
    graph.input("y", "l", 8)
    graph.add("MatMul", "x", "y")
    graph.add("MatMul", "x", "y")
    assert graph.infer().functions() == ["require_equal"]
