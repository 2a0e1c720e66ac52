"""Branches and loops: what changes inside is never taken for constant outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.core.dtypes import BOOL, FLOAT32, INT64
from tilewright.core.errors import ShapeMismatch, UnsupportedOp
from tilewright.core.shape import Dim
from tilewright.graph.shapes import infer
from tilewright.graph.view import GraphView, ValueView
from unit.graph.shapes.builder import Builder, dims


def _branch(name: str, op_type: str, *inputs: str, **attributes: Any) -> GraphView:
    inner = Builder()
    inner.add(op_type, *inputs, out=name, **attributes)
    return inner.graph(name)


def _conditional(then_axis: int, else_axis: int) -> Builder:
    graph = Builder()
    graph.input("x", "a", 4)
    graph.input("y", "b", 4)
    graph.input("cond", dtype=BOOL)
    graph.add(
        "If",
        "cond",
        out="z",
        then_branch=_branch("t", "Concat", "x", "x", axis=then_axis),
        else_branch=_branch("e", "Concat", "x", "x", axis=else_axis),
    )
    return graph


def test_branches_that_agree_keep_their_sizes() -> None:
    assert _conditional(1, 1).infer().shape("z") == dims("a", 8)


def test_branches_that_differ_give_late_sizes() -> None:
    found = _conditional(0, 1).infer()
    assert found.shape("z") == (Dim.symbol("z.d0"), Dim.symbol("z.d1"))
    assert {"z.d0", "z.d1"} <= found.inference.late


def test_a_known_condition_leaves_its_branch_only() -> None:
    graph = Builder()
    graph.input("x", 1, 4)
    condition = graph.add("Equal", graph.add("Shape", "x", end=1), graph.constant(1))
    graph.constants["zero"] = np.array([0])
    graph.constants["one"] = np.array([1])
    graph.add(
        "If",
        condition,
        out="z",
        then_branch=_branch("t", "Squeeze", "x", "zero"),
        else_branch=_branch("e", "Squeeze", "x", "one"),  # would be refused
    )
    found = graph.infer()
    assert found.shape("z") == dims(4)
    assert "e" not in found.inference.nodes


def _loop(step: str) -> Builder:
    """A loop that carries ``state`` ([a, 4]) and stacks it."""
    inner = Builder()
    inner.inputs += [
        ValueView(name="i", dtype=INT64, shape=()),
        ValueView(name="go", dtype=BOOL, shape=()),
        ValueView(name="held", dtype=FLOAT32, shape=None),
    ]
    inner.add("Identity", "go", out="go_on")
    if step == "grow":
        inner.add("Concat", "held", "x", out="next", axis=0)
    else:
        inner.add("Add", "held", "x", out="next")
    inner.add("Identity", "next", out="seen")
    graph = Builder()
    graph.input("x", "a", 4)
    graph.input("count", dtype=INT64)
    body = inner.graph("go_on", "next", "seen")
    graph.add("Loop", "count", None, "x", out=("last", "all"), body=body)
    return graph


def test_carried_sizes_that_stay_are_kept() -> None:
    found = _loop("keep").infer()
    assert found.shape("held") == found.shape("last") == dims("a", 4)
    assert found.shape("all") == (Dim.symbol("all.d0"), *dims("a", 4))
    assert found.inference.late == {"all.d0"}


def test_carried_sizes_that_change_become_late() -> None:
    found = _loop("grow").infer()
    assert found.shape("held") == (Dim.symbol("held.d0"), Dim.of(4))
    assert found.shape("next") == dims("`held.d0`+a", 4)
    assert found.shape("last") == (Dim.symbol("last.d0"), Dim.of(4))
    assert found.shape("all") == (Dim.symbol("all.d0"), Dim.symbol("all.d1"), Dim.of(4))


def test_carried_contents_are_not_constants() -> None:
    inner = Builder()
    inner.inputs += [
        ValueView(name="i", dtype=INT64, shape=()),
        ValueView(name="go", dtype=BOOL, shape=()),
        ValueView(name="held", dtype=INT64, shape=()),
    ]
    inner.add("Identity", "go", out="go_on")
    inner.add("Add", "held", "i", out="next")
    graph = Builder()
    graph.input("count", dtype=INT64)
    graph.add("Loop", "count", None, graph.constant(3), out="last",
              body=inner.graph("go_on", "next"))  # fmt: skip
    found = graph.infer()
    assert found.info("held").content is None
    assert found.info("last").content is None


def test_scan_stacks_along_the_scanned_size() -> None:
    inner = Builder()
    inner.inputs += [
        ValueView(name="s", dtype=FLOAT32, shape=None),
        ValueView(name="e", dtype=FLOAT32, shape=None),
    ]
    inner.add("Add", "s", "e", out="next")
    inner.add("Identity", "next", out="seen")
    graph = Builder()
    graph.input("state", 4)
    graph.input("xs", 4, "t")
    graph.add("Scan", "state", "xs", out=("last", "all"), body=inner.graph("next", "seen"),
              num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[-1])  # fmt: skip
    found = graph.infer()
    assert found.shape("last") == dims(4)
    assert found.shape("all") == dims(4, "t")
    assert not found.inference.late


def test_sizes_that_a_branch_has_prove_nothing_outside() -> None:
    graph = Builder()
    graph.input("x", "h", "h")
    graph.input("cond", dtype=BOOL)
    two = graph.constant(2)
    graph.constants["pads"] = np.array([-1, 0, -1, 0])
    inner = Builder()
    inner.add("Pad", "x", "pads", out="cut")  # [h-2, h]
    inner.add("Shape", "cut", out="cut_shape")
    other = Builder()
    other.add("Shape", "x", out="x_shape")
    graph.add("If", "cond", out="z", then_branch=inner.graph("cut_shape"),
              else_branch=other.graph("x_shape"))  # fmt: skip
    less = graph.add("Sub", graph.add("Shape", "x", end=1), two)
    graph.add("ConstantOfShape", less, out="y")
    assert graph.infer().functions() == ["constant_of_shape"]


def test_operators_without_a_rule_are_named_all_at_once() -> None:
    graph = Builder()
    graph.input("x", 3)
    graph.add("Nonsense", "x", domain="some.where")
    graph.add("Unheard", "x")
    with pytest.raises(UnsupportedOp) as raised:
        infer(graph.graph())
    assert raised.value.operators == ("ai.onnx.Unheard", "some.where.Nonsense")


def _either(then_axis: int, else_axis: int) -> Builder:
    """A choice between two squeezes of [1, 4]."""
    graph = Builder()
    graph.input("x", 1, 4)
    graph.input("cond", dtype=BOOL)
    graph.constants["then_axis"] = np.array([then_axis])
    graph.constants["else_axis"] = np.array([else_axis])
    inner = Builder()
    inner.add("Squeeze", "x", "else_axis", out="e")
    inner.add("Neg", "e", out="e2")
    graph.add(
        "If",
        "cond",
        out="z",
        then_branch=_branch("t", "Squeeze", "x", "then_axis"),
        else_branch=inner.graph("e2"),
    )
    return graph


def test_a_branch_that_cannot_run_leaves_the_other() -> None:
    found = _either(0, 1).infer()
    assert found.shape("z") == dims(4)
    assert found.shape("e") is None
    assert found.shape("e2") is None
    assert "axis 1 is squeezed" in found.inference.deferred["e"]


def test_a_branch_with_an_inner_choice_that_cannot_run() -> None:
    outer = Builder()
    outer.input("flag", dtype=BOOL)
    inner = _either(1, 1)
    outer.inputs += inner.inputs
    outer.constants = inner.constants
    wrong, right = Builder(), Builder()
    wrong.nodes = inner.nodes
    right.add("Squeeze", "x", outer.constant([0]), out="r")
    outer.add("If", "flag", out="y", then_branch=wrong.graph("z"), else_branch=right.graph("r"))
    found = outer.infer()
    assert found.shape("y") == dims(4)
    assert set(found.inference.deferred) == {"t", "e"}


def test_two_branches_that_cannot_run_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="node t"):
        _either(1, 1).infer()
