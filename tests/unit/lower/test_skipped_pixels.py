"""Pixels of 1x1 convolutions with steps are copied where that pays; values are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model, reference

RNG = np.random.default_rng(7)


def _model(filters: int, *, taps: int = 1, constant: bool = True, **attributes: Any) -> Any:
    first = RNG.standard_normal((32, 3, 1, 1)).astype(np.float32)
    weight = (RNG.standard_normal((filters, 32, taps, taps)) / 6).astype(np.float32)
    last = (RNG.standard_normal((8, filters, 1, 1)) / 16).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"]),
        helper.make_node("Conv", ["a", "w"], ["b"], **attributes),
        helper.make_node("Relu", ["b"], ["r"]),
        helper.make_node("Conv", ["r", "last"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 13, 12])]
    initializers = [numpy_helper.from_array(first, "first"), numpy_helper.from_array(last, "last")]
    if constant:
        initializers.append(numpy_helper.from_array(weight, "w"))
    else:
        inputs.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, list(weight.shape)))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def _copies(engine: tw.Engine) -> bool:
    return any(d.chosen.startswith("pixels copied") for d in engine.decisions)


@pytest.mark.parametrize(
    ("cpu", "model", "copies"),
    [
        ("haswell", _model(256, strides=[2, 2]), True),
        ("haswell", _model(256, strides=[2, 3]), True),
        ("haswell", _model(256, strides=[2, 1]), False),  # whole lines of pixels
        ("haswell", _model(64, strides=[2, 2]), False),  # few filters read them
        ("haswell", _model(256, taps=3, strides=[2, 2]), False),
        ("haswell", _model(256, strides=[2, 2], constant=False), False),
        ("skylake-avx512", _model(256, strides=[2, 2]), False),  # a block is a line of the cache
    ],
)
def test_which_pixels_are_copied(cpu: str, model: onnx.ModelProto, copies: bool) -> None:
    engine = tw.compile(model, cpu=cpu, threads=1, verify=False)
    assert _copies(engine) == copies


@pytest.mark.parametrize("strides", [[2, 2], [3, 2]])
def test_values_are_the_same(strides: list[int]) -> None:
    model = _model(256, strides=strides)
    engine = tw.compile(model, cpu="haswell", threads=1, verify=False)
    assert _copies(engine)
    if not engine.runs_here:
        pytest.skip("no AVX2 here")
    feeds = {"x": RNG.standard_normal((1, 3, 13, 12)).astype(np.float32)}
    want = reference(Model.load(model, DecisionLog()).original, feeds)["y"]
    assert np.abs(engine.run(feeds)["y"] - want).max() <= 1e-5 * np.abs(want).max()
