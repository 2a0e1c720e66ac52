"""Scaled dot product attention, only where it means exactly the same."""

import numpy as np
import pytest

from tilewright.graph.passes.base import PassContext
from tilewright.graph.passes.recognise_attention import recognise_attention as step
from tilewright.graph.passes.value_range import value_range
from unit.graph.passes.harness import assert_fires, assert_refuses, f32, make

QKV = "float[B,2,S,4] q, float[B,2,T,4] k, float[B,2,T,5] v"
SIGNATURE = f"{QKV} => float[B,2,S,5] y"
TURN = "t = Transpose<perm = [0, 1, 3, 2]>(k) "
TAIL = "p = Softmax(s) y = MatMul(p, v)"
W = {"c": f32(0.5), "n": f32(2.0)}


@pytest.mark.parametrize(
    ("body", "scale"),
    [
        (TURN + "s = MatMul(q, t) " + TAIL, 1.0),
        (TURN + "m = MatMul(q, t) s = Mul(m, c) " + TAIL, 0.5),
        (TURN + "m = MatMul(q, t) s = Div(m, n) " + TAIL, 0.5),
        (TURN + "a = Mul(c, q) s = MatMul(a, t) " + TAIL, 0.5),
        (TURN + "a = Mul(q, c) b = Mul(t, c) s = MatMul(a, b) " + TAIL, 0.25),
        (TURN + "z = Add(q, zero) s = MatMul(z, t) " + TAIL, 1.0),
    ],
)
def test_scales(body: str, scale: float) -> None:
    model = make(SIGNATURE, body, **W, zero=f32(0.0))
    assert_fires(model, step, ["Attention"])
    assert model.graph[0].attributes["scale"].value == pytest.approx(scale)


def test_keys_behind_one_transposition() -> None:
    model = make(
        "float[B,2,S,4] q, float[B,T,2,4] k, float[B,2,T,5] v => float[B,2,S,5] y",
        "t = Transpose<perm = [0, 2, 3, 1]>(k) s = MatMul(q, t) " + TAIL,
    )
    assert_fires(model, step, ["Transpose", "Attention"])
    assert list(model.graph[0].attributes["perm"].value) == [0, 2, 1, 3]


@pytest.mark.parametrize(
    "mask",
    [
        "i = Cast<to = 1>(b) j = Sub(one, i) w = Mul(j, low)",
        "w = Where(b, zero, low)",
    ],
)
def test_masks_that_are_proven_finite(mask: str) -> None:
    model = make(
        SIGNATURE.replace(" =>", ", bool[B,1,1,T] b =>"),
        TURN + mask + " m = MatMul(q, t) a = Mul(m, c) s = Add(a, w) " + TAIL,
        **W,
        one=f32(1.0),
        low=f32(-1e4),
        zero=f32(0.0),
    )
    kept = ["Cast", "Sub", "Mul"] if "Cast" in mask else ["Where"]
    assert_fires(model, step, [*kept, "Attention"])


def test_mask_that_may_forbid_every_key() -> None:
    signature = SIGNATURE.replace(" =>", ", float[S,T] w =>")
    body = TURN + "m = MatMul(q, t) s = Add(w, m) " + TAIL
    assert_refuses(make(signature, body), step, "-Inf everywhere")
    assert_fires(make(signature, body), step, ["Attention"], assume_finite=True)


def test_guard_against_nan() -> None:
    body = (
        TURN + "s = MatMul(q, t) p = Softmax(s) i = IsNaN(p) g = Where(i, zero, p) y = MatMul(g, v)"
    )
    assert_refuses(make(SIGNATURE, body, zero=f32(0.0)), step, "hides NaN")
    model = make(SIGNATURE, body, zero=f32(0.0))
    assert_fires(model, step, ["Attention"], assume_finite=True)


