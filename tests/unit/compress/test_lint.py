"""A clean quantised model has no finding; each fault is found, with its node, remedy and price."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from tilewright.compress.finding import Finding
from tilewright.compress.lint import NUMBERS, PLACEMENT, lint
from tilewright.core.errors import BadOption
from unit.graph.models import model_of, node, tensor_info

S_X, S_H, S_Y = np.float32(0.1), np.float32(0.2), np.float32(0.3)
Edit = Callable[["Draft"], None]


@dataclass
class Draft:
    """x -> Q DQ -> Conv Relu -> Q DQ -> Conv, Add(of a DQ) -> Q DQ, every parameter at hand."""

    opset: int = 17
    weights: dict[str, Any] = field(default_factory=dict)
    nodes: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        random = np.random.default_rng(0)
        scale = np.array([0.01, 0.02, 0.03, 0.04], np.float32)
        for index, source in enumerate((S_X, S_H)):
            self.weights |= {
                f"w{index}": random.integers(1, 100, (4, 4, 3, 3)).astype(np.int8),
                f"ws{index}": scale.copy(),
                f"wz{index}": np.zeros(4, np.int8),
                f"b{index}": random.integers(-99, 99, 4).astype(np.int32),
                f"bs{index}": source * scale,
            }
        for name, value in (("x", S_X), ("h", S_H), ("y", S_Y)):
            self.weights |= {f"s_{name}": value, f"z_{name}": np.uint8(3)}
        self.nodes = [
            *self.quantised("x", "xd", "x"),
            *self.conv(0, "xd", "c0"),
            node("Relu", ["c0"], ["r"], name="relu"),
            *self.quantised("r", "h", "h"),
            *self.conv(1, "h", "c1"),
            node("Add", ["c1", "h"], ["a"], name="add"),
            *self.quantised("a", "y", "y"),
        ]

    def quantised(self, source: str, result: str, scale: str) -> list[Any]:
        parameters = [f"s_{scale}", f"z_{scale}"]
        return [
            node("QuantizeLinear", [source, *parameters], [f"{result}_q"], name=f"q_{result}"),
            node("DequantizeLinear", [f"{result}_q", *parameters], [result], name=f"dq_{result}"),
        ]

    def conv(self, index: int, source: str, result: str) -> list[Any]:
        w, b = f"w{index}", f"b{index}"
        return [
            node(
                "DequantizeLinear", [w, f"ws{index}", f"wz{index}"], [w + "d"], name="d" + w, axis=0
            ),
            node("DequantizeLinear", [b, f"bs{index}"], [b + "d"], name="d" + b, axis=0),
            node(
                "Conv", [source, w + "d", b + "d"], [result], name=f"conv{index}", pads=[1, 1, 1, 1]
            ),
        ]

    def replace(self, name: str, *new: Any) -> None:
        at = next(index for index, one in enumerate(self.nodes) if one.name == name)
        self.nodes[at : at + 1] = new

    def named(self, name: str) -> Any:
        return next(one for one in self.nodes if one.name == name)

    def model(self) -> onnx.ModelProto:
        x = tensor_info("x", ("n", 4, 64, 64))
        return model_of(
            self.nodes,
            inputs=[x],
            weights=self.weights,
            opset=self.opset,
            domains=["com.microsoft"],
        )


def findings(edit: Edit) -> tuple[Finding, ...]:
    draft = Draft()
    edit(draft)
    return lint(draft.model(), sizes={"n": 2})


def test_a_clean_model_has_no_finding() -> None:
    assert lint(Draft().model()) == ()


def _wrong_axis(draft: Draft) -> None:
    draft.replace("dw0", node("DequantizeLinear", ["w0", "ws0"], ["w0d"], name="dw0", axis=1))


def _axis_of_another_size(draft: Draft) -> None:
    draft.replace("dw0", node("DequantizeLinear", ["w0", "ws0"], ["w0d"], name="dw0", axis=2))


def _zero_of_another_type(draft: Draft) -> None:
    draft.weights["wz0"] = np.zeros(4, np.uint8)


def _zero_of_another_shape(draft: Draft) -> None:
    draft.weights["wz0"] = np.zeros(2, np.int8)


def _zero_of_a_bias(draft: Draft) -> None:
    draft.weights["bz"] = np.ones(4, np.int32)
    inputs = ["b0", "bs0", "bz"]
    draft.replace("db0", node("DequantizeLinear", inputs, ["b0d"], name="db0", axis=0))


def _weights_off_centre(draft: Draft) -> None:
    draft.weights["wz0"] = np.array([0, 0, 5, 0], np.int8)


def _scale_of_zero(draft: Draft) -> None:
    draft.weights["s_y"] = np.float32(0)


def _bias_scale(draft: Draft) -> None:
    draft.weights["bs0"] = draft.weights["bs0"] * np.array([1, 1, 2, 1], np.float32)


def _old_opset_for_a_type(draft: Draft) -> None:
    draft.weights["w0"] = (draft.weights["w0"] % 8).astype(ml_dtypes.int4)
    draft.weights["wz0"] = draft.weights["wz0"].astype(ml_dtypes.int4)


def _old_opset_for_an_attribute(draft: Draft) -> None:
    draft.opset = 12


def _dead_by_its_weights(draft: Draft) -> None:
    draft.weights["w1"][2] = 0


def _dead_by_its_scale(draft: Draft) -> None:
    draft.weights["ws1"][3] = 0
    draft.weights["bs1"][3] = 0


def _weights_as_floats(draft: Draft) -> None:
    scale = draft.weights["ws0"].reshape(4, 1, 1, 1)
    draft.weights["wf"] = draft.weights.pop("w0").astype(np.float32) * scale
    quantize = node("QuantizeLinear", ["wf", "ws0", "wz0"], ["w0"], name="qw", axis=0)
    draft.nodes.insert(0, quantize)


def _q_before_relu(draft: Draft) -> None:
    draft.replace(
        "relu",
        *draft.quantised("c0", "early", "h"),
        node("Relu", ["early"], ["r"], name="relu"),
    )


def _float_data(draft: Draft) -> None:
    draft.named("conv1").input[0] = "r"


def _float_pool(draft: Draft) -> None:
    draft.replace("relu", node("MaxPool", ["c0"], ["r"], name="pool", kernel_shape=[1, 1]))


def _same_scale_twice(draft: Draft) -> None:
    draft.replace("q_h", *draft.quantised("r", "twice", "h"), *draft.quantised("twice", "h", "h"))
    draft.nodes.remove(draft.named("dq_h"))


def _another_scale(draft: Draft) -> None:
    draft.replace("q_h", *draft.quantised("r", "twice", "y"), *draft.quantised("twice", "h", "h"))
    draft.nodes.remove(draft.named("dq_h"))


FAULTS: list[tuple[Edit, str, str, str]] = [
    (_wrong_axis, "weight-axis", "dw0", "along axis 1"),
    (_axis_of_another_size, "weight-axis", "dw0", "another size"),
    (_zero_of_another_type, "zero-point-type", "dw0", "uint8"),
    (_zero_of_another_shape, "zero-point-shape", "dw0", "2 zero points for 4 scales"),
    (_zero_of_a_bias, "zero-point-value", "db0", "must be 0"),
    (_weights_off_centre, "weight-zero-point", "conv0", "1 channel: 2"),
    (_scale_of_zero, "scale", "q_y", "no positive"),
    (_bias_scale, "bias-scale", "db0", "in channel 2"),
    (_old_opset_for_a_type, "opset", "dw0", "type int4"),
    (_old_opset_for_an_attribute, "opset", "dw0", "attribute axis"),
    (_dead_by_its_weights, "dead-channel", "conv1", "1 output channel: 2 of 4"),
    (_dead_by_its_scale, "dead-channel", "conv1", "1 output channel: 3 of 4"),
    (_weights_as_floats, "size-growth", "qw", "stored as float32"),
    (_q_before_relu, "q-before-activation", "q_early", "could be one kernel"),
    (_float_pool, "float-gap", "pool", "reads c0 as float32"),
    (_float_data, "float-contraction", "conv1", "r is float32"),
    (_same_scale_twice, "requantised", "q_h", "does nothing"),
    (_another_scale, "requantised", "q_h", "another scale"),
]


@pytest.mark.parametrize(("edit", "rule", "where", "message"), FAULTS)
def test_each_fault_is_found(edit: Edit, rule: str, where: str, message: str) -> None:
    found = [one for one in findings(edit) if one.rule == rule]
    assert where in {one.node.split(" ")[0] for one in found}
    assert any(message in one.message for one in found)
    assert all(one.remedy for one in found)


def test_no_fault_of_the_list_brings_a_finding_of_another_rule() -> None:
    also = {"_zero_of_another_type": {"weight-zero-point"}, "_float_data": {"float-gap"}}
    for edit, rule, _, _ in FAULTS:
        others = {one.rule for one in findings(edit)} - {rule}
        assert others <= also.get(edit.__name__, set()), edit.__name__


def test_a_residual_sum_holds_one_operand_and_reads_the_other() -> None:
    weights = Draft().weights
    draft = Draft()
    nodes = [
        *draft.quantised("x", "xd", "x"),
        *draft.conv(0, "xd", "c0"),
        node("Conv", ["xd", "w0d", "b0d"], ["c1"], name="other", pads=[1, 1, 1, 1]),
        node("Add", ["c0", "c1"], ["a"], name="add"),
        *draft.quantised("a", "y", "y"),
    ]
    model = model_of(nodes, inputs=[tensor_info("x", (1, 4, 64, 64))], weights=weights)
    (found,) = lint(model)
    assert (found.rule, found.node) == ("residual-in-float", "add (Add)")
    assert "on c1" in found.remedy
    assert found.price_us is not None
    assert found.price_us > 0


def test_placement_has_a_price_and_growth_has_bytes() -> None:
    for edit, _, _, _ in FAULTS:
        for one in findings(edit):
            if one.rule in ("q-before-activation", "float-gap", "float-contraction", "requantised"):
                assert one.price_us is not None
                assert one.price_us > 0
                assert "us a run" in str(one)
            if one.rule == "size-growth":
                assert one.price_bytes == 4 * 4 * 9 * 3
    (small,) = (one.price_us for one in findings(_float_data) if one.rule == "float-contraction")
    draft = Draft()
    _float_data(draft)
    large = [one for one in lint(draft.model(), sizes={"n": 4}) if one.rule == "float-contraction"]
    assert small is not None
    assert large[0].price_us == pytest.approx(2 * small)


def test_a_transposed_convolution_has_its_channels_along_axis_1() -> None:
    def model(axis: int) -> onnx.ModelProto:
        weights = {
            "s": np.float32(0.1),
            "z": np.uint8(0),
            "w": np.ones((3, 3, 2, 2), np.int8),
            "ws": np.full(3, 0.5, np.float32),
        }
        nodes = [
            node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q"),
            node("DequantizeLinear", ["q", "s", "z"], ["d"], name="d"),
            node("DequantizeLinear", ["w", "ws"], ["wd"], name="dw", axis=axis),
            node("ConvTranspose", ["d", "wd"], ["y"], name="up"),
        ]
        return model_of(nodes, inputs=[tensor_info("x", (1, 3, 4, 4))], weights=weights)

    assert lint(model(1)) == ()
    assert [one.rule for one in lint(model(0))] == ["weight-axis"]


def test_weights_are_followed_through_a_transpose() -> None:
    def model(axis: int) -> onnx.ModelProto:
        weights = {"w": np.ones((3, 3), np.int8), "ws": np.full(3, 0.5, np.float32)}
        nodes = [
            node("DequantizeLinear", ["w", "ws"], ["wd"], name="dw", axis=axis),
            node("Transpose", ["wd"], ["wt"], perm=[1, 0]),
            node("MatMul", ["x", "wt"], ["y"], name="product"),
        ]
        return model_of(nodes, inputs=[tensor_info("x", (2, 3))], weights=weights)

    assert lint(model(0)) == ()
    assert [one.rule for one in lint(model(1))] == ["weight-axis"]


def test_integer_operators_are_looked_at_too() -> None:
    weights = {
        "one": np.float32(1),
        "z": np.uint8(3),
        "w": np.ones((2, 3, 1, 1), np.int8),
        "ws": np.full(2, 0.5, np.float32),
        "wz": np.array([0, 4], np.int8),
    }
    nodes = [
        node("QuantizeLinear", ["x", "one", "z"], ["q"], name="q"),
        node("QLinearConv", ["q", "one", "z", "w", "ws", "wz", "one", "z"], ["c"], name="conv"),
        node("DequantizeLinear", ["c", "one", "z"], ["y"], name="dq"),
    ]
    model = model_of(nodes, inputs=[tensor_info("x", (1, 3, 4, 4))], weights=weights)
    (found,) = lint(model)
    assert (found.rule, found.node) == ("weight-zero-point", "conv (QLinearConv)")


def test_a_model_of_small_weights_alone_is_clean() -> None:
    weights = {"w": np.ones((3, 3), np.int8), "ws": np.full(3, 0.5, np.float32)}
    nodes = [
        node("DequantizeLinear", ["w", "ws"], ["wd"], name="dw", axis=1),
        node("MatMul", ["x", "wd"], ["y"], name="product"),
    ]
    model = model_of(nodes, inputs=[tensor_info("x", (2, 3))], weights=weights)
    assert lint(model) == ()


def test_errors_come_first() -> None:
    def both(draft: Draft) -> None:
        _dead_by_its_weights(draft)
        _bias_scale(draft)

    assert [one.severity for one in findings(both)] == ["error", "warning"]


def test_an_unknown_dim_is_refused() -> None:
    with pytest.raises(BadOption, match="unknown dims"):
        lint(Draft().model(), sizes={"m": 2})


def test_every_rule_has_a_broken_model() -> None:
    assert len(NUMBERS) + len(PLACEMENT) == 12
    # The zero points have four names; the residual has a test of its own.
    assert len({rule for _, rule, _, _ in FAULTS}) == 12 + 3 - 1
