"""Channels between convolutions become alike, and the function stays the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tilewright.compress.equalize import equalize
from tilewright.compress.layers import find_layers
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import reference
from tilewright.graph.quantizable import Quantizable
from unit.compiler.models import normal
from unit.graph.models import model_of, node, tensor_info

SPREAD = np.exp2(np.arange(-3, 3, dtype=np.float32))


def _model(activation: str = "Relu") -> onnx.ModelProto:
    """Expansion, depthwise, projection, with channels of very different weights."""
    wide = SPREAD.reshape(-1, 1, 1, 1)
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a"], name="expand"),
        node(activation, ["a"], ["r"], name="first"),
        node("Conv", ["r", "w2", "b2"], ["d"], name="depthwise", group=6, pads=[1, 1, 1, 1]),
        node("Relu", ["d"], ["e"], name="second"),
        node("Conv", ["e", "w3"], ["y"], name="project"),
    ]
    return model_of(
        nodes,
        inputs=[tensor_info("x", ("n", 4, 5, 5))],
        weights={
            "w1": normal(6, 4, 1, 1) * wide,
            "b1": normal(6, seed=1) * SPREAD,
            "w2": normal(6, 1, 3, 3, seed=2) / wide,
            "b2": normal(6, seed=3),
            "w3": normal(3, 6, 1, 1, seed=4),
        },
        opset=21,
    )


def _equalised(model: onnx.ModelProto) -> tuple[Quantizable, Quantizable, DecisionLog]:
    log = DecisionLog()
    loaded = Quantizable.load(model, DecisionLog())
    return loaded, equalize(loaded, find_layers(loaded.view()), log), log


def _spread(model: Quantizable) -> list[Any]:
    layers = find_layers(model.view()).layers
    ranges = [np.abs(layer.weights).max(axis=(1, 2, 3)) for layer in layers[:2]]
    return [part.max() / part.min() for part in ranges]


def test_ranges_become_alike_and_values_stay() -> None:
    before, after, log = _equalised(_model())
    assert min(_spread(before)) > 8
    assert max(_spread(after)) < 4  # powers of two leave a factor of 2 to either side
    x = {"x": normal(3, 4, 5, 5, seed=9)}
    (name,) = reference(before.view(), x)
    np.testing.assert_array_equal(
        reference(after.view(), x)[name], reference(before.view(), x)[name]
    )
    assert log.entries[-1].chosen == "applied to 2 pairs"


@pytest.mark.parametrize("activation", ["Sigmoid", "Tanh"])
def test_what_does_not_scale_with_its_input_refuses(activation: str) -> None:
    _, _, log = _equalised(_model(activation))
    reasons = {one.subject: one.rejected[0][1] for one in log.entries if one.rejected}
    assert reasons["expand"] == f"first ({activation}) does not scale with its input"
    assert reasons["project"] == "its result has several readers or is an output"
    assert log.entries[-1].chosen == "applied to 1 pair"


def test_channels_of_zeros_stay() -> None:
    model = _model()
    weights = normal(6, 4, 1, 1)
    weights[2] = 0
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weights, "w1"))
    _, after, _ = _equalised(model)
    assert all(np.isfinite(layer.weights).all() for layer in find_layers(after.view()).layers)
