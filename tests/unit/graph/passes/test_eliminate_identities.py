"""Nodes that return their input go, where every bit is kept."""

from typing import Any

import numpy as np
import pytest

from tilewright.graph.passes.eliminate_identities import eliminate_identities as step
from unit.graph.passes.harness import apply, assert_fires, assert_refuses, f32, i64, make, ops

X = "float[N,4] x => float[N,4] y"


@pytest.mark.parametrize(
    ("body", "weights"),
    [
        ("a = Identity(x)", {}),
        ("a = Cast<to = 1>(x)", {}),
        ("a = Transpose<perm = [0, 1]>(x)", {}),
        ("a = Reshape(x, s)", {"s": i64(0, -1)}),
        ("a = Reshape(x, s)", {"s": i64(-1, 4)}),
        ("a = Flatten(x)", {}),
        ("a = Expand(x, s)", {"s": i64(1, 4)}),
        ("a = Slice(x, b, e)", {"b": i64(0), "e": i64(2**62)}),
        ("a = Pad(x, p)", {"p": i64(0, 0, 0, 0)}),
        ("a = Tile(x, r)", {"r": i64(1, 1)}),
        ("a = Concat<axis = 0>(x)", {}),
        ("a = Max(x)", {}),
        ("a = Sum(x)", {}),
        ("a = Split<num_outputs = 1>(x)", {}),
        ("a = Clip(x)", {}),
        ("a = Dropout(x)", {}),
        ("a = Dropout(x, r, t)", {"r": f32(0.5), "t": np.asarray(False)}),
        ("a = Mul(x, c)", {"c": f32(1.0)}),
        ("a = Mul(c, x)", {"c": f32([[1.0]])}),
        ("a = Mul(x, c)", {"c": f32([1.0, 1.0, 1.0, 1.0])}),
        ("a = Div(x, c)", {"c": f32(1.0)}),
        ("a = Add(x, c)", {"c": f32(-0.0)}),
        ("a = Sub(x, c)", {"c": f32(0.0)}),
        ("a = Pow(x, c)", {"c": f32(1.0)}),
    ],
)
def test_fires(body: str, weights: dict[str, Any]) -> None:
    assert_fires(make(X, body + " y = Exp(a)", **weights), step, ["Exp"])


@pytest.mark.parametrize(
    ("body", "weights", "reason"),
    [
        ("a = Add(x, c)", {"c": f32(0.0)}, "-0.0"),
        ("a = Sub(x, c)", {"c": f32(-0.0)}, "-0.0"),
        ("a = Add(x, c)", {"c": f32([0.0, -0.0, -0.0, -0.0])}, "-0.0"),
        (
            "b = Mul(x, c) a = Squeeze(b, z)",
            {"c": f32([[[1.0]]]), "z": i64(0)},
            "changes the shape",
        ),
        (
            "b = Mul(x, c) a = ReduceMax<keepdims=0>(b, z)",
            {"c": np.ones((3, 1, 1), np.float32), "z": i64(0)},
            "changes the shape",
        ),
    ],
)
def test_refuses(body: str, weights: dict[str, Any], reason: str) -> None:
    assert_refuses(make(X, body + " y = Exp(a)", **weights), step, reason)


@pytest.mark.parametrize(
    ("body", "weights"),
    [
        ("a = Slice(x, b, e, z, s)", {"b": i64(-1), "e": i64(-(2**62)), "z": i64(1), "s": i64(-1)}),
        ("a = Pad(x, p) ", {"p": i64(0, -1, 0, 1)}),
        ("a = Mul(x, c)", {"c": f32(2.0)}),
        ("a = Sub(c, x)", {"c": f32(0.0)}),
        ("a = Div(c, x)", {"c": f32(1.0)}),
        ("a = Clip(x, c)", {"c": f32(0.0)}),
    ],
)
def test_ignores(body: str, weights: dict[str, Any]) -> None:
    model = make(X, body + " y = Exp(a)", **weights)
    assert apply(model, step) == []


def test_dropout_of_unknown_or_real_training_stays() -> None:
    body = "a = Dropout(x, r, t) y = Exp(a)"
    model = make(f"bool t, {X}", body, r=f32(0.0))
    assert_refuses(model, step, "only at run time")
    assert_refuses(make(X, body, r=f32(0.0), t=np.asarray(True)), step, "training mode")


def test_dropout_whose_mask_is_read_stays() -> None:
    model = make("float[4] x => float[4] y, bool[4] m", "y, m = Dropout(x)")
    assert_refuses(model, step, "another of its outputs")


def test_integers_take_plus_zero_and_truth_takes_and_true() -> None:
    model = make("int32[4] x => int32[4] y", "a = Add(x, c) y = Neg(a)", c=np.asarray(0, np.int32))
    assert_fires(model, step, ["Neg"])
    model = make("bool[4] x => bool[4] y", "a = And(c, x) y = Not(a)", c=np.asarray(True))
    assert_fires(model, step, ["Not"])


def test_reshape_that_checks_a_size_stays() -> None:
    model = make("float[N,M] x => float[N,4] y", "a = Reshape(x, s) y = Exp(a)", s=i64(0, 4))
    apply(model, step, feeds={"x": np.ones((3, 4), np.float32)})
    assert ops(model) == ["Reshape", "Exp"]


def test_special_values_survive() -> None:
    feeds = {"x": f32(np.nan, -0.0, np.inf, -np.inf)}
    model = make(
        "float[4] x => float[4] y",
        "a = Mul(x, c) b = Sub(a, z) y = Div(c, b)",
        c=f32(1.0),
        z=f32(0.0),
    )
    assert_fires(model, step, ["Div"], feeds=feeds)


def test_outputs_keep_their_names_and_stay_apart_from_inputs() -> None:
    model = make(
        "float[4] x => float[4] y, float[4] z",
        "a = Exp(x) y = Identity(a) z = Mul(x, c)",
        c=f32(1.0),
    )
    assert_fires(model, step, ["Exp", "Identity"])
    assert model.graph.outputs[1].name == "z"


def test_branch_that_returns_an_outer_value_keeps_its_identity() -> None:
    model = make(
        "bool c, float[4] x => float[4] y",
        "a = Exp(x) y = If(c) <then_branch = t () => (float[4] p) { p = Identity(a) },"
        " else_branch = f () => (float[4] q) { q = Neg(a) }>",
    )
    assert_fires(model, step, ["Exp", "If", "Identity", "Neg"])
