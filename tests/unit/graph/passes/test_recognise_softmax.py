"""Softmax from exponentials relative to the maximum."""

from typing import Any

import numpy as np
import pytest

from tilewright.graph.passes.recognise_softmax import recognise_softmax as step
from unit.graph.passes.harness import assert_fires, assert_refuses, f32, i64, make

X = "float[N,4,5] x => float[N,4,5] y"
HEAD = "m = ReduceMax(x, axes) s = Sub(x, m) e = Exp(s) "


@pytest.mark.parametrize("axis", [-1, 1, 2])
def test_fires(axis: int) -> None:
    model = make(X, HEAD + "t = ReduceSum(e, axes) y = Div(e, t)", axes=i64(axis))
    assert_fires(model, step, ["Softmax"])
    assert model.graph[0].attributes["axis"].value == (axis - 3 if axis > 0 else axis)


def test_special_rows() -> None:
    feeds = {
        "x": f32([-np.inf, -np.inf], [np.inf, 1.0], [np.nan, 1.0], [-np.inf, 1.0], [1e30, -1e30])
    }
    model = make(
        "float[N,2] x => float[N,2] y", HEAD + "t = ReduceSum(e, axes) y = Div(e, t)", axes=i64(-1)
    )
    assert_fires(model, step, ["Softmax"], feeds=feeds)


@pytest.mark.parametrize(
    ("body", "weights", "reason"),
    [
        ("e = Exp(x) t = ReduceSum(e, axes) y = Div(e, t)", {}, "not taken relative"),
        (HEAD + "t = ReduceSum(e, other) y = Div(e, t)", {"other": i64(1)}, "same kept axes"),
        (HEAD + "t = ReduceSum(e) y = Div(e, t)", {}, "same kept axes"),
        (
            "m = ReduceMax(x, two) s = Sub(x, m) e = Exp(s) t = ReduceSum(e, two) y = Div(e, t)",
            {"two": i64(1, 2)},
            "over 2 axes",
        ),
    ],
)
def test_refuses(body: str, weights: dict[str, Any], reason: str) -> None:
    assert_refuses(make(X, body, axes=i64(2), **weights), step, reason)


def test_shared_exponentials_stay() -> None:
    body = HEAD + "t = ReduceSum(e, axes) y = Div(e, t)"
    model = make("float[N,4] x => float[N,4] y, float[N,4] e", body, axes=i64(-1))
    assert_refuses(model, step, "a graph output")


def test_old_softmax_over_the_last_axis_needs_no_rows() -> None:
    body = "a = Exp(x) y = Softmax<axis = 2>(a)"
    assert_fires(make(X, body, opset=11), step, ["Exp", "Softmax"])


def test_old_softmax_over_several_axes_keeps_its_rows() -> None:
    model = make(X, "a = Exp(x) y = Softmax<axis = 1>(a)", opset=11)
    assert_refuses(model, step, "from 1 on, of 3")
