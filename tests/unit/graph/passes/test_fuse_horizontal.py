"""Contractions that read one value become one, where that gains something."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.graph.passes.fuse_horizontal import fuse_horizontal as step
from tilewright.graph.passes.fuse_horizontal import fuse_quantized
from unit.graph.passes.harness import (
    assert_fires,
    assert_ignores,
    assert_refuses,
    f32,
    make,
    noise,
)

MATMULS = "float[N,3,4] x => float[N,3,6] y, float[N,3,5] z"
IMAGES = "float[N,4,5,5] x => float[N,6,3,3] y, float[N,5,3,3] z"
ROWS = "float[N,4] x => float[N,6] y, float[N,5] z"


def test_matrices_with_and_without_bias() -> None:
    weights = {"w": noise(4, 6), "u": noise(4, 5, seed=1), "b": noise(6), "c": noise(5)}
    model = make(MATMULS, "y = MatMul(x, w) z = MatMul(x, u)", **weights)
    assert_fires(model, step, ["MatMul", "Split"])
    body = "p = MatMul(x, w) y = Add(p, b) q = MatMul(x, u) z = Add(c, q)"
    assert_fires(make(MATMULS, body, **weights), step, ["MatMul", "Add", "Split"])


def test_convolutions_and_gemms() -> None:
    weights = {"w": noise(6, 4, 3, 3), "u": noise(5, 4, 3, 3, seed=1), "b": noise(6), "c": noise(5)}
    model = make(IMAGES, "y = Conv(x, w, b) z = Conv(x, u, c)", **weights)
    assert_fires(model, step, ["Conv", "Split"])
    for attributes, turn in (("", False), ("<transB = 1, alpha = 0.5, beta = 2.0>", True)):
        w, u = noise(4, 6), noise(4, 5, seed=1)
        matrices = {"w": w.T.copy() if turn else w, "u": u.T.copy() if turn else u}
        body = f"y = Gemm{attributes}(x, w, b) z = Gemm{attributes}(x, u, c)"
        model = make(ROWS, body, **matrices, b=noise(6), c=noise(1, 5))
        assert_fires(model, step, ["Gemm", "Split"])


def test_siblings_need_not_be_neighbours() -> None:
    body = "y = MatMul(x, w) e = Reshape(y, s) z = MatMul(x, u) t = ReduceSum(e)"
    model = make(
        "float[N,3,4] x => float[N,3,6] y, float[N,3,5] z, float[A] t",
        body,
        w=noise(4, 6),
        u=noise(4, 5),
        s=np.asarray([-1], np.int64),
    )
    assert_fires(model, step, ["MatMul", "Split", "Reshape", "ReduceSum"])


@pytest.mark.parametrize(
    "body",
    [
        "y = MatMul(x, w) e = Exp(x) z = MatMul(e, u)",
        "p = MatMul(x, w) y = Add(p, b) z = MatMul(x, u)",
        "v = Exp(w) y = MatMul(x, v) z = MatMul(x, u)",
    ],
)
def test_not_siblings(body: str) -> None:
    model = make(MATMULS, body, w=noise(4, 6), u=noise(4, 5), b=noise(6))
    if "Add" in body:  # one has a bias, the other none
        assert_ignores(model, step)
    else:
        assert_ignores(model, step)


def test_convolutions_of_other_windows_are_not_siblings() -> None:
    body = "y = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w) z = Conv(x, u)"
    model = make(
        "float[N,4,5,5] x => float[N,6,A,A] y, float[N,5,B,B] z",
        body,
        w=noise(6, 4, 3, 3),
        u=noise(5, 4, 3, 3),
    )
    assert_ignores(model, step)
    model = make(
        "float[N,4,5,5] x => float[N,4,A,A] y, float[N,4,B,B] z",
        "y = Conv<group = 4>(x, w) z = Conv<group = 4>(x, u)",
        w=noise(4, 1, 3, 3),
        u=noise(4, 1, 3, 3),
    )
    assert_ignores(model, step)


@pytest.mark.parametrize(
    ("sizes", "body", "reason"),
    [
        ((1025, 600), "y = MatMul(x, w) z = MatMul(x, u)", "fills the machine"),
        ((90, 10), "y = MatMul(x, w) z = MatMul(x, u)", "only splitting costs"),
        ((6, 5), "p = MatMul(x, w) y = Relu(p) z = MatMul(x, u)", "Relu is an epilogue"),
        ((6, 0), "y = MatMul(x, w) z = MatMul(x, u)", "no channels"),
    ],
)
def test_refuses(sizes: tuple[int, int], body: str, reason: str) -> None:
    signature = f"float[N,3,4] x => float[N,3,{sizes[0]}] y, float[N,3,{sizes[1]}] z"
    assert_refuses(make(signature, body, w=noise(4, sizes[0]), u=noise(4, sizes[1])), step, reason)


def _codes(*shape: int, dtype: Any, seed: int = 0) -> Any:
    return (40 * noise(*shape, seed=seed)).clip(-127, 127).astype(dtype)


@pytest.mark.parametrize("dtype", [np.int8, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("scales", [(6, 5), (1, 5)])
def test_codes_are_joined_with_their_scales(dtype: Any, scales: tuple[int, int]) -> None:
    """One scale a column, or one for all, which each of its columns then has."""
    steps = [np.exp2(noise(count, seed=count)) / 64 for count in scales]
    given = [step[0] if step.size == 1 else step for step in steps]
    weights = {
        "w8": _codes(4, 6, dtype=dtype),
        "u8": _codes(4, 5, dtype=dtype, seed=1),
        "ws": f32(given[0]),
        "us": f32(given[1]),
        "wz": np.zeros(given[0].shape, dtype),
        "b": noise(6),
        "c": noise(5),
    }
    body = (
        "w = DequantizeLinear<axis = 1>(w8, ws, wz) u = DequantizeLinear<axis = 1>(u8, us) "
        "p = MatMul(x, w) y = Add(p, b) q = MatMul(x, u) z = Add(q, c)"
    )
    model = make(MATMULS, body, **weights)
    assert_fires(model, fuse_quantized, ["DequantizeLinear", "MatMul", "Add", "Split"])


@pytest.mark.parametrize(
    ("how", "first", "second"),
    [("axis = 0", (4,), (4,)), ("axis = 0, block_size = 2", (2, 6), (2, 5))],
)
def test_codes_with_scales_of_rows_or_in_blocks_are_not_joined(
    how: str, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    weights = {
        "w8": _codes(4, 6, dtype=np.int8),
        "u8": _codes(4, 5, dtype=np.int8),
        "ws": np.exp2(noise(*first)),
        "us": np.exp2(noise(*second)),
    }
    body = (
        f"w = DequantizeLinear<{how}>(w8, ws) u = DequantizeLinear<{how}>(u8, us) "
        "y = MatMul(x, w) z = MatMul(x, u)"
    )
    assert_ignores(make(MATMULS, body, **weights), fuse_quantized)