@pytest.mark.parametrize(
    ("signature", "body", "reason"),
    [
        (
            SIGNATURE.replace("float[B,2,T,4] k", "float[B,2,4,T] k"),
            "s = MatMul(q, k) " + TAIL,
            "not transposed",
        ),
        (SIGNATURE.replace("B,2,T", "B,1,T"), TURN + "s = MatMul(q, t) " + TAIL, "heads"),
        (SIGNATURE, TURN + "s = MatMul(q, t) p = Softmax<axis = 2>(s) y = MatMul(p, v)", "axis 2"),
        (SIGNATURE, TURN + "m = MatMul(q, t) s = Mul(m, low) " + TAIL, "negative"),
        (
            "float[2,S,4] q, float[2,T,4] k, float[2,T,5] v => float[2,S,5] y",
            "t = Transpose<perm = [0, 2, 1]>(k) s = MatMul(q, t) " + TAIL,
            "four dims",
        ),
        (
            SIGNATURE.replace(" =>", ", float[S,1] w =>"),
            TURN + "m = MatMul(q, t) s = Add(m, w) " + TAIL,
            "cover all keys",
        ),
        (
            SIGNATURE.replace(" =>", ", float[T] w =>"),
            TURN + "m = MatMul(q, t) s = Add(m, w) " + TAIL,
            "two to four",
        ),
        (SIGNATURE, TURN + "s = Add(q, q) p = Softmax(s) y = MatMul(p, v)", "not over scores"),
    ],
)
def test_refuses(signature: str, body: str, reason: str) -> None:
    model = make(signature, body, low=f32(-1.0))
    if reason == "not over scores":
        model = make(
            "float[B,2,S,5] q, float[B,2,T,4] k, float[B,2,5,5] v => float[B,2,S,5] y",
            body.replace(TURN, ""),
        )
    assert_refuses(model, step, reason, assume_finite=True)


def test_probabilities_that_are_an_output_stay() -> None:
    model = make(f"{QKV} => float[B,2,S,5] y, float[B,2,S,T] p", TURN + "s = MatMul(q, t) " + TAIL)
    assert_refuses(model, step, "a graph output")
    model = make(f"{QKV} => float[B,2,S,5] y, float[B,2,4,T] t", TURN + "s = MatMul(q, t) " + TAIL)
    assert_refuses(model, step, "a graph output")


def test_nan_and_infinite_scores_pass() -> None:
    q = f32([[[[np.nan, 0, 0, 0], [1e38, 1e38, 0, 0], [1, 2, 3, 4]]] * 2])[0][None]
    feeds = {
        "q": q,
        "k": np.ones((1, 2, 2, 4), np.float32) * 10,
        "v": np.ones((1, 2, 2, 5), np.float32),
    }
    model = make(SIGNATURE, TURN + "s = MatMul(q, t) " + TAIL)
    assert_fires(model, step, ["Attention"], feeds=feeds)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = Cast<to = 1>(b)", (0.0, 1.0)),
        ("f = Cast<to = 1>(b) g = Mul(f, big) y = Add(g, big)", None),
        ("f = Cast<to = 1>(b) g = Sub(f, c) y = Neg(g)", (-0.5, 0.5)),
        ("f = Cast<to = 1>(b) h = Mul(f, inf) y = Identity(h)", None),
        ("f = Cast<to = 1>(b) h = Exp(f) y = Identity(h)", None),
        ("u = Unsqueeze(b, z) w = Where(u, c, big) y = Squeeze(w, z)", (0.5, 3e38)),
    ],
)
def test_ranges(body: str, expected: tuple[float, float] | None) -> None:
    model = make(
        "bool[4] b => float[4] y",
        body,
        c=f32(0.5),
        big=f32(3e38),
        inf=f32(np.inf),
        z=np.asarray([0], np.int64),
    )
    found = value_range(PassContext(model=model), model.graph.outputs[0])
    assert found == (None if expected is None else pytest.approx(expected))
