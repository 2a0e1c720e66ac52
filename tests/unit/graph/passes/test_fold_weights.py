"""BatchNormalization, scales, shifts and pads become part of the weights before or after them."""

from typing import Any

import numpy as np
import pytest

from tilewright.graph.passes.fold_batch_normalization import fold_batch_normalization
from tilewright.graph.passes.fold_pads import fold_pads
from tilewright.graph.passes.fold_scale import fold_scale
from unit.graph.passes.harness import (
    assert_fires,
    assert_ignores,
    assert_refuses,
    f32,
    i64,
    make,
    noise,
)

X = "float[N,4,5,5] x => float[N,6,H,K] y"
BN = "y = BatchNormalization(c, g, b, m, v)"


def parameters(count: int) -> dict[str, Any]:
    return {
        "g": noise(count, seed=1),
        "b": noise(count, seed=2),
        "m": noise(count, seed=3),
        "v": np.abs(noise(count, seed=4)),
    }


# --- BatchNormalization ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signature", "producer", "weights", "expected"),
    [
        (X, "c = Conv(x, w)", {"w": noise(6, 4, 3, 3)}, "Conv"),
        (X, "c = Conv(x, w, u)", {"w": noise(6, 4, 3, 3), "u": noise(6)}, "Conv"),
        (X, "c = Conv<group = 2>(x, w)", {"w": noise(6, 2, 3, 3)}, "Conv"),
        (X, "c = ConvTranspose(x, w)", {"w": noise(4, 6, 3, 3)}, "ConvTranspose"),
        (
            X,
            "c = ConvTranspose<group = 2>(x, w, u)",
            {"w": noise(4, 3, 3, 3), "u": noise(6)},
            "ConvTranspose",
        ),
        ("float[N,4] x => float[N,6] y", "c = Gemm(x, w)", {"w": noise(4, 6)}, "Gemm"),
        (
            "float[N,4] x => float[N,6] y",
            "c = Gemm<transB = 1, alpha = 0.5, beta = 2.0>(x, w, u)",
            {"w": noise(6, 4), "u": noise(1, 6)},
            "Gemm",
        ),
        ("float[N,4] x => float[N,6] y", "c = MatMul(x, w)", {"w": noise(4, 6)}, "Gemm"),
    ],
)
def test_batch_normalization(
    signature: str, producer: str, weights: dict[str, Any], expected: str
) -> None:
    model = make(signature, f"{producer} {BN}", **weights, **parameters(6))
    assert_fires(model, fold_batch_normalization, [expected])


def test_zero_scale_keeps_nan_of_the_data() -> None:
    feeds = {"x": np.where(noise(1, 4, 5, 5) > 1, np.nan, 1).astype(np.float32)}
    zero = parameters(6) | {"g": np.zeros(6, np.float32)}
    model = make(X, "c = Conv(x, w) " + BN, w=noise(6, 4, 3, 3), **zero)
    assert_fires(model, fold_batch_normalization, ["Conv"], feeds=feeds)


@pytest.mark.parametrize(
    ("body", "change", "reason"),
    [
        ("c = Conv(x, w) " + BN, {"v": np.full(6, -1, np.float32)}, "factor is NaN"),
        (
            "c = Conv(x, w) " + BN,
            {"w": np.full((6, 4, 3, 3), np.inf, np.float32)},
            "NaN or infinite",
        ),
        ("c = Conv(x, w) " + BN, {"g": np.full(6, 3e38, np.float32)}, "not finite"),
        (
            "c = Conv(x, w) " + BN,
            {"w": np.full((6, 4, 3, 3), 1e-30, np.float32), "g": np.full(6, 1e-30, np.float32)},
            "vanishes",
        ),
        ("k = Exp(w) c = Conv(x, k) " + BN, {}, "weights are not constant"),
        ("k = Exp(g) c = Conv(x, w, k) " + BN, {}, "bias is not constant"),
        ("c = Conv(x, w) k = Exp(g) y = BatchNormalization(c, k, b, m, v)", {}, "parameters"),
    ],
)
def test_batch_normalization_refuses(body: str, change: dict[str, Any], reason: str) -> None:
    weights = {"w": noise(6, 4, 3, 3)} | parameters(6) | change
    assert_refuses(make(X, body, **weights), fold_batch_normalization, reason)


