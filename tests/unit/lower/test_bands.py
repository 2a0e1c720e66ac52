"""Chains band by band: the same values with less memory, and only where values exceed the cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model, reference
from unit.graph.models import model_of, node, tensor_info

RNG = np.random.default_rng(3)
PADS = [1, 1, 1, 1]


def _network(shape: list[int | str], channels: int = 64) -> onnx.ModelProto:
    def weight(*sizes: int) -> Any:
        return (RNG.standard_normal(sizes) / np.sqrt(np.prod(sizes[1:]))).astype(np.float32)

    return model_of(
        [
            node("Conv", ["x", "w"], ["a"], name="first", pads=PADS),
            node("Relu", ["a"], ["b"]),
            node("Conv", ["b", "v"], ["c"], name="second", pads=PADS),
            node("Add", ["c", "b"], ["d"]),
            node("Conv", ["d", "u"], ["y"], name="last"),
        ],
        inputs=[tensor_info("x", shape)],
        outputs=["y"],
        weights={
            "w": weight(channels, 16, 3, 3),
            "v": weight(channels, channels, 3, 3),
            "u": weight(16, channels, 1, 1),
        },
        opset=21,
    )


def _bands(engine: Any) -> list[str]:
    return [d.chosen for d in engine.decisions if d.stage == "bands"]


def _error(engine: Any, model: onnx.ModelProto, x: Any) -> float:
    want = reference(Model.load(model, DecisionLog()).original, {"x": x})["y"]
    got = engine.run({"x": x})["y"]
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.parametrize(("size", "chosen"), [(48, "1 of 12 at a time"), (51, "1 of 13 at a time")])
@pytest.mark.parametrize("threads", [1, 2])
def test_values_in_bands(size: int, chosen: str, threads: int) -> None:
    """Also where the last tiles are partial, and with borders of the results."""
    shape = [1, 16, size, 50]
    model = _network([*shape])
    engine = tw.compile(model, verify=False, cache=None, threads=threads)
    assert chosen in _bands(engine)
    x = RNG.standard_normal(shape).astype(np.float32)
    assert _error(engine, model, x) <= 2e-5
    whole = tw.compile(model, verify=False, cache=None, threads=threads, disable=["bands"])
    assert _bands(whole) == []
    np.testing.assert_array_equal(engine.run({"x": x})["y"], whole.run({"x": x})["y"])


def test_symbolic_sizes_go_row_by_row() -> None:
    model = _network([1, 16, "h", "w"])
    engine = tw.compile(model, verify=False, cache=None)
    assert _bands(engine)
    assert all(chosen.startswith("1 of ") for chosen in _bands(engine))
    for size in ((48, 44), (5, 9), (1, 1)):
        x = RNG.standard_normal((1, 16, *size)).astype(np.float32)
        assert _error(engine, model, x) <= 2e-5


def test_a_symbolic_number_of_images_counts_as_one() -> None:
    model = _network(["n", 16, "h", "w"])
    engine = tw.compile(model, verify=False, cache=None)
    assert _bands(engine) == ["1 of -floor(-h/4) at a time"]
    for size in ((1, 48, 44), (3, 5, 9)):
        x = RNG.standard_normal((size[0], 16, *size[1:])).astype(np.float32)
        assert _error(engine, model, x) <= 2e-5


def test_small_values_stay_whole() -> None:
    assert _bands(tw.compile(_network([1, 16, 20, 20]), verify=False, cache=None)) == []


def test_a_chain_that_ends_in_a_single_number_has_no_band() -> None:
    """There is no dim of the result to go along."""
    model = model_of(
        [
            node("MatMul", ["x", "w"], ["a"]),
            node("ArgMax", ["a"], ["b"], axis=0, keepdims=1),
            node("ArgMin", ["b"], ["y"], axis=0, keepdims=0),
        ],
        inputs=[tensor_info("x", ["n", 64])],
        outputs=["y"],
        weights={"w": RNG.standard_normal(64).astype(np.float32)},
        opset=21,
    )
    engine = tw.compile(model, verify=False, cache=None)
    assert _bands(engine) == []
    assert engine.run({"x": np.ones((5, 64), np.float32)})["y"] == 0


def test_every_piece_of_a_last_kernel_goes_in_bands() -> None:
    """What is added to a convolution is a Concat, whose parts have loops of their own."""
    rng = np.random.default_rng(4)
    model = model_of(
        [
            node("Mul", ["x", "c"], ["s"]),
            node("Sigmoid", ["s"], ["g"]),
            node("Mul", ["s", "g"], ["a"]),
            node("Relu", ["a"], ["b"]),
            node("Concat", ["a", "b"], ["both"], axis=1),
            node("ReduceMax", ["both", "axes"], ["most"]),
            node("Sub", ["both", "most"], ["v"]),
            node("Conv", ["v", "w"], ["conv"], pads=PADS),
            node("Relu", ["conv"], ["r"]),
            node("Add", ["v", "r"], ["sum"]),
            node("MaxPool", ["sum"], ["y"], kernel_shape=[2, 2], strides=[2, 2], pads=PADS),
        ],
        inputs=[tensor_info("x", ["n", 8, "h", "w"])],
        outputs=["y"],
        weights={
            "c": rng.standard_normal((8, 1, 1)).astype(np.float32),
            "w": (rng.standard_normal((16, 16, 3, 3)) / 12).astype(np.float32),
            "axes": np.array([2, 3]),
        },
        opset=21,
    )
    engine = tw.compile(model, verify=False, cache=None)
    assert _bands(engine)
    for height in (2, 6, 13):
        x = rng.standard_normal((2, 8, height, 5)).astype(np.float32)
        assert _error(engine, model, x) <= 2e-5
