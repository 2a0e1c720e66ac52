"""LayerNormalization and RMSNormalization from their arithmetic."""

from typing import Any

import numpy as np
import pytest

from tilewright.graph.passes.recognise_normalization import recognise_normalization as step
from unit.graph.passes.harness import (
    apply,
    assert_fires,
    assert_refuses,
    f32,
    i64,
    make,
    noise,
    ops,
)

X = "float[N,3,4] x => float[N,3,4] y"
W = {
    "axes": i64(-1),
    "eps": f32(1e-5),
    "two": f32(2.0),
    "one": f32(1.0),
    "g": noise(4, seed=1),
    "b": noise(4, seed=2),
}
MEAN = "m = ReduceMean(x, axes) d = Sub(x, m) "
ROOT = "q = Pow(d, two) v = ReduceMean(q, axes) e = Add(v, eps) r = Sqrt(e) "
SQUARE = "q = Mul(x, x) v = ReduceMean(q, axes) e = Add(v, eps) r = Sqrt(e) "


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        (MEAN + ROOT + "n = Div(d, r) s = Mul(n, g) y = Add(s, b)", 3),
        (MEAN + ROOT + "n = Div(d, r) s = Mul(g, n) y = Add(b, s)", 3),
        (MEAN + ROOT + "n = Div(d, r) y = Mul(n, g)", 2),
        (MEAN + ROOT + "y = Div(d, r)", 2),
        (MEAN + ROOT + "n = Div(d, r) y = Add(n, b)", 3),
        (MEAN + ROOT + "i = Reciprocal(r) n = Mul(d, i) s = Mul(n, g) y = Add(s, b)", 3),
        (MEAN + ROOT + "i = Div(one, r) n = Mul(i, d) s = Mul(n, g) y = Add(s, b)", 3),
        (MEAN + ROOT.replace("Pow(d, two)", "Mul(d, d)") + "n = Div(d, r) y = Mul(n, g)", 2),
        ("m = ReduceMean(x, axes) d = Sub(x, m) f = Sub(x, m) " + ROOT + "y = Div(f, r)", 2),
    ],
)
def test_layer_normalization(body: str, inputs: int) -> None:
    model = make(X, body, **W)
    assert_fires(model, step, ["LayerNormalization"])
    assert len(model.graph[0].inputs) == inputs


@pytest.mark.parametrize(
    "body",
    [
        SQUARE + "n = Div(x, r) y = Mul(n, g)",
        SQUARE + "i = Reciprocal(r) n = Mul(x, i) y = Mul(g, n)",
        SQUARE + "i = Div(one, r) n = Mul(x, i) y = Mul(n, g)",
        SQUARE.replace("Mul(x, x)", "Pow(x, two)") + "y = Div(x, r)",
    ],
)
def test_rms_normalization(body: str) -> None:
    assert_fires(make(X, body, **W), step, ["RMSNormalization"])


def test_several_trailing_axes() -> None:
    weights = W | {"axes": i64(1, 2), "g": noise(3, 4), "b": noise(3, 4)}
    body = MEAN + ROOT + "n = Div(d, r) s = Mul(n, g) y = Add(s, b)"
    model = make(X, body, **weights)
    assert_fires(model, step, ["LayerNormalization"])
    assert model.graph[0].attributes["axis"].value == -2


def test_parameters_with_leading_ones_are_flattened() -> None:
    weights = W | {"g": noise(1, 1, 4), "b": noise(1, 4)}
    body = MEAN + ROOT + "n = Div(d, r) s = Mul(n, g) y = Add(s, b)"
    assert_fires(make(X, body, **weights), step, ["LayerNormalization"])


def test_parameters_of_another_shape_stay_outside() -> None:
    weights = W | {"g": noise(3, 1)}
    model = make(X, MEAN + ROOT + "n = Div(d, r) y = Mul(n, g)", **weights)
    assert_fires(model, step, ["LayerNormalization", "Mul"])
    model = make(
        X, MEAN + ROOT + "n = Div(d, r) s = Mul(n, g) y = Add(s, b)", **(W | {"b": noise(3, 1)})
    )
    assert_fires(model, step, ["LayerNormalization", "Add"])


def test_normalised_value_that_is_an_output_is_not_swallowed() -> None:
    body = MEAN + ROOT + "n = Div(d, r) y = Mul(n, g)"
    model = make("float[N,3,4] x => float[N,3,4] y, float[N,3,4] n", body, **W)
    assert_fires(model, step, ["LayerNormalization", "Mul"])


def test_special_rows() -> None:
    feeds = {"x": f32([[np.nan, 1, 2, 3], [np.inf, 1, 2, 3], [5, 5, 5, 5]])[None]}
    model = make(X, MEAN + ROOT + "n = Div(d, r) s = Mul(n, g) y = Add(s, b)", **W)
    assert_fires(model, step, ["LayerNormalization"], feeds=feeds)


@pytest.mark.parametrize(
    ("body", "weights", "reason"),
    [
        (MEAN + ROOT + "y = Div(d, r)", {"axes": i64(1)}, "not the last ones"),
        (
            "m = ReduceMean(x, other) d = Sub(x, m) " + ROOT + "y = Div(d, r)",
            {"other": i64(1)},
            "different axes",
        ),
        (MEAN + ROOT + "y = Div(x, r)", {}, "not what the variance is taken of"),
        (SQUARE + "z = Exp(x) y = Div(z, r)", {}, "not what the mean square is taken of"),
        (MEAN + ROOT + "y = Div(d, r)", {"eps": f32(-1e-3)}, "epsilon is"),
        (MEAN + ROOT + "y = Div(d, r)", {"eps": f32([[[[1e-3]]]])}, "changes the shape"),
    ],
)
def test_refuses(body: str, weights: dict[str, Any], reason: str) -> None:
    signature = X
    if "changes" in reason:
        signature = "float[N,3,4] x => float[1,N,3,4] y"
    assert_refuses(make(signature, body, **(W | weights)), step, reason)


def test_refuses_other_types() -> None:
    half = {name: a.astype(np.float16) if a.dtype == np.float32 else a for name, a in W.items()}
    body = MEAN + ROOT + "y = Div(d, r)"
    model = make("float16[N,3,4] x => float16[N,3,4] y", body, **half)
    assert_refuses(model, step, "float16")


def test_refuses_shared_and_dynamic() -> None:
    body = MEAN + ROOT + "y = Div(d, r)"
    model = make("float[N,3,4] x => float[N,3,4] y, float[N,3,1] v", body, **W)
    assert_refuses(model, step, "a graph output")
    model = make("float[N,C] x => float[N,C] y", body, **W)
    assert_refuses(model, step, "must be static")


def test_population_statistics_of_a_batch_are_left_alone() -> None:
    model = make(
        "float[N,4] x => float[N,4] y", "v = Exp(x) e = Add(v, eps) r = Sqrt(e) y = Div(x, r)", **W
    )
    apply(model, step)
    assert ops(model) == ["Exp", "Add", "Sqrt", "Div"]