def test_batch_normalization_of_training_or_shared_or_batched_is_refused() -> None:
    weights = {"w": noise(6, 4, 3, 3)} | parameters(6)
    training = "c = Conv(x, w) y, p, q = BatchNormalization<training_mode = 1>(c, g, b, m, v)"
    assert_refuses(make(X, training, **weights), fold_batch_normalization, "training mode")
    shared = make(
        "float[N,4,5,5] x => float[N,6,3,3] y, float[N,6,3,3] c", "c = Conv(x, w) " + BN, **weights
    )
    assert_refuses(shared, fold_batch_normalization, "a graph output")
    batched = make(
        "float[N,6,4] x => float[N,6,6] y",
        "c = MatMul(x, w) " + BN,
        **(weights | {"w": noise(4, 6)}),
    )
    assert_refuses(batched, fold_batch_normalization, "not those of the MatMul")


def test_batch_normalization_of_anything_else_stays() -> None:
    model = make("float[N,6,3] x => float[N,6,3] y", "c = Relu(x) " + BN, **parameters(6))
    assert_ignores(model, fold_batch_normalization)


# --- scales and shifts ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "constant"),
    [
        ("y = Mul(c, k)", noise(1, 6, 1, 1)),
        ("y = Mul(k, c)", noise(6, 1, 1)),
        ("y = Mul(c, k)", f32(0.5)),
        ("y = Mul(c, k)", f32(0.0)),
        ("y = Div(c, k)", f32([[[0.5]]])),
        ("y = Add(c, k)", noise(6, 1, 1)),
        ("y = Add(k, c)", f32(2.0)),
        ("y = Sub(c, k)", noise(6, 1, 1)),
        ("p = Mul(c, k) y = Add(p, k)", noise(6, 1, 1)),
    ],
)
def test_scale(body: str, constant: object) -> None:
    for bias in ("", ", u"):
        model = make(X, f"c = Conv(x, w{bias}) {body}", w=noise(6, 4, 3, 3), u=noise(6), k=constant)
        assert_fires(model, fold_scale, ["Conv"])


def test_scale_of_matrices() -> None:
    signature = "float[N,3,4] x => float[N,3,6] y"
    model = make(signature, "c = MatMul(x, w) y = Mul(c, k)", w=noise(4, 6), k=noise(6))
    assert_fires(model, fold_scale, ["MatMul"])
    model = make(signature, "c = MatMul(x, w) y = Add(c, k)", w=noise(4, 6), k=noise(6))
    assert_ignores(model, fold_scale)
    model = make(
        "float[N,4] x => float[N,6] y",
        "c = Gemm<beta = 2.0>(x, w, k) y = Add(c, k)",
        w=noise(4, 6),
        k=noise(6),
    )
    assert_fires(model, fold_scale, ["Gemm"])


@pytest.mark.parametrize(
    ("body", "constant", "reason"),
    [
        ("y = Add(c, k)", noise(1, 6, 3, 3), "other axes"),
        ("y = Add(c, k)", noise(3), "other axes"),
        ("y = Mul(c, k)", noise(3, 6, 1, 1), "other axes"),
        ("z = Add(c, k) y = Squeeze(z, o)", noise(1, 1, 6, 1, 1), "raises the rank"),
        ("y = Mul(c, k)", f32(np.inf), "NaN or infinite"),
        ("y = Div(c, k)", f32(0.0), "divides by zero"),
        ("y = Mul(c, k)", f32(3e38), "not finite"),
        ("y = Mul(c, k)", f32(1e-44), "vanishes"),
    ],
)
def test_scale_refuses(body: str, constant: object, reason: str) -> None:
    model = make(X, "c = Conv(x, w) " + body, w=noise(6, 4, 3, 3) * 10, k=constant, o=i64(0))
    feeds = {"x": noise(3, 4, 5, 5)}
    assert_refuses(model, fold_scale, reason, feeds=feeds)


