"""Gelu, Swish, HardSigmoid and HardSwish from their arithmetic."""

import math

import numpy as np
import pytest

from tilewright.graph.passes.recognise_gelu import recognise_gelu
from tilewright.graph.passes.recognise_hard_activations import recognise_hard_activations
from tilewright.graph.passes.recognise_swish import recognise_swish
from unit.graph.passes.harness import (
    apply,
    assert_fires,
    assert_ignores,
    assert_refuses,
    f32,
    make,
    ops,
)

X = "float[N,4] x => float[N,4] y"
GELU = {
    "half": f32(0.5),
    "one": f32(1.0),
    "root": f32(math.sqrt(2)),
    "inverse": f32(math.sqrt(0.5)),
    "cubic": f32(0.044715),
    "outer": f32(math.sqrt(2 / math.pi)),
    "two": f32(2.0),
    "three": f32(3.0),
}
ERF = "d = Div(x, root) e = Erf(d) a = Add(e, one) "
TANH = "t = Tanh(u) a = Add(t, one) h = Mul(x, half) y = Mul(h, a)"
FEEDS = {"x": f32([np.nan, np.inf, -np.inf, -0.0], [-3.0, 0.3, 2.0, 1e20])}

# --- Gelu -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "form"),
    [
        (ERF + "m = Mul(x, a) y = Mul(m, half)", "none"),
        (ERF + "h = Mul(x, half) y = Mul(h, a)", "none"),
        (ERF + "h = Mul(a, half) y = Mul(x, h)", "none"),
        (ERF + "m = Mul(a, x) y = Div(m, two)", "none"),
        ("d = Mul(inverse, x) e = Erf(d) a = Add(one, e) m = Mul(x, a) y = Mul(half, m)", "none"),
        ("c = Pow(x, three) v = Mul(c, cubic) w = Add(x, v) u = Mul(w, outer) " + TANH, "tanh"),
        (
            "q = Mul(x, x) c = Mul(q, x) v = Mul(cubic, c) w = Add(v, x) u = Mul(outer, w) " + TANH,
            "tanh",
        ),
        (
            "p = Mul(cubic, x) q = Mul(x, p) c = Mul(x, q) w = Add(x, c) u = Mul(outer, w) " + TANH,
            "tanh",
        ),
        (
            "q = Pow(x, two) c = Mul(q, cubic) w = Add(c, one) s = Mul(x, outer) u = Mul(s, w) "
            + TANH,
            "tanh",
        ),
    ],
)
def test_gelu(body: str, form: str) -> None:
    model = make(X, body, **GELU)
    assert_fires(model, recognise_gelu, ["Gelu"])
    assert model.graph[0].attributes["approximate"].value == form


def test_gelu_behind_an_addition() -> None:
    """The operand itself is a sum, which must not be taken for the 1 + Erf(..)."""
    body = "b = Add(x, two) d = Div(b, root) e = Erf(d) a = Add(e, one) m = Mul(b, a)"
    model = make(X, body + " y = Mul(m, half)", **GELU)
    assert_fires(model, recognise_gelu, ["Add", "Gelu"])


def test_gelu_of_a_gate() -> None:
    body = ERF + "h = Mul(x, half) g = Mul(h, a) y = Mul(g, z)"
    model = make("float[N,4] x, float[N,4] z => float[N,4] y", body, **GELU)
    assert_fires(model, recognise_gelu, ["Gelu", "Mul"])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (ERF + "m = Mul(x, a) y = Mul(m, two)", "instead of 0.5"),
        ("d = Div(x, two) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)", "sqrt(2)"),
        ("c = Pow(x, three) v = Mul(c, half) w = Add(x, v) u = Mul(w, outer) " + TANH, "0.044715"),
        (
            "c = Pow(x, three) v = Mul(c, cubic) w = Add(x, v) u = Mul(w, two) " + TANH,
            "sqrt(2 / pi)",
        ),
        (ERF + "m = Mul(x, a) y = Mul(m, deep)", "changes the shape"),
    ],
)
def test_gelu_refuses(body: str, reason: str) -> None:
    signature = X if "deep" not in body else "float[N,4] x => float[1,N,4] y"
    weights = GELU | ({"deep": f32([[[0.5]]])} if "deep" in body else {})
    assert_refuses(make(signature, body, **weights), recognise_gelu, reason)


def test_gelu_whose_middle_is_an_output_or_read_elsewhere() -> None:
    body = ERF + "m = Mul(x, a) y = Mul(m, half)"
    model = make("float[N,4] x => float[N,4] y, float[N,4] e", body, **GELU)
    assert_refuses(model, recognise_gelu, "a graph output")
    model = make("float[N,4] x => float[N,4] y, float[N,4] z", body + " z = Neg(e)", **GELU)
    assert_refuses(model, recognise_gelu, "another reader")


def test_gelu_whose_middle_a_branch_captures() -> None:
    body = (
        ERF + "m = Mul(x, a) y = Mul(m, half) z = If(c) <then_branch = t () => (float[2,4] p)"
        " { p = Neg(e) }, else_branch = f () => (float[2,4] q) { q = Abs(x) }>"
    )
    model = make("bool c, float[2,4] x => float[2,4] y, float[2,4] z", body, **GELU)
    assert_refuses(model, recognise_gelu, "another reader")


def test_gelu_in_a_branch() -> None:
    body = (
        "y = If(c) <then_branch = t () => (float[2,4] p) {"
        + ERF
        + "m = Mul(x, a) p = Mul(m, half) }, else_branch = f () => (float[2,4] q) { q = Abs(x) }>"
    )
    model = make("bool c, float[2,4] x => float[2,4] y", body, **GELU)
    assert_fires(model, recognise_gelu, ["If", "Gelu", "Abs"])


