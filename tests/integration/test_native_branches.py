"""``If`` without the host: both sides lie in one segment, and only the chosen one runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.core.errors import OutOfRange, ShapeMismatch
from tilewright.runtime.program import Branch, Segment

F = TensorProto.FLOAT
_STAGE = "native_branches"

Node = onnx.NodeProto


def _value(name: str, shape: list[Any] | None = None, dtype: int = F) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def _side(name: str, nodes: list[Node], outputs: list[str]) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [_value(output) for output in outputs])


def _if(then: onnx.GraphProto, other: onnx.GraphProto, output: str = "y", name: str = "if") -> Node:
    return helper.make_node("If", ["c"], [output], name=name, then_branch=then, else_branch=other)


def _model(
    nodes: list[Node], *, condition: list[Any] | None = None, arrays: dict[str, Any] | None = None
) -> onnx.ModelProto:
    inputs = [_value("x", ["n", 8]), _value("c", condition or [], TensorProto.BOOL)]
    inputs.append(_value("i", [2], TensorProto.INT64))
    constants = [numpy_helper.from_array(array, name) for name, array in (arrays or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, [_value("y")], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def _node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> Node:
    return helper.make_node(op_type, inputs.split(), outputs.split(), **attributes)


def _double(name: str = "double") -> onnx.GraphProto:
    return _side(name, [_node("Add", "x x", name + "_y", name=name)], [name + "_y"])


def _square(name: str = "square") -> onnx.GraphProto:
    return _side(name, [_node("Mul", "x x", name + "_y", name=name)], [name + "_y"])


def _feeds(chosen: bool, shape: tuple[int, ...] = (3, 8)) -> dict[str, Any]:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return {"x": x, "c": np.array(chosen), "i": np.array([0, 1])}


def _reasons(engine: tw.Engine) -> list[str]:
    return [
        reason
        for decision in engine.decisions
        if decision.stage == _STAGE
        for _, reason in decision.rejected
    ]


def _is_native(engine: tw.Engine) -> bool:
    return [type(step) for step in engine.program.steps] == [Segment]


@pytest.mark.parametrize("threads", [1, 2])
def test_the_chosen_side_runs(threads: int, tmp_path: Path) -> None:
    model = _model(
        [
            _node("Relu", "x", "before"),
            _if(_double(), _square(), "z"),
            _node("Sub", "z before", "y"),
        ]
    )
    tw.compile(model, threads=threads).save(tmp_path / "a.tw")
    engine = tw.load(tmp_path / "a.tw")
    assert _is_native(engine)
    x = _feeds(True)["x"]
    np.testing.assert_array_equal(engine.run(_feeds(True))["y"], x)
    np.testing.assert_array_equal(engine.run(_feeds(False))["y"], x * x - x)


def test_the_node_is_placed_and_the_other_side_takes_no_calls() -> None:
    engine = tw.compile(_model([_if(_double(), _square())]))
    placed = {placement.node: placement.place for placement in engine.placements}
    assert placed["if"] == "kernel"
    profile = engine.profile(_feeds(True), runs=3)
    calls = {kernel.name: kernel.calls for kernel in profile.kernels}
    assert sorted(calls.values()) == [0, 1]


def test_nested_branches() -> None:
    inner = _side("inner", [_if(_double("a"), _square("b"), "inner_y", "if_inner")], ["inner_y"])
    other = _side("other", [_node("Neg", "x", "other_y")], ["other_y"])
    nodes = [
        _node("ReduceMax", "x", "top", keepdims=0),
        _node("Greater", "top five", "c2"),
        helper.make_node("If", ["c2"], ["y"], name="if", then_branch=inner, else_branch=other),
    ]
    engine = tw.compile(_model(nodes, arrays={"five": np.float32(5.0)}))
    assert _is_native(engine)
    x = _feeds(True)["x"]
    np.testing.assert_array_equal(engine.run(_feeds(True))["y"], x + x)
    np.testing.assert_array_equal(engine.run(_feeds(False))["y"], x * x)
    small = {**_feeds(True), "x": x / 100}
    np.testing.assert_array_equal(engine.run(small)["y"], -x / 100)


def test_an_error_of_the_other_side_is_none() -> None:
    gather = _side(
        "gather", [_node("Gather", "x i", "gather_y", axis=1, name="pick")], ["gather_y"]
    )
    other = _side("other", [_node("Slice", "x zero two one", "other_y")], ["other_y"])
    arrays = {
        "zero": np.array([0]),
        "two": np.array([2]),
        "one": np.array([1]),
    }
    engine = tw.compile(_model([_if(gather, other)], arrays=arrays))
    assert _is_native(engine)
    wrong = np.array([0, 99])
    result = engine.run({**_feeds(False), "i": wrong})["y"]
    np.testing.assert_array_equal(result, _feeds(False)["x"][:, :2])
    with pytest.raises(OutOfRange) as caught:
        engine.run({**_feeds(True), "i": wrong})
    assert caught.value.node == "pick"


def _cut() -> onnx.GraphProto:
    """Takes two rows away, and adds them again."""
    nodes = [
        _node("Pad", "x minus", "cut_a", name="cut"),
        _node("Relu", "cut_a", "cut_b"),
        _node("Pad", "cut_b plus", "cut_y"),
    ]
    return _side("cut", nodes, ["cut_y"])


def test_sizes_that_only_one_side_forbids() -> None:
    arrays = {"minus": np.array([-2, 0, 0, 0]), "plus": np.array([2, 0, 0, 0])}
    engine = tw.compile(_model([_if(_cut(), _square())], arrays=arrays))
    assert _is_native(engine)
    x = _feeds(False, (1, 8))["x"]
    np.testing.assert_array_equal(engine.run(_feeds(False, (1, 8)))["y"], x * x)
    with pytest.raises(ShapeMismatch, match="size n-2 = -1 with n = 1") as caught:
        engine.run(_feeds(True, (1, 8)))
    assert caught.value.node == "cut"
    assert engine.run(_feeds(True, (3, 8)))["y"].shape == (3, 8)


def test_a_side_that_never_fits() -> None:
    """Its shapes contradict each other, which is an error only for those who get there."""
    nodes = [_node("MatMul", "x x", "never_y", name="wrong")]
    engine = tw.compile(
        _model([_if(_side("never", nodes, ["never_y"]), _square())]), dims={"n": (3, 3)}
    )
    x = _feeds(False)["x"]
    np.testing.assert_array_equal(engine.run(_feeds(False))["y"], x * x)
    with pytest.raises(ShapeMismatch) as caught:
        engine.run(_feeds(True))
    assert caught.value.node == "wrong"


# --- what stays on the host, and why --------------------------------------------------------------


def _passes_on() -> Node:
    return _if(_side("same", [_node("Identity", "x", "same_y")], ["same_y"]), _square())


def _differs() -> Node:
    first = _side("rows", [_node("ReduceMax", "x", "rows_y", keepdims=1)], ["rows_y"])
    return _if(first, _square())


def _on_the_host() -> Node:
    nodes = [
        _node("SequenceConstruct", "x x", "seq"),
        _node("ConcatFromSequence", "seq", "cat", axis=0),
        _node("Relu", "cat", "host_y"),
    ]
    return _if(_side("host", nodes, ["host_y"]), _side("other", _stacked(), ["other_y"]))


def _stacked() -> list[Node]:
    return [_node("Concat", "x x", "other_a", axis=0), _node("Relu", "other_a", "other_y")]


def _finds_sizes() -> Node:
    nodes = [_node("NonZero", "x", "found"), _node("Cast", "found", "found_y", to=F)]
    return _if(_side("find", nodes, ["found_y"]), _square())


_STAYS = {
    "passes y on": (_passes_on, None),
    "size of y depends on the side": (_differs, None),
    "not one run of kernels": (_on_the_host, None),
    "Bind NonZero": (_finds_sizes, None),
    "no single boolean": (lambda: _if(_double(), _square()), ["k"]),
}


@pytest.mark.parametrize("reason", list(_STAYS))
def test_refusals(reason: str) -> None:
    make, condition = _STAYS[reason]
    engine = tw.compile(_model([make()], condition=condition))
    assert any(isinstance(step, Branch) for step in engine.program.steps)
    assert any(reason in found for found in _reasons(engine))
    feeds = _feeds(False)
    if condition:
        feeds["c"] = feeds["c"].reshape(1)
    engine.run(feeds)
