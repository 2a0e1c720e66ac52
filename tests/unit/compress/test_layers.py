"""What is quantised, what stays in float and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tilewright.compress.layers import Plan, find_layers
from tilewright.core.record import DecisionLog
from tilewright.graph.quantizable import Quantizable
from unit.compiler.models import normal
from unit.graph.models import model_of, node, tensor_info


def _plan(model: onnx.ModelProto, **options: Any) -> Plan:
    return find_layers(Quantizable.load(model, DecisionLog()).view(), **options)


def _conv(name: str, x: str, y: str, weights: str = "w") -> Any:
    return node("Conv", [x, weights, "b"], [y], name=name, pads=[1, 1, 1, 1])


def _picture(nodes: list[Any], **options: Any) -> onnx.ModelProto:
    weights = {
        "w": normal(3, 3, 3, 3),
        "b": normal(3, seed=1),
        "v": normal(3, 3, 1, 1, seed=2),
        "m": normal(3, 5, seed=3),
        **options.pop("weights", {}),
    }
    inputs = [tensor_info("x", ("n", 3, 8, 8))]
    return model_of(nodes, inputs=inputs, weights=weights, opset=21, **options)


def test_a_residual_block_is_quantised_throughout() -> None:
    nodes = [
        _conv("first", "x", "a"),
        node("Relu", ["a"], ["r"], name="relu"),
        _conv("second", "r", "c"),
        node("Add", ["c", "r"], ["s"], name="sum"),
        node("Relu", ["s"], ["t"], name="last_relu"),
        _conv("third", "t", "y"),
    ]
    plan = _plan(_picture(nodes))
    assert [layer.node for layer in plan.layers] == ["first", "second", "third"]
    assert plan.carriers == ("sum",)
    assert dict(plan.readers) == {
        "x": ("first",),
        "r": ("second", "sum"),
        "t": ("third",),
        "c": ("sum",),
    }
    assert plan.kept == ()


def test_a_sum_whose_result_is_read_in_float_stays_in_float() -> None:
    nodes = [
        _conv("first", "x", "a"),
        _conv("second", "a", "c"),
        node("Add", ["c", "a"], ["s"], name="sum"),
        node("Softmax", ["s"], ["y"], name="softmax"),
    ]
    plan = _plan(_picture(nodes))
    assert plan.carriers == ()
    assert plan.kept == (
        ("sum", "Add", "its result is needed in float by softmax"),
        ("softmax", "Softmax", "Softmax has no kernel on integers"),
    )


def test_a_sum_with_a_float_operand_stays_in_float() -> None:
    nodes = [
        _conv("first", "x", "a"),
        node("Softmax", ["x"], ["f"], name="softmax"),
        node("Add", ["a", "f"], ["s"], name="sum"),
        _conv("second", "s", "y"),
    ]
    plan = _plan(_picture(nodes))
    assert plan.kept == (
        ("softmax", "Softmax", "Softmax has no kernel on integers"),
        ("sum", "Add", "an operand is computed in float"),
    )


def test_an_activation_of_several_nodes_is_an_epilogue() -> None:
    """x * sigmoid(x) is computed on what the convolution accumulates."""
    nodes = [
        _conv("first", "x", "a"),
        node("Sigmoid", ["a"], ["g"], name="gate"),
        node("Mul", ["a", "g"], ["s"], name="swish"),
        _conv("second", "s", "y"),
    ]
    plan = _plan(_picture(nodes))
    assert dict(plan.readers) == {"x": ("first",), "s": ("second",)}
    assert plan.carriers == ()


def test_values_that_only_move_share_parameters() -> None:
    nodes = [
        _conv("first", "x", "a"),
        _conv("second", "x", "c", "w2"),
        node("Concat", ["a", "c"], ["k"], name="join", axis=0),
        node("MaxPool", ["k"], ["p"], name="pool", kernel_shape=[2, 2]),
        _conv("third", "p", "y"),
    ]
    plan = _plan(_picture(nodes, weights={"w2": normal(3, 3, 3, 3, seed=9)}))
    assert set(plan.carriers) == {"join", "pool"}
    assert plan.ties == (frozenset({"a", "c", "k", "p"}),)


@pytest.mark.parametrize(
    ("op_type", "weights", "attributes", "axis", "channels"),
    [
        ("Conv", (4, 3, 1, 1), {}, 0, 4),
        ("ConvTranspose", (3, 4, 2, 2), {}, 1, 4),
        ("ConvTranspose", (4, 2, 2, 2), {"group": 2}, 1, 4),
    ],
)
def test_channels_of_weights(
    op_type: str, weights: tuple[int, ...], attributes: Any, axis: int, channels: int
) -> None:
    groups = attributes.get("group", 1)
    width = weights[0] if op_type == "ConvTranspose" else weights[1] * groups
    model = model_of(
        [node(op_type, ["x", "w"], ["y"], name="layer", **attributes)],
        inputs=[tensor_info("x", (1, width, 4, 4))],
        weights={"w": normal(*weights)},
        opset=21,
    )
    (layer,) = _plan(model).layers
    assert (layer.axis, layer.num_channels) == (axis, channels)


@pytest.mark.parametrize(("transposed", "axis"), [(0, 1), (1, 0)])
def test_channels_of_products(transposed: int, axis: int) -> None:
    shape = (5, 3) if transposed else (3, 5)
    model = model_of(
        [node("Gemm", ["x", "w", "b"], ["y"], name="layer", transB=transposed)],
        inputs=[tensor_info("x", ("n", 3))],
        weights={"w": normal(*shape), "b": normal(1, 5)},
        opset=21,
    )
    (layer,) = _plan(model).layers
    assert (layer.axis, layer.num_channels) == (axis, 5)
    assert layer.bias is not None
    assert layer.bias.shape == (5,)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([node("MatMul", ["x", "x"], ["y"], name="p")], "its weights are not constant"),
        (
            [node("Gemm", ["x", "m"], ["y"], name="p", alpha=2.0)],
            "it is a Gemm with transA, alpha or beta",
        ),
        ([node("MatMul", ["x", "inf"], ["y"], name="p")], "a weight is NaN or infinite"),
        ([node("MatMul", ["x", "cube"], ["y"], name="p")], "its weights have 3 dims"),
        ([node("MatMul", ["x", "none"], ["y"], name="p")], "it has no weights"),
        ([node("Gemm", ["x", "m", "rows"], ["y"], name="p")], "its bias differs from row to row"),
        ([node("Gemm", ["x", "m", "x"], ["y"], name="p")], "its bias is not constant"),
    ],
)
def test_what_is_no_layer_has_a_reason(nodes: list[Any], reason: str) -> None:
    model = model_of(
        nodes,
        inputs=[tensor_info("x", (3, 3))],
        weights={
            "m": normal(3, 3),
            "inf": np.full((3, 3), np.inf, np.float32),
            "cube": normal(2, 3, 3),
            "none": np.zeros((3, 0), np.float32),
            "rows": normal(3, 3),
        },
        opset=21,
    )
    plan = _plan(model)
    assert plan.layers == ()
    assert [why for _, _, why in plan.kept] == [reason]


def test_excluded_nodes_stay_in_float() -> None:
    plan = _plan(_picture([_conv("first", "x", "y")]), exclude=["first"])
    assert plan.kept == (("first", "Conv", "excluded"),)