def test_gelu_of_other_operands_is_no_gelu() -> None:
    body = "d = Div(z, root) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)"
    model = make("float[N,4] x, float[N,4] z => float[N,4] y", body, **GELU)
    assert_ignores(model, recognise_gelu)


def test_gelu_keeps_special_values() -> None:
    model = make(X, ERF + "m = Mul(x, a) y = Mul(m, half)", **GELU)
    assert_fires(model, recognise_gelu, ["Gelu"], feeds=FEEDS)


# --- Swish ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "alpha"),
    [
        ("s = Sigmoid(x) y = Mul(x, s)", 1.0),
        ("s = Sigmoid(x) y = Mul(s, x)", 1.0),
        ("a = Mul(x, c) s = Sigmoid(a) y = Mul(x, s)", 1.702),
        ("a = Div(x, c) s = Sigmoid(a) y = Mul(s, x)", 1 / 1.702),
    ],
)
def test_swish(body: str, alpha: float) -> None:
    model = make(X, body, c=f32(1.702))
    assert_fires(model, recognise_swish, ["Swish"], feeds=FEEDS)
    assert model.graph[0].attributes["alpha"].value == pytest.approx(alpha, rel=1e-6)


def test_swish_refuses() -> None:
    model = make("float[N,4] x => float[N,4] y, float[N,4] s", "s = Sigmoid(x) y = Mul(x, s)")
    assert_refuses(model, recognise_swish, "a graph output")
    body = "s = Sigmoid(x) z = Neg(s) y = Mul(x, s)"
    model = make("float[N,4] x => float[N,4] y, float[N,4] z", body)
    assert_refuses(model, recognise_swish, "another reader")
    body = "a = Mul(x, c) s = Sigmoid(a) y = Mul(x, s)"
    model = make("float[4] x => float[1,4] y", body, c=f32([[2.0]]))
    assert_refuses(model, recognise_swish, "changes the shape")
    model = make(X, body, c=f32(np.inf))
    assert_refuses(model, recognise_swish, "alpha is inf")


def test_gate_is_no_swish() -> None:
    model = make("float[N,4] x, float[N,4] z => float[N,4] y", "s = Sigmoid(z) y = Mul(x, s)")
    assert_ignores(model, recognise_swish)


# --- HardSigmoid, HardSwish -----------------------------------------------------------------------

HARD = {
    "zero": f32(0.0), "one": f32(1.0), "three": f32(3.0), "six": f32(6.0), "half": f32(0.5),
    "sixth": f32(1 / 6), "two": f32(2.0), "low": f32(-1.0),
}  # fmt: skip
RELU6 = "a = Add(x, three) c = Clip(a, zero, six) "


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (RELU6 + "m = Mul(x, c) y = Div(m, six)", "HardSwish"),
        (RELU6 + "m = Mul(x, c) y = Mul(m, sixth)", "HardSwish"),
        (RELU6 + "d = Div(c, six) y = Mul(x, d)", "HardSwish"),
        ("h = HardSigmoid<alpha = 0.16666667, beta = 0.5>(x) y = Mul(h, x)", "HardSwish"),
        ("s = Mul(x, sixth) a = Add(s, half) c = Clip(a, zero, one) y = Mul(x, c)", "HardSwish"),
        (RELU6 + "y = Div(c, six)", "HardSigmoid"),
        (RELU6 + "y = Mul(sixth, c)", "HardSigmoid"),
        ("s = Mul(x, two) a = Sub(s, half) y = Clip(a, zero, one)", "HardSigmoid"),
        ("a = Add(half, x) y = Clip(a, zero, one)", "HardSigmoid"),
    ],
)
def test_hard_activations(body: str, name: str) -> None:
    assert_fires(make(X, body, **HARD), recognise_hard_activations, [name])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (RELU6 + "m = Mul(x, c) y = Div(m, three)", "2 times HardSwish"),
        ("a = Add(x, two) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)", "slope"),
        (RELU6 + "y = Div(c, three)", "ends at 2"),
    ],
)
def test_hard_activations_refuse(body: str, reason: str) -> None:
    assert_refuses(make(X, body, **HARD), recognise_hard_activations, reason)


def test_hard_activations_of_narrow_floats_are_refused() -> None:
    half = {name: array.astype(np.float16) for name, array in HARD.items()}
    model = make("float16[4] x => float16[4] y", RELU6 + "y = Div(c, six)", **half)
    assert_refuses(model, recognise_hard_activations, "narrow")


def test_shared_ramp_is_refused() -> None:
    body = RELU6 + "m = Mul(x, c) y = Div(m, six) z = Neg(c)"
    model = make("float[N,4] x => float[N,4] y, float[N,4] z", body, **HARD)
    assert_refuses(model, recognise_hard_activations, "another reader")


@pytest.mark.parametrize(
    "body",
    [RELU6 + "y = Mul(c, c)", "a = Add(x, three) y = Clip(a, low, one)", RELU6 + "y = Exp(c)"],
)
def test_other_clips_stay(body: str) -> None:
    model = make(X, body, **HARD)
    before = ops(model)
    apply(model, recognise_hard_activations)
    assert ops(model) == before


def test_hard_swish_keeps_special_values() -> None:
    feeds = {"x": f32([np.nan, np.inf, -np.inf, -0.0], [-3.0, 0.3, 2.0, 9.0])}
    model = make(X, RELU6 + "d = Div(c, six) y = Mul(x, d)", **HARD)
    assert_fires(model, recognise_hard_activations, ["HardSwish"], feeds=feeds)
