"""Weights of few bits: each block's best range, what is written, what runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import tilewright as tw
from tilewright.compress.block_rounding import rounded
from tilewright.compress.blocks import best_grid, block_of
from tilewright.compress.data import BadData
from tilewright.compress.lint import lint
from tilewright.compress.weight_only import quantize_weights
from tilewright.core.errors import BadOption, ContractBreach
from unit.graph.models import model_of, node, tensor_info

Array = npt.NDArray[Any]
RNG = np.random.default_rng(0)
FULL = (1.0,)


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
    w = weights(64, 8)
    grid = best_grid(w, 32, bits, shares=FULL)
    off = np.abs(grid.floats(grid.nearest(w)) - w).reshape(2, 32, 8)
    # An end of the range may lie half a step outside of 4 bits, as the zero is a whole number.
    assert np.all(off <= grid.scale[:, None] * (0.5001 if bits == 8 else 1.0001))
    assert np.median(off / grid.scale[:, None]) < 0.3
    assert np.all(grid.zero == 0) == (bits == 8)


@pytest.mark.parametrize("bits", [4, 8])
def test_the_search_finds_the_best_share_of_each_block(bits: int) -> None:
    w = weights(96, 300)
    w[0, 0] *= 6  # an outlier is worth clipping
    shares = np.linspace(1.0, 0.5, 11)

    def lost(tried: Any) -> Array:
        grid = best_grid(w, 32, bits, shares=tried)
        off = grid.floats(grid.nearest(w)) - w
        return np.asarray(np.square(off).reshape(3, 32, 300).sum(1))

    alone = [lost(shares[k : k + 1]) for k in range(11)]
    np.testing.assert_allclose(lost(shares), np.min(alone, 0), rtol=1e-5)
    if bits == 4:
        assert lost(shares)[0].sum() < alone[0][0].sum()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("size", [1e-30, 1e30, 1e37])
def test_weights_of_any_size_are_rounded_alike(bits: int, size: float) -> None:
    """Squares of 1e30 are no float32."""
    w = weights(64, 8)
    x = RNG.standard_normal((200, 64))
    for gram in (None, (x.T @ x / 200)[None]):
        grid, codes = rounded(w * np.float32(size), 32, bits, gram)
        plain, expected_codes = rounded(w, 32, bits, gram)
        np.testing.assert_allclose(grid.scale, plain.scale * np.float64(size), rtol=1e-5)
        assert np.mean(codes == expected_codes) > 0.95  # ties aside


def test_what_counts_more_is_closer() -> None:
    w = weights(64, 40)
    importance = np.where(np.arange(32) == 3, 1000.0, 1.0)

    def off(moments: Array | None) -> Array:
        grid = best_grid(w, 32, 4, moments=moments)
        return np.asarray(np.square(grid.floats(grid.nearest(w)) - w).sum(1))

    even, uneven = off(None), off(np.stack([np.diag(importance)] * 2))
    assert uneven[[3, 35]].sum() < even[[3, 35]].sum() / 4
    assert uneven.sum() > even.sum()


def test_codes_are_in_range_and_zero_is_exact() -> None:
    w = np.zeros((32, 3), np.float32)
    w[:, 1], w[5:, 2] = 1.0, np.linspace(3, 4, 27)
    for bits, low, high in ((8, -127, 127), (4, 0, 15)):
        grid = best_grid(w, 32, bits)
        codes = grid.nearest(w).astype(grid.dtype)
        assert low <= codes.astype(int).min()
        assert codes.astype(int).max() <= high
        assert np.all(grid.floats(codes)[w == 0] == 0)


def test_blocks_divide_the_rows() -> None:
    assert [block_of(depth, 64) for depth in (128, 96, 48, 40, 7)] == [64, 32, 16, 40, 7]


@pytest.mark.parametrize(("kind", "limit"), [("int8", 0.01), ("int4", 0.12)])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_model_runs_with_small_weights(kind: str, limit: float, transposed: bool) -> None:
    model = network(transposed=transposed)
    wide = "none" if kind == "int4" else None
    found = tw.quantize(model, weights=kind, wide=wide)
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


def related(seed: int, rows: int = 256, depth: int = 64) -> Array:
    """Inputs of which a few matter and most follow others, as in networks."""
    mixed = np.random.default_rng(5).standard_normal((depth // 8, depth))
    mixed *= np.random.default_rng(6).exponential(1, depth) ** 2
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, depth // 8)) @ mixed
    return (x + 0.05 * rng.standard_normal((rows, depth))).astype(np.float32)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("kind", "share"), [("int4", 0.35), ("int8", 0.5)])
def test_data_make_results_closer(kind: str, share: float, transposed: bool) -> None:
    model = network(transposed=transposed)
    x = related(1)
    exact = expected(model, x)

    def error(data: Any) -> float:
        found = tw.quantize(model, data, weights=kind)
        off = tw.compile(found.model, cache=None, verify=False)(x=x)["y"] - exact
        return float(np.square(off).mean())

    assert error([{"x": related(seed)} for seed in (2, 3)]) < share * error(None)


def test_the_last_product_has_8_bits_and_others_by_name() -> None:
    def bits(**options: Any) -> dict[str, str]:
        found = tw.quantize(network(), weights="int4", **options)
        notes = [one for one in found.decisions if "relative squared error" in one.chosen]
        return {one.subject: one.chosen[0] for one in notes}

    assert bits() == {"product": "4", "gemm": "8"}
    assert bits(wide="none") == {"product": "4", "gemm": "4"}
    assert bits(wide=["product"]) == {"product": "8", "gemm": "4"}
    assert bits(exclude=["gemm"]) == {"product": "4"}  # alone, it is what was asked for


def test_small_products_that_lose_most_get_8_bits_by_data() -> None:
    """Of a wide and a narrow product, whose inputs follow each other less."""
    nodes = [
        node("MatMul", ["x", "w"], ["p"], name="wide"),
        node("MatMul", ["x", "s"], ["q"], name="narrow"),
        node("Concat", ["p", "q"], ["r"], axis=1),
        node("MatMul", ["r", "v"], ["y"], name="last"),
    ]
    given = {"w": weights(64, 400), "s": weights(64, 16), "v": weights(416, 8)}
    model = model_of(nodes, inputs=[tensor_info("x", ("n", 64))], weights=given)
    data = [{"x": related(seed)} for seed in range(2)]

    def eight(**options: Any) -> set[str]:
        found = tw.quantize(model, weights="int4", **options)
        return {one.subject for one in found.decisions if one.chosen == "8 bits"}

    assert eight(data=data) == {"narrow", "last"}
    assert eight() == {"last"}
    assert eight(data=data, wide="none") == set()
    found = tw.quantize(model, data, weights="int4")
    assert "2 layers int8" in found.summary["weights"]
    x = related(9)
    engine = tw.compile(found.model, cache=None, require=["compiled"])
    exact = np.concatenate([x @ given["w"], x @ given["s"]], 1) @ given["v"]
    assert np.abs(engine(x=x)["y"] - exact).max() < 0.05 * np.abs(exact).max()


def test_moments_beyond_the_memory_of_a_walk_take_several(monkeypatch: Any) -> None:
    model, data = network(), [{"x": related(seed, rows=16)} for seed in range(2)]
    once = tw.quantize(model, data, weights="int4")
    monkeypatch.setattr("tilewright.compress.walks.WALK_BYTES", 1000)
    seen: list[str] = []
    twice = tw.quantize(model, data, weights="int4", progress=lambda stage, *_: seen.append(stage))
    x = related(9)
    runs = [tw.compile(one.model, cache=None, verify=False)(x=x)["y"] for one in (once, twice)]
    # Another engine watches the values: their last bits, and so some integers, may differ.
    np.testing.assert_allclose(runs[0], runs[1], atol=0.02 * np.abs(runs[0]).max())
    assert {"import", "calibrate 1/2", "calibrate 2/2", "weights"} <= set(seen)
    with pytest.raises(BadOption, match="2 walks over the data are needed"):
        tw.quantize(network(), iter(data), weights="int4")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{"x": related(0, rows=7)}], "7 samples, at least 8"),
        ([{"x": np.full((9, 64), 0.5, np.float32)}], "x is 0.5 everywhere"),
        ([{"x": related(0, rows=1).repeat(9, 0)}], "all 9 samples are the same"),
        ([{"x": np.full((9, 64), np.nan, np.float32)}], "x holds NaN"),
    ],
)
def test_data_that_tell_nothing_are_refused(data: Any, message: str) -> None:
    with pytest.raises(BadData, match=message) as caught:
        tw.quantize(network(), data, weights="int4")
    assert caught.value.remedy


def test_the_file_is_small_and_the_same_each_time() -> None:
    model = network(depth=512)
    first, second = (quantize_weights(model, weights="int4") for _ in range(2))
    assert first.model == second.model
    assert len(first.model) < len(model.SerializeToString()) / 3.5
    assert first.summary["size_bytes"] == len(first.model)


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
        ({"wide": ["nowhere"], "weights": "int4"}, "the model has no node nowhere"),
        ({"exclude": ["nowhere"]}, "the model has no node nowhere"),
        ({"wide": ["product"]}, "all weights get 8 bits"),
        ({"calibration": "mse"}, "calibration would have no effect: weights alone"),
        ({"per_channel": False}, "per_channel would have no effect"),
        ({"sensitivity": True}, "sensitivity would have no effect"),
        ({"weights": None, "block": 32}, "block would have no effect"),
        ({"weights": None, "require": ["speed"]}, "unknown contract 'speed'"),
    ]
    for options, message in wrong:
        with pytest.raises(BadOption, match=message):
            tw.quantize(network(), **{"weights": "int8", **options})
    with pytest.raises(TypeError, match="unexpected keyword argument 'wieghts'"):
        tw.quantize(network(), wieghts="int8")  # type: ignore[call-arg]


def test_a_contract_refuses_weights_that_stay_in_float() -> None:
    given = {"w": weights(64, 48), "k": np.ones((2, 48, 1), np.float32)}
    nodes = [
        node("MatMul", ["x", "w"], ["p"], name="product"),
        node("Transpose", ["p"], ["t"], perm=[0, 2, 1]),
        node("Conv", ["t", "k"], ["y"], name="conv"),
    ]
    model = model_of(nodes, inputs=[tensor_info("x", (1, 5, 64))], weights=given)
    with pytest.raises(ContractBreach, match="conv \\(Conv\\): only matrix products"):
        tw.quantize(model, weights="int8", require=["quantized"])
    tw.quantize(network(), weights="int8", require=["quantized"])
