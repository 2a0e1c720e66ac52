"""Winograd: values within 2e-5 at every size of the last tile, and every refusal with its
reason.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model, reference

RNG = np.random.default_rng(5)


def _model(
    weight: Any, shape: list[Any], *, constant: bool = True, **attributes: Any
) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], **attributes),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "same"], ["y"]),
    ]
    same = np.eye(weight.shape[0], dtype=np.float32)[:, :, None, None]
    bias = RNG.standard_normal(weight.shape[0]).astype(np.float32)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    initializers = [numpy_helper.from_array(bias, "b"), numpy_helper.from_array(same, "same")]
    if constant:
        initializers.append(numpy_helper.from_array(weight, "w"))
    else:
        inputs.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, list(weight.shape)))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def _weight(filters: int, depth: int, taps: int = 3) -> Any:
    return (RNG.standard_normal((filters, depth, taps, taps)) / 20).astype(np.float32)


def _decision(engine: Any) -> tuple[str, str]:
    found = [d for d in engine.decisions if d.stage == "winograd"]
    assert found, "no decision about Winograd"
    return found[0].chosen, found[0].rejected[0][1] if found[0].rejected else ""


def _error(engine: Any, model: onnx.ModelProto, feeds: dict[str, Any]) -> float:
    want = reference(Model.load(model, DecisionLog()).original, feeds)["y"]
    got = engine.run(feeds)["y"]
    assert got.shape == want.shape
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.parametrize("size", [12, 13, 14, 15])
@pytest.mark.parametrize("pads", [[1, 1, 1, 1], [0, 0, 0, 0], [0, 1, 1, 0]])
def test_values_at_every_partial_tile(size: int, pads: list[int]) -> None:
    model = _model(_weight(48, 64), [1, 64, size, size + 1], pads=pads)
    engine = tw.compile(model, verify=False, cache=None, threads=2)
    assert _decision(engine)[0].startswith("F(4x4, 3x3)")
    feeds = {"x": RNG.standard_normal((1, 64, size, size + 1)).astype(np.float32)}
    assert _error(engine, model, feeds) <= 2e-5


@pytest.mark.parametrize("size", [7, 8])
@pytest.mark.parametrize("pads", [[1, 1, 1, 1], [0, 1, 1, 0]])
def test_small_tiles_where_weights_are_many(size: int, pads: list[int]) -> None:
    """Their error is a few roundings, as their transforms hold no large numbers."""
    model = _model(_weight(512, 512), [1, 512, size, size + 1], pads=pads)
    engine = tw.compile(model, verify=False, cache=None, threads=2)
    assert _decision(engine)[0].startswith("F(2x2, 3x3), error up to 1e-5")
    feeds = {"x": RNG.standard_normal((1, 512, size, size + 1)).astype(np.float32)}
    assert _error(engine, model, feeds) <= 1e-5


def test_symbolic_sizes() -> None:
    model = _model(_weight(64, 64), ["n", 64, "h", "w"], pads=[1, 1, 1, 1])
    engine = tw.compile(model, verify=False, cache=None)
    assert _decision(engine)[0].startswith("F(4x4, 3x3)")
    for shape in ((1, 64, 8, 8), (2, 64, 5, 11), (1, 64, 1, 3), (0, 64, 4, 4)):
        x = RNG.standard_normal(shape).astype(np.float32)
        if x.size:
            assert _error(engine, model, {"x": x}) <= 2e-5
        else:
            assert engine.run({"x": x})["y"].shape == shape


@pytest.mark.parametrize(
    ("filters", "depth", "size", "constant", "attributes", "reason"),
    [
        (64, 64, 16, True, {"strides": [2, 2]}, "stride or dilation is not 1"),
        (64, 64, 16, True, {"dilations": [2, 2]}, "stride or dilation is not 1"),
        (64, 8, 16, True, {}, "8 channels are too few"),
        (64, 64, 16, False, {}, "the weights are not constant"),
        (512, 512, 4, True, {}, "direct sums"),
    ],
)
def test_refusals(
    filters: int,
    depth: int,
    size: int,
    constant: bool,
    attributes: dict[str, Any],
    reason: str,
) -> None:
    weight = _weight(filters, depth)
    model = _model(weight, [1, depth, size, size], constant=constant, **attributes)
    engine = tw.compile(model, verify=False, cache=None)
    chosen, why = _decision(engine)
    assert chosen == "direct"
    assert reason in why
    feeds = {"x": RNG.standard_normal((1, depth, size, size)).astype(np.float32)}
    if not constant:
        feeds["w"] = weight
    assert _error(engine, model, feeds) <= 1e-5


def test_results_that_are_stored_row_by_row_count() -> None:
    """The last step writes them one by one, which takes longer than the sums save."""
    model = _model(_weight(32, 32), [1, 32, 64, 64], pads=[1, 1, 1, 1])
    assert _decision(tw.compile(model, verify=False, cache=None))[0].startswith("F(4x4, 3x3)")
    del model.graph.node[-1]
    model.graph.node[-1].output[0] = "y"
    engine = tw.compile(model, verify=False, cache=None)
    chosen, why = _decision(engine)
    assert (chosen, "direct sums" in why) == ("direct", True)
    feeds = {"x": RNG.standard_normal((1, 32, 64, 64)).astype(np.float32)}
    assert _error(engine, model, feeds) <= 1e-5


def test_can_be_switched_off() -> None:
    model = _model(_weight(48, 64), [1, 64, 12, 12])
    engine = tw.compile(model, cache=None, disable=["winograd", "layout", "pack"])
    assert not [d for d in engine.decisions if d.stage in ("winograd", "pack")]
    assert not [d for d in engine.decisions if d.chosen.startswith("channels in blocks")]
