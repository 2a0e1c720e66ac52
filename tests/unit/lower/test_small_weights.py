"""Products with weights of few bits: right, compiled, and read as they are stored."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import tilewright as tw
from tilewright.core.errors import InvalidModel
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model
from tilewright.runtime.reference.small_weights import NBITS_DOMAIN, packed_rows, unpacked_rows
from unit.graph.models import model_of, node, tensor_info

Array = npt.NDArray[Any]


def packed(codes: Array, bits: int) -> Array:
    """Codes along the last axis as bytes, the first one in the lowest bits."""
    each = 8 // bits
    whole = np.concatenate([codes, np.zeros((*codes.shape[:-1], -codes.shape[-1] % each), int)], -1)
    parts = whole.reshape(*whole.shape[:-1], -1, each)
    return np.asarray((parts << (np.arange(each) * bits)).sum(-1), np.uint8)


class Nbits:
    """A MatMulNBits of random weights, and the floats that they stand for."""

    def __init__(self, bits: int, depth: int, columns: int, block: int, zeros: str) -> None:
        rng = np.random.default_rng(bits + depth)
        groups = -(-depth // block)
        codes = rng.integers(0, 1 << bits, (columns, groups, block))
        scale = rng.uniform(0.01, 0.02, (columns, groups)).astype(np.float32)
        middle: Array = np.full((columns, groups), float(1 << (bits - 1)))
        self.weights: dict[str, Array] = {
            "w": packed(codes, bits),
            "s": scale.reshape(-1),
            "bias": rng.standard_normal(columns).astype(np.float32),
        }
        if zeros == "codes":
            points = rng.integers(0, 1 << bits, (columns, groups))
            middle, self.weights["z"] = points.astype(float), packed(points, bits).reshape(-1)
        elif zeros == "floats":
            middle = rng.uniform(0, 1 << bits, (columns, groups)).astype(np.float32)
            self.weights["z"] = middle.reshape(-1)
        floats = (codes - middle[..., None]) * scale[..., None]
        self.floats = floats.reshape(columns, -1)[:, :depth].T.astype(np.float64)
        self.attributes = {"K": depth, "N": columns, "bits": bits, "block_size": block}

    def model(self, shape: Any, bias: bool = False) -> onnx.ModelProto:
        names = ["x", "w", "s", "z" if "z" in self.weights else "", "", "bias" if bias else ""]
        while not names[-1]:
            names.pop()
        call = node(
            "MatMulNBits", names, ["y"], name="product", domain=NBITS_DOMAIN, **self.attributes
        )
        used = {name: array for name, array in self.weights.items() if name in names}
        return model_of(
            [call],
            inputs=[tensor_info("x", shape)],
            weights=used,
            opset=21,
            domains=[NBITS_DOMAIN],
        )


def random(*shape: int) -> Array:
    return np.random.default_rng(9).standard_normal(shape, np.float32)


def close(found: Array, exact: Array) -> None:
    assert np.abs(found - exact).max() <= 1e-5 * np.abs(exact).max()


@pytest.mark.parametrize("zeros", ["none", "codes", "floats"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_matmul_nbits(bits: int, zeros: str) -> None:
    made = Nbits(bits, depth=64, columns=40, block=32, zeros=zeros)
    x = random(3, 5, 64)
    engine = tw.compile(made.model(("b", "n", 64)), cache=None, require=["compiled"])
    close(engine(x=x)["y"], x.astype(np.float64) @ made.floats)


@pytest.mark.parametrize("bits", [4, 8])
def test_matmul_nbits_with_a_last_block_that_is_cut_short(bits: int) -> None:
    made = Nbits(bits, depth=50, columns=24, block=32, zeros="codes")
    x = random(2, 50)
    engine = tw.compile(made.model((2, 50), bias=True), cache=None, require=["compiled"])
    close(engine(x=x)["y"], x.astype(np.float64) @ made.floats + made.weights["bias"])
    assert any("no whole blocks" in decision.chosen for decision in engine.decisions)


@pytest.mark.parametrize("rows", [1, 3, 30])
@pytest.mark.parametrize("cpu", ["host", "haswell"])
def test_tiles_of_rows(rows: int, cpu: str) -> None:
    for bits in (4, 8):
        made = Nbits(bits, depth=96, columns=70, block=32, zeros="none")
        x = random(rows, 96)
        engine = tw.compile(made.model((rows, 96), bias=True), cache=None, cpu=cpu)
        close(engine(x=x)["y"], x.astype(np.float64) @ made.floats + made.weights["bias"])


def test_engines_hold_the_small_weights(tmp_path: Any) -> None:
    made = Nbits(4, depth=512, columns=512, block=32, zeros="none")
    engine = tw.compile(made.model((1, 512)), cache=None)
    engine.save(tmp_path / "a.tw")
    codes, scales = 512 * 512 // 2, 512 * 16 * 4
    assert codes + scales < (tmp_path / "a.tw").stat().st_size < codes + scales + 40_000


def tile(rows: int, depth: int) -> str:
    """The copies of axes that one register tile of 8-bit weights has, on 32 wide registers."""
    weights = {"w": np.ones((depth, 64), np.int8), "s": np.full(64, 0.5, np.float32)}
    nodes = [
        node("DequantizeLinear", ["w", "s"], ["d"], axis=1),
        node("MatMul", ["x", "d"], ["y"]),
    ]
    model = model_of(nodes, inputs=[tensor_info("x", (rows, depth))], weights=weights)
    engine = tw.compile(model, cache=None, cpu="znver4", verify=False)
    (found,) = [one.chosen for one in engine.decisions if one.stage == "tactic"]
    return str(re.findall(r"unroll=\[(.*?)\]", found)[0])


def test_widened_vectors_serve_many_rows_unless_those_meet_in_the_cache() -> None:
    assert sorted(re.findall(r"x(\d+)", tile(104, 96))) == ["1", "26"]
    assert sorted(re.findall(r"x(\d+)", tile(104, 1536))) == ["13", "2"]
    assert sorted(re.findall(r"x(\d+)", tile(8, 96))) == ["2", "8"]


def test_a_bias_and_an_activation_are_in_the_kernel() -> None:
    weights = {"w": np.ones((8, 6), np.int8), "s": np.full(6, 0.5, np.float32)}
    nodes = [
        node("DequantizeLinear", ["w", "s"], ["d"], axis=1),
        node("MatMul", ["x", "d"], ["p"]),
        node("Add", ["p", "s"], ["a"]),
        node("Relu", ["a"], ["y"]),
    ]
    engine = tw.compile(
        model_of(nodes, inputs=[tensor_info("x", ("n", 8))], weights=weights), cache=None
    )
    assert engine.summary["kernels"] == 1


def test_targets_of_floats_get_floats() -> None:
    """GPUs multiply floats on tensor cores: no product of theirs widens weights."""
    made = Nbits(4, depth=64, columns=40, block=32, zeros="codes")
    log = DecisionLog()
    model = Model.load(made.model(("n", 64), bias=True), log, known=lambda *_: True)
    model.run_passes(log, small_weights=False)
    assert [one.op_type for one in model.view().nodes] == ["MatMul", "Add"]
    (decision,) = [one for one in log.entries if one.stage == "widen_weights"]
    assert "the target multiplies floats" in decision.chosen


def test_halves_lie_in_rows() -> None:
    codes = np.random.default_rng(0).integers(0, 16, (6, 5)).astype(np.uint8)
    assert packed_rows(codes).shape == (3, 5)
    np.testing.assert_array_equal(unpacked_rows(packed_rows(codes)), codes)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bits": 3}, "2, 4 or 8 bits"),
        ({"block_size": 24}, "powers of two"),
        ({"K": 32}, "bytes of weights"),
    ],
)
def test_attributes_that_do_not_fit_are_refused(changed: dict[str, int], message: str) -> None:
    made = Nbits(4, depth=64, columns=40, block=32, zeros="none")
    made.attributes |= changed
    with pytest.raises(tw.UserError, match=message):
        tw.compile(made.model(("n", 64)), cache=None)


def test_an_order_of_rows_is_refused() -> None:
    made = Nbits(4, depth=64, columns=40, block=32, zeros="none")
    model = made.model(("n", 64))
    model.graph.node[0].input.extend(["", "order"])
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(64, np.int32), "order"))
    with pytest.raises(InvalidModel, match="g_idx is not known"):
        tw.compile(model, cache=None)
