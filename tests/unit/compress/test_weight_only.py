"""Weights of few bits: each block's best range, what is written, what runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import tilewright as tw
from tilewright.compress.lint import lint
from tilewright.compress.weight_only import block_of, in_blocks, quantize_weights
from tilewright.core.errors import BadOption
from unit.graph.models import model_of, node, tensor_info

Array = npt.NDArray[Any]
RNG = np.random.default_rng(0)
FULL = np.ones(1)


def weights(depth: int, columns: int) -> Array:
    return RNG.standard_normal((depth, columns)).astype(np.float32) / np.float32(depth**0.5)


def network(depth: int = 64, transposed: bool = False) -> onnx.ModelProto:
    w = weights(depth, 48)
    nodes = [
        node("MatMul", ["x", "w"], ["p"], name="product"),
        node("Relu", ["p"], ["r"], name="relu"),
        node("Gemm", ["r", "v", "c"], ["y"], name="gemm", transB=int(transposed)),
    ]
    v = weights(48, 32)
    given = {"w": w, "v": v.T.copy() if transposed else v, "c": weights(1, 32)[0]}
    return model_of(nodes, inputs=[tensor_info("x", ("n", depth))], weights=given)


def expected(model: onnx.ModelProto, x: Array) -> Array:
    known = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
    v = known["v"].T if model.graph.node[2].attribute[0].i else known["v"]
    return np.asarray(np.maximum(x @ known["w"], 0) @ v + known["c"])


@pytest.mark.parametrize("bits", [4, 8])
def test_rounding_is_to_the_nearest_code(bits: int) -> None:
    w = weights(64, 8).reshape(2, 32, 8)
    found = in_blocks(w, bits, FULL)
    assert np.all(np.abs(found.floats() - w) <= found.scale[:, None] * 0.5001)
    assert np.all(found.zero.astype(int) == 0) == (bits == 8)


@pytest.mark.parametrize("bits", [4, 8])
def test_the_search_finds_the_best_share_of_each_block(bits: int) -> None:
    w = weights(96, 5).reshape(3, 32, 5)
    w[0, 0] *= 6  # an outlier is worth clipping
    shares = np.linspace(1.0, 0.5, 11)
    alone = [
        np.square(in_blocks(w, bits, shares[k : k + 1]).floats() - w).sum(1) for k in range(11)
    ]
    best = np.square(in_blocks(w, bits, shares).floats() - w).sum(1)
    np.testing.assert_allclose(best, np.min(alone, 0), rtol=1e-6)
    if bits == 4:
        assert best[0].sum() < alone[0][0].sum()


def test_codes_are_in_range_and_zero_is_exact() -> None:
    w = np.zeros((1, 32, 3), np.float32)
    w[0, :, 1], w[0, 5:, 2] = 1.0, np.linspace(3, 4, 27)
    for bits, low, high in ((8, -127, 127), (4, 0, 15)):
        found = in_blocks(w, bits, np.linspace(1, 0.5, 9))
        codes = found.codes.astype(int)
        assert low <= codes.min()
        assert codes.max() <= high
        assert np.all(found.floats()[w == 0] == 0)


def test_blocks_divide_the_rows() -> None:
    assert [block_of(depth, 64) for depth in (128, 96, 48, 40, 7)] == [64, 32, 16, 40, 7]


@pytest.mark.parametrize(("kind", "limit"), [("int8", 0.01), ("int4", 0.12)])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_model_runs_with_small_weights(kind: str, limit: float, transposed: bool) -> None:
    model = network(transposed=transposed)
    found = quantize_weights(model, weights=kind)
    assert found.summary["layers"] == 2
    engine = tw.compile(found.model, cache=None, require=["compiled"])
    kept = [one for one in engine.decisions if one.stage == "keep_weights_small"]
    bits = kind.removeprefix("int")
    assert len(kept) == 2
    assert all(f"stay in {bits} bits" in one.chosen for one in kept)
    x = RNG.standard_normal((7, 64)).astype(np.float32)
    exact = expected(model, x)
    assert np.abs(engine(x=x)["y"] - exact).max() <= limit * np.abs(exact).max()
    assert lint(found.model) == ()


def test_searching_is_better_than_the_full_range() -> None:
    model = network(depth=256)
    x = RNG.standard_normal((64, 256)).astype(np.float32)
    exact = expected(model, x)
    errors = []
    for search in (True, False):
        made = quantize_weights(model, weights="int4", block=128, search=search).model
        result = tw.compile(made, cache=None, verify=False)(x=x)["y"]
        errors.append(float(np.square(result - exact).mean()))
    assert errors[0] < errors[1]


def test_the_file_is_small_and_the_same_each_time() -> None:
    model = network(depth=512)
    first, second = (quantize_weights(model, weights="int4") for _ in range(2))
    assert first.model == second.model
    assert len(first.model) < len(model.SerializeToString()) / 3.5
    assert first.summary["bytes"] == len(first.model)


def test_what_stays_in_float_says_why() -> None:
    given = {"w": weights(64, 48), "k": np.ones((2, 48, 1), np.float32)}
    nodes = [
        node("MatMul", ["x", "w"], ["p"], name="product"),
        node("Transpose", ["p"], ["t"], perm=[0, 2, 1]),
        node("Conv", ["t", "k"], ["y"], name="conv"),
    ]
    model = model_of(nodes, inputs=[tensor_info("x", (1, 5, 64))], weights=given)
    found = quantize_weights(model)
    (kept,) = [one for one in found.decisions if "kept in float" in one.chosen]
    assert kept.subject == "conv"
    assert "only matrix products" in kept.rejected[0][1]


def test_bad_options_are_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"weights": "int3"}, "int3"),
        ({"block": 24}, "no power of two"),
        ({"block": 8}, "block"),
        ({"exclude": ["product", "gemm"]}, "no product"),
    ]
    for options, message in wrong:
        with pytest.raises(BadOption, match=message):
            quantize_weights(network(), **options)
