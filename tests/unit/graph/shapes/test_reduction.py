"""Reductions of values whose rank only execution tells."""

from typing import Any

from tilewright.core.dtypes import FLOAT32
from tilewright.graph.view import ValueView
from unit.graph.shapes.builder import Builder


def _reduced(**attributes: Any) -> object:
    graph = Builder()
    graph.inputs.append(ValueView(name="x", dtype=FLOAT32, shape=None))
    graph.add("ReduceSum", "x", out="y", **attributes)
    return graph.infer().shape("y")


def test_a_sum_over_all_axes_is_a_scalar_whatever_the_rank() -> None:
    assert _reduced(keepdims=0) == ()


def test_otherwise_the_rank_stays_unknown() -> None:
    assert _reduced(keepdims=1) is None
    assert _reduced(keepdims=0, noop_with_empty_axes=1) is None
