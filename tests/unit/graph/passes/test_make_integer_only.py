"""Functions between integers become integer arithmetic where that is possible, with the reason."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import tilewright as tw
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model
from unit.graph.models import model_of, node, tensor_info

ROW = ("n", 32)


def between(
    *nodes: Any, shape: Any = ROW, zero: Any = None, weights: Any = None, more: Any = ()
) -> onnx.ModelProto:
    """x -> Q DQ -> nodes, from ``d`` to ``f`` -> Q DQ -> y."""
    zero = np.int8(0) if zero is None else zero
    known = {"sx": np.float32(4 / 127), "zx": np.int8(2), "sy": np.float32(4 / 127), "zy": zero}
    around = [
        node("QuantizeLinear", ["x", "sx", "zx"], ["q"], name="q"),
        node("DequantizeLinear", ["q", "sx", "zx"], ["d"], name="dq"),
        *nodes,
        node("QuantizeLinear", ["f", "sy", "zy"], ["r"], name="q2"),
        node("DequantizeLinear", ["r", "sy", "zy"], ["y"], name="dq2"),
    ]
    return model_of(
        around,
        inputs=[tensor_info("x", shape)],
        outputs=["y", *more],
        weights={**known, **(weights or {})},
        opset=21,
    )


def made(model: onnx.ModelProto) -> tuple[list[str], list[str]]:
    """The graph's operators afterwards, and the reasons against."""
    log = DecisionLog()
    found = Model.load(model, log)
    found.make_integer_only(log)
    entries = [one for one in log.entries if one.stage == "make_integer_only"]
    return (
        [one.op_type for one in found.original.nodes],
        [reason for one in entries for _, reason in one.rejected],
    )


def layer_norm(**attributes: Any) -> Any:
    return node("LayerNormalization", ["d", "g", "b"], ["f"], name="norm", axis=-1, **attributes)


WEIGHTS = {"g": np.linspace(0.5, 2, 32, dtype=np.float32), "b": np.ones(32, np.float32)}


@pytest.mark.parametrize("op_type", ["Exp", "Sqrt", "Sigmoid", "Gelu", "Softmax"])
def test_a_function_becomes_one_operator(op_type: str) -> None:
    operators, reasons = made(between(node(op_type, ["d"], ["f"], name="f")))
    assert operators == ["QuantizeLinear", f"Integer{op_type}", "DequantizeLinear"]
    assert not reasons


def test_a_layer_normalisation_and_a_gelu_that_is_spelt_out() -> None:
    operators, _ = made(between(layer_norm(), weights=WEIGHTS))
    assert operators[1] == "IntegerLayerNormalization"
    spelt = [
        node("Div", ["d", "root"], ["a"]),
        node("Erf", ["a"], ["e"]),
        node("Add", ["e", "one"], ["p"]),
        node("Mul", ["d", "p"], ["m"]),
        node("Mul", ["m", "half"], ["f"]),
    ]
    numbers = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}
    operators, _ = made(between(*spelt, weights=numbers))
    assert operators[1] == "IntegerGelu"


def test_what_stays_in_floats_says_why() -> None:
    exp = node("Exp", ["d"], ["f"], name="f")
    assert "another reader" in made(between(exp, node("Neg", ["f"], ["z"]), more=["z"]))[1][-1]
    assert "graph output" in made(between(exp, more=["f"]))[1][-1]
    assert "at most 16 bits" in made(between(exp, zero=ml_dtypes.float8_e4m3fn(0)))[1][-1]
    softmax = node("Softmax", ["d"], ["f"], name="f", axis=0)
    assert "rows of n" in made(between(softmax))[1][-1]
    inner = [node("Neg", ["d"], ["c"]), node("Exp", ["c"], ["f"], name="f")]
    assert "reads floats" in made(between(*inner))[1][-1]
    log = node("Log", ["d"], ["f"], name="f")
    assert len(made(between(log))[1]) == 0  # there is no such function
    huge = {"g": np.full(32, 1e9, np.float32), "b": np.full(32, 1e30, np.float32)}
    assert "beyond 2**29 steps" in made(between(layer_norm(), weights=huge))[1][-1]
    scaled = between(exp, weights={"sx": np.full(32, 0.1, np.float32), "zx": np.zeros(32, np.int8)})
    assert "no single constant" in made(scaled)[1][-1]


def test_the_choice_is_recorded_and_the_engine_is_held_to_it() -> None:
    model = between(node("Softmax", ["d"], ["f"], name="f"))
    exact = tw.compile(model, threads=1, cache=None)
    engine = tw.compile(model, threads=1, cache=None, integer_only=True, require=["compiled"])
    assert engine.info["integer_only"] is True
    assert exact.info["integer_only"] is False
    (decision,) = [one for one in engine.decisions if "int32 arithmetic" in one.chosen]
    assert "error at most 0.0001" in decision.chosen
    x = np.random.default_rng(0).standard_normal((3, 32), np.float32)
    step = 4 / 127
    assert np.abs(engine(x=x)["y"] - exact(x=x)["y"]).max() <= step * 1.01


def test_the_option_is_a_flag() -> None:
    model = between(node("Exp", ["d"], ["f"], name="f"))
    wrong: Any = "yes"
    with pytest.raises(tw.UserError, match="integer_only"):
        tw.compile(model, integer_only=wrong)
