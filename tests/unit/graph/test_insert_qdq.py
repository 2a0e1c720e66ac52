"""Quantisers in a graph: who reads them, what they make unneeded, which opset says it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from tilewright.core.record import DecisionLog
from tilewright.graph.insert_qdq import Affine, QuantizedLayer, Recipe
from tilewright.graph.lower_opset import lower_opset
from tilewright.graph.quantizable import Quantizable
from unit.compiler.models import normal
from unit.graph.models import model_of, node, tensor_info
from unit.graph.passes.harness import make, ops


def _point(low: float, high: float) -> Affine:
    scale = (high - low) / 255
    zero = np.array(round(-low / scale), np.uint8)
    return Affine(scale=np.array(scale, np.float32), zero=zero)


def _quantized(activation: Any, point: Affine, readers: tuple[str, ...] = ("second",)) -> ir.Model:
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="first"),
        activation,
        node("MatMul", ["r", "w"], ["y"], name="second"),
        node("MatMul", ["r", "v"], ["z"], name="third"),
    ]
    model = model_of(
        nodes,
        inputs=[tensor_info("x", ("n", 4))],
        outputs=["y", "z"],
        weights={
            "w": normal(4, 4),
            "v": normal(4, 4, seed=1),
            "zero": np.float32(0),
            "six": np.float32(6),
        },
        opset=21,
    )
    weights = np.ones((4, 4), np.int8)
    params = Affine(scale=np.ones((), np.float32), zero=np.zeros((), np.int8))
    recipe = Recipe(
        points={"r": point},
        readers={"r": readers},
        layers=(QuantizedLayer(node="second", weights=weights, params=params),),
    )
    return Quantizable.load(model, DecisionLog()).quantized(recipe, DecisionLog())


def test_only_the_named_readers_read_the_quantised_value() -> None:
    model = _quantized(node("Relu", ["a"], ["r"], name="act"), _point(0, 5))
    by_name = {one.name: one for one in model.graph}
    second, third = (by_name[name].inputs[0] for name in ("second", "third"))
    assert second is not None
    assert third is not None
    assert second.producer().op_type == "DequantizeLinear"  # type: ignore[union-attr]
    assert third.producer().op_type == "Relu"  # type: ignore[union-attr]


BOTH = ("second", "third")


@pytest.mark.parametrize(
    ("activation", "point", "goes"),
    [
        (node("Relu", ["a"], ["r"], name="act"), _point(0, 5), True),
        (node("Relu", ["a"], ["r"], name="act"), _point(-1, 5), False),
        (node("Clip", ["a", "zero", "six"], ["r"], name="act"), _point(0, 6), True),
        (node("Clip", ["a", "zero", "six"], ["r"], name="act"), _point(0, 5), True),
        (node("Clip", ["a", "zero", "six"], ["r"], name="act"), _point(0, 7), False),
        (node("Clip", ["a", "", "six"], ["r"], name="act"), _point(-3, 5), True),
        (node("Clip", ["a", "zero"], ["r"], name="act"), _point(0, 5), True),
        (node("Tanh", ["a"], ["r"], name="act"), _point(0, 5), False),
    ],
)
def test_an_activation_goes_where_the_quantiser_saturates(
    activation: Any, point: Affine, goes: bool
) -> None:
    assert (activation.op_type not in ops(_quantized(activation, point, BOTH))) == goes


def test_an_activation_stays_for_those_who_read_it_in_float() -> None:
    model = _quantized(node("Relu", ["a"], ["r"], name="act"), _point(0, 5))
    assert "Relu" in ops(model)


@pytest.mark.parametrize(
    ("signature", "body", "version"),
    [
        ("float[2] x => float[2] y", "y = Relu(x)", 21),
        ("float[2,3,4] x => float[2,3,4] y", "y = RMSNormalization(x, g)", 23),
        ("float[2] x => float[2] y", "y = Swish(x)", 24),
    ],
)
def test_the_oldest_opset_that_has_all_operators_is_stated(
    signature: str, body: str, version: int
) -> None:
    model = make(signature, body, g=np.ones(4, np.float32))
    lower_opset(model)
    assert model.opset_imports[""] == version
    assert {one.version for one in model.graph} == {version}


def test_an_attribute_that_came_later_needs_its_opset() -> None:
    model = make("float[2] x => int32[2] y", "y = Cast<to = 6>(x)")
    model.graph[0].attributes["round_mode"] = ir.AttrString("round_mode", "up")
    lower_opset(model)
    assert model.opset_imports[""] > 21
