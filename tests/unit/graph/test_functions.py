"""Function calls are replaced by bodies; recursion and explosions are refused."""

import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tilewright.core.errors import InvalidModel
from tilewright.core.record import DecisionLog
from tilewright.graph.functions import expand_functions
from tilewright.graph.load import load_model, view
from tilewright.graph.normalize import normalize
from tilewright.graph.reference import evaluate_graph
from unit.graph.models import model_of, node, tensor_info


def function(
    name: str, nodes: list[onnx.NodeProto], outputs: list[str], opset: int = 17, **more: list[str]
) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("f", 1)]
    return helper.make_function(
        "f", name, ["a"], outputs, nodes, imports, more.get("attributes", [])
    )


def call(name: str, inputs: list[str], outputs: list[str], **attributes: object) -> onnx.NodeProto:
    made: onnx.NodeProto = node(
        name, inputs, outputs, domain="f", name=f"call_{outputs[0]}", **attributes
    )
    return made


def run(model: onnx.ModelProto, x: list[float]) -> dict[str, np.ndarray]:
    loaded = load_model(model)
    normalize(loaded)
    return evaluate_graph(view(loaded), {"x": np.asarray(x, dtype=np.float32)})  # type: ignore[return-value]


def test_nested_functions_keep_their_own_opset_and_attributes() -> None:
    clip = node("Clip", ["a"], ["b"])
    reference = clip.attribute.add(name="max", type=onnx.AttributeProto.FLOAT)
    reference.ref_attr_name = "limit"
    inner = function("Inner", [clip], ["b"], opset=6, attributes=["limit"])
    twice = [
        node("Constant", [], ["two"], value_float=2.0),
        node("Mul", ["a", "two"], ["t"]),
        call("Inner", ["t"], ["c"], limit=3.0),
    ]
    outer = function("Outer", twice, ["c"])
    model = model_of(
        [call("Outer", ["x"], ["m"]), call("Outer", ["m"], ["y"])],
        functions=[inner, outer],
        domains=["f"],
    )
    np.testing.assert_array_equal(run(model, [-1, 1, 2])["y"], [-4, 3, 3])
    seen = view(load_model(model))
    assert {n.opset for n in seen.nodes if n.op_type == "Clip"} == {6}
    assert seen.outputs[0].name == "y"


def test_a_function_may_return_its_input_or_one_value_twice() -> None:
    same = function("Same", [node("Neg", ["a"], ["n"])], ["a", "n", "n"])
    model = model_of(
        [call("Same", ["x"], ["p", "q", "r"])],
        outputs=["p", "q", "r"],
        functions=[same],
        domains=["f"],
    )
    result = run(model, [1, -2])
    np.testing.assert_array_equal(result["p"], [1, -2])
    np.testing.assert_array_equal(result["q"], [-1, 2])
    np.testing.assert_array_equal(result["r"], [-1, 2])


def test_a_call_in_a_sub_graph_and_a_sub_graph_in_a_body() -> None:
    def graph(nodes: list[onnx.NodeProto], out: str) -> onnx.GraphProto:
        return helper.make_graph(nodes, "g", [], [tensor_info(out, None)])

    choose = node(
        "If",
        ["c"],
        ["r"],
        then_branch=graph([node("Neg", ["a"], ["v"])], "v"),
        else_branch=graph([node("Abs", ["a"], ["v"])], "v"),
    )
    body = function(
        "Body",
        [node("ReduceSum", ["a"], ["s"], keepdims=0), node("Cast", ["s"], ["c"], to=9), choose],
        ["r"],
    )
    outer = node(
        "If",
        ["flag"],
        ["y"],
        then_branch=graph([call("Body", ["x"], ["w"])], "w"),
        else_branch=graph([node("Identity", ["x"], ["w"])], "w"),
    )
    model = model_of([outer], functions=[body], domains=["f"])
    model.graph.initializer.append(helper.make_tensor("flag", TensorProto.BOOL, [], [True]))
    np.testing.assert_array_equal(run(model, [-1, 2])["y"], [1, -2])
    np.testing.assert_array_equal(run(model, [-1, 1])["y"], [1, 1])


def test_recursion_is_refused() -> None:
    a = function("A", [call("B", ["a"], ["b"])], ["b"])
    b = function("B", [call("A", ["a"], ["b"])], ["b"])
    model = model_of([call("A", ["x"], ["y"])], functions=[a, b], domains=["f"])
    with pytest.raises(InvalidModel, match="A -> B -> A"):
        load_model(model)


def test_an_exponential_expansion_is_refused_at_once() -> None:
    functions = [function("F0", [node("Neg", ["a"], ["b"])], ["b"])]
    for k in range(1, 60):
        two = [call(f"F{k - 1}", ["a"], ["m"]), call(f"F{k - 1}", ["m"], ["b"])]
        functions.append(function(f"F{k}", two, ["b"]))
    model = model_of([call("F59", ["x"], ["y"])], functions=functions, domains=["f"])
    start = time.monotonic()
    with pytest.raises(InvalidModel, match="expand to"):
        load_model(model)
    assert time.monotonic() - start < 30  # expanding would take forever


@pytest.mark.parametrize("inputs", [["x", "x"], ["x", "x", "x"]])
def test_wrong_numbers_of_arguments_are_refused(inputs: list[str]) -> None:
    same = function("Same", [node("Neg", ["a"], ["n"])], ["n"])
    model = model_of([call("Same", inputs, ["y"])], functions=[same], domains=["f"])
    with pytest.raises(InvalidModel, match="the function has 1"):
        load_model(model)


@pytest.mark.parametrize(
    ("op", "attributes"), [("HardSwish", {}), ("Elu", {}), ("Gelu", {"approximate": "tanh"})]
)
def test_operators_are_expanded_into_their_bodies(op: str, attributes: dict[str, str]) -> None:
    loaded = load_model(model_of([node(op, ["x"], ["y"], **attributes)], opset=22))
    normalize(loaded)
    x = np.asarray([-2, 0.5], dtype=np.float32)
    before = evaluate_graph(view(loaded), {"x": x})["y"]
    log = DecisionLog()
    left = expand_functions(loaded, lambda domain, name: (domain, name) == ("", op), log=log)
    seen = view(loaded)
    assert left == []
    assert op not in {n.op_type for n in seen.nodes}
    assert [entry.stage for entry in log.entries] == ["expand_functions"]
    np.testing.assert_allclose(evaluate_graph(seen, {"x": x})["y"], before, rtol=1e-5)  # type: ignore[arg-type]


def test_operators_without_a_body_are_reported() -> None:
    loaded = load_model(model_of([node("Sin", ["x"], ["y"], name="n1")]))
    assert expand_functions(loaded, lambda _domain, name: name == "Sin") == ["n1 (Sin)"]
