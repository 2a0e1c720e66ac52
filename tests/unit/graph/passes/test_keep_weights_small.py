"""Weights of few bits stay small in products with floats, with the values that they had."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from tilewright.graph.passes.keep_weights_small import keep_weights_small
from tilewright.graph.passes.standard import STANDARD
from unit.graph.passes.harness import (
    assert_fires,
    assert_ignores,
    assert_refuses,
    f32,
    make,
    noise,
    ops,
)

RNG = np.random.default_rng(3)
W = RNG.integers(-127, 128, (8, 6)).astype(np.int8)
COLUMN = RNG.uniform(0.01, 0.02, 6).astype(np.float32)
IO = "float[n,8] x => float[n,6] y"


def attributes(model: ir.Model) -> dict[str, Any]:
    (found,) = [node for node in model.graph if node.op_type == "MatMulWeights"]
    return {name: one.value for name, one in found.attributes.items()}


def codes(model: ir.Model) -> npt.NDArray[Any]:
    (found,) = [node for node in model.graph if node.op_type == "MatMulWeights"]
    value = found.inputs[1]
    assert value is not None
    assert value.const_value is not None
    return value.const_value.numpy()


def test_a_scale_a_column() -> None:
    model = make(IO, "d = DequantizeLinear<axis=1>(w, s) y = MatMul(x, d)", w=W, s=COLUMN)
    (decision,) = assert_fires(model, keep_weights_small, ["DequantizeLinear", "MatMulWeights"][1:])
    assert decision.chosen == "weights stay in 8 bits, a scale for a column"
    assert attributes(model) == {"bits": 8, "block_size": 8, "zero": 0}
    assert codes(model).dtype == np.int8


def test_cast_times_a_scale_in_either_order() -> None:
    for body in ("p = Mul(c, s)", "p = Mul(s, c)"):
        text = f"c = Cast<to=1>(w) {body} y = MatMul(x, p)"
        for scale in (COLUMN, COLUMN.reshape(1, 6), f32(0.5)):
            assert_fires(make(IO, text, w=W, s=scale), keep_weights_small, ["MatMulWeights"])


def test_a_zero_point_for_all_is_an_attribute_and_others_are_an_input() -> None:
    text = "d = DequantizeLinear<axis=1>(w, s, z) y = MatMul(x, d)"
    unsigned = (W.astype(np.int16) + 128).astype(np.uint8)
    model = make(IO, text, w=unsigned, s=COLUMN, z=np.full(6, 128, np.uint8))
    assert_fires(model, keep_weights_small, ["MatMulWeights"])
    assert attributes(model)["zero"] == 128
    model = make(IO, text, w=W, s=COLUMN, z=np.arange(6, dtype=np.int8))
    assert_fires(model, keep_weights_small, ["MatMulWeights"])


@pytest.mark.parametrize("kind", ["int4", "uint4"])
@pytest.mark.parametrize("with_zeros", [False, True])
def test_four_bits_share_bytes(kind: str, with_zeros: bool) -> None:
    dtype = np.dtype(getattr(ml_dtypes, kind))
    low = -8 if kind == "int4" else 0
    w = RNG.integers(low, low + 16, (8, 6)).astype(np.int8).astype(dtype)
    zeros = RNG.integers(low, low + 16, (2, 6)).astype(np.int8).astype(dtype)
    scale = RNG.uniform(0.1, 0.2, (2, 6)).astype(np.float32)
    inputs = "w, s, z" if with_zeros else "w, s"
    text = f"d = DequantizeLinear<axis=0, block_size=4>({inputs}) y = MatMul(x, d)"
    weights = {"w": w, "s": scale, **({"z": zeros} if with_zeros else {})}
    model = make(IO, text, opset=21, **weights)
    (decision,) = assert_fires(model, keep_weights_small, ["MatMulWeights"])
    assert decision.chosen == "weights stay in 4 bits, a scale for 4 rows of a column"
    assert codes(model).shape == (4, 6)


def test_four_bits_in_odd_blocks_have_a_byte_each() -> None:
    w = RNG.integers(-8, 8, (6, 6)).astype(np.int8).astype(ml_dtypes.int4)
    text = "d = DequantizeLinear<axis=0, block_size=3>(w, s) y = MatMul(x, d)"
    model = make("float[n,6] x => float[n,6] y", text, opset=21, w=w, s=noise(2, 6))
    assert_fires(model, keep_weights_small, ["MatMulWeights"])
    assert attributes(model)["bits"] == 8


def test_transposed_weights_and_a_bias() -> None:
    body = "d = DequantizeLinear<axis=0>(w, s) t = Transpose<perm=[1,0]>(d) y = MatMul(x, t)"
    assert_fires(make(IO, body, w=W.T.copy(), s=COLUMN), keep_weights_small, ["MatMulWeights"])
    body = "d = DequantizeLinear<axis=0>(w, s) y = Gemm<transB=1>(x, d, c)"
    model = make(IO, body, w=W.T.copy(), s=COLUMN, c=noise(6))
    assert_fires(model, keep_weights_small, ["MatMulWeights", "Add"])


@pytest.mark.parametrize("flip", ["Gemm<transB=1>(x, d)", "MatMul(x, t)"])
def test_transposed_blocks(flip: str) -> None:
    turn = "t = Transpose<perm=[1,0]>(d) " if "t)" in flip else ""
    text = f"d = DequantizeLinear<axis=1, block_size=4>(w, s, z) {turn}y = {flip}"
    zeros = RNG.integers(-9, 9, (6, 2)).astype(np.int8)
    model = make(IO, text, opset=21, w=W.T.copy(), s=noise(6, 2), z=zeros)
    assert_fires(model, keep_weights_small, ["MatMulWeights"])
    assert attributes(model)["block_size"] == 4


def test_what_does_not_fit_says_why() -> None:
    text = "d = DequantizeLinear<axis=0>(w, s) y = MatMul(x, d)"
    assert_refuses(make(IO, text, w=W, s=noise(8)), keep_weights_small, "for each row of weights")
    text = "d = DequantizeLinear<axis=1>(w, s) y = MatMul(x, d)"
    for worst in (np.inf, -np.inf, np.nan):
        scales = np.where(np.arange(6) == 4, np.float32(worst), COLUMN)
        assert_refuses(make(IO, text, w=W, s=scales), keep_weights_small, "NaN or infinite")
    text = "d = DequantizeLinear<axis=1, block_size=3>(w, s) y = MatMul(x, d)"
    model = make(IO, text, opset=21, w=W, s=noise(8, 2))
    assert_refuses(model, keep_weights_small, "along the columns")
    text = "d = DequantizeLinear<axis=0, block_size=5>(w, s) y = MatMul(x, d)"
    model = make(IO, text, opset=21, w=W, s=noise(2, 6))
    assert_refuses(model, keep_weights_small, "no whole blocks of 5")
    text = "d = DequantizeLinear<axis=1>(w, s) y = Gemm<alpha=2.0>(x, d)"
    assert_refuses(make(IO, text, w=W, s=COLUMN), keep_weights_small, "the Gemm scales")
    text = "c = Cast<to=1>(w) p = Mul(c, s) y = MatMul(x, p)"
    assert_refuses(make(IO, text, w=W, s=noise(8, 6)), keep_weights_small, "neither one number")
    text = "d = DequantizeLinear<axis=1>(w, s) y = MatMul(x, d)"
    codes = W.astype(ml_dtypes.float8_e4m3fn)
    assert_refuses(make(IO, text, opset=19, w=codes, s=COLUMN), keep_weights_small, "no integers")
    signature = "float[n,8] x, float[6] s => float[n,6] y"
    assert_refuses(make(signature, text, w=W), keep_weights_small, "no constant")


def test_other_products_stay() -> None:
    assert_ignores(make(IO, "y = MatMul(x, w)", w=noise(8, 6)), keep_weights_small)
    assert_ignores(
        make(IO, "p = Mul(w, s) y = MatMul(x, p)", w=noise(8, 6), s=f32(2.0)), keep_weights_small
    )
    moving = "int8[8,6] w, float[n,8] x => float[n,6] y"
    text = "d = DequantizeLinear<axis=1>(w, s) y = MatMul(x, d)"
    assert_ignores(make(moving, text, s=COLUMN), keep_weights_small)


def test_it_comes_before_constants_are_folded() -> None:
    names = [step.name for step in STANDARD]
    assert names.index("keep_weights_small") < names.index("fold_constants")
    assert ops(make(IO, "y = MatMul(x, w)", w=noise(8, 6))) == ["MatMul"]