def test_scale_of_a_shared_result_or_row_bias_is_refused() -> None:
    model = make(
        "float[N,4,5,5] x => float[N,6,3,3] y, float[N,6,3,3] c",
        "c = Conv(x, w) y = Mul(c, k)",
        w=noise(6, 4, 3, 3),
        k=f32(2.0),
    )
    assert_refuses(model, fold_scale, "a graph output")
    model = make(
        "float[3,4] x => float[3,6] y",
        "c = Gemm(x, w, u) y = Mul(c, k)",
        w=noise(4, 6),
        u=noise(3, 6),
        k=f32(2.0),
    )
    assert_refuses(model, fold_scale, "row to row")
    model = make(
        "float[N,3,4] x => float[N,3,6] y",
        "c = MatMul(x, w) y = Mul(c, k)",
        w=noise(1, 4, 6),
        k=f32(2.0),
    )
    assert_refuses(model, fold_scale, "no matrix")


def test_integers_are_refused() -> None:
    model = make(
        "int32[N,4] x => int32[N,6] y",
        "c = Gemm(x, w) y = Add(c, k)",
        w=np.ones((4, 6), np.int32),
        k=np.asarray(2, np.int32),
    )
    assert_refuses(model, fold_scale, "integers wrap")


# --- pads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "pads"),
    [
        ("p = Pad(x, w4) y = Conv(p, w)", [1, 0, 2, 3]),
        ("p = Pad(x, w4, zero) y = Conv<pads = [1, 1, 0, 0]>(p, w)", [2, 1, 2, 3]),
        ('p = Pad(x, w2, , axes) y = Conv<auto_pad = "VALID">(p, w)', [3, 1, 4, 2]),
    ],
)
def test_pads(body: str, pads: list[int]) -> None:
    model = make(
        X,
        body,
        w=noise(6, 4, 3, 3),
        w4=i64(0, 0, 1, 0, 0, 0, 2, 3),
        w2=i64(1, 3, 2, 4),
        axes=i64(-1, 2),
        zero=f32(0.0),
    )
    assert_fires(model, fold_pads, ["Conv"])
    assert list(model.graph[0].attributes["pads"].value) == pads


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("p = Pad(x, w4, one) y = Conv(p, w)", "zeros"),
        ('p = Pad<mode = "reflect">(x, w4) y = Conv(p, w)', "reflect"),
        ('p = Pad(x, w4) y = Conv<auto_pad = "SAME_UPPER">(p, w)', "by itself"),
        ("p = Pad(x, batch) y = Conv(p, w)", "batch or channels"),
        ("p = Pad(x, cut) y = Conv(p, w)", "cuts"),
        ("n = Neg(w4) d = Neg(n) p = Pad(x, d) y = Conv(p, w)", "not known"),
        ("p = Pad(x, w4) z = Exp(p) y = Conv(p, w)", "another reader"),
    ],
)
def test_pads_refuse(body: str, reason: str) -> None:
    model = make(
        X.replace(" y", " y, float[N,4,H,K] z") if "z =" in body else X,
        body,
        w=noise(6, 4, 3, 3),
        w4=i64(0, 0, 1, 0, 0, 0, 2, 3),
        one=f32(1.0),
        batch=i64(1, 0, 0, 0, 0, 0, 0, 0),
        cut=i64(0, 0, -1, 0, 0, 0, 0, 0),
    )
    assert_refuses(model, fold_pads, reason)


def test_pad_before_pooling_stays() -> None:
    model = make(
        "float[N,4,5,5] x => float[N,4,H,K] y",
        "p = Pad(x, w) y = AveragePool<kernel_shape = [2, 2]>(p)",
        w=i64(0, 0, 1, 0, 0, 0, 0, 0),
    )
    assert_ignores(model, fold_pads)
