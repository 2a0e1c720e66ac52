"""Source nodes through normalisation and passes: kept, merged, split, folded, removed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model
from tilewright.graph.lineage import Origin
from unit.graph.models import model_of, node, tensor_info


def origins_of(model: onnx.ModelProto) -> dict[str, Origin]:
    log = DecisionLog()
    loaded = Model.load(model, log)
    loaded.run_passes(log)
    return {origin.node.name: origin for origin in loaded.origins()}


def normal(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def test_a_node_that_stays_computes_itself() -> None:
    origins = origins_of(model_of([node("Relu", ["x"], ["y"], name="relu")], opset=21))
    assert origins["relu"].computed_by == ("relu",)
    assert origins["relu"].gone_in == ""


def test_a_folded_scale_lives_on_in_the_convolution() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv"),
        node("Mul", ["c", "two"], ["m"], name="mul"),
        node("Relu", ["m"], ["y"], name="relu"),
    ]
    model = model_of(
        nodes,
        inputs=[tensor_info("x", (1, 3, 8, 8))],
        weights={"w": normal(4, 3, 3, 3), "two": np.float32(2)},
        opset=21,
    )
    origins = origins_of(model)
    assert origins["mul"].gone_in == origins["conv"].gone_in == "fold_scale"
    assert origins["mul"].computed_by == origins["conv"].computed_by
    assert len(origins["conv"].computed_by) == 1
    assert origins["relu"].computed_by == ("relu",)


def test_a_removed_node_is_computed_by_none() -> None:
    nodes = [
        node("Relu", ["x"], ["r"], name="relu"),
        node("Transpose", ["r"], ["t"], name="first", perm=[1, 0]),
        node("Transpose", ["t"], ["u"], name="second", perm=[1, 0]),
        node("Relu", ["x"], ["r2"], name="twin"),
        node("Add", ["u", "r2"], ["y"], name="add"),
        node("Neg", ["x"], ["dead"], name="dead"),
    ]
    origins = origins_of(model_of(nodes, inputs=[tensor_info("x", (3, 4))], opset=21))
    for name, stage in (
        ("first", "cancel_transposes"),
        ("second", "cancel_transposes"),
        ("twin", "eliminate_common_subexpressions"),
        ("dead", "eliminate_dead_nodes"),
    ):
        assert (origins[name].computed_by, origins[name].gone_in) == ((), stage)
    assert origins["add"].computed_by == ("add",)


def test_a_folded_constant_says_so() -> None:
    nodes = [
        node("Constant", [], ["k"], name="k", value_floats=[1.0, 2.0]),
        node("Neg", ["k"], ["m"], name="neg"),
        node("Add", ["x", "m"], ["y"], name="add"),
    ]
    origins = origins_of(model_of(nodes, opset=21))
    assert origins["neg"].computed_by == ()
    assert origins["neg"].gone_in == "fold_constants"
    assert origins["neg"].is_constant


def test_several_nodes_become_one() -> None:
    nodes = [
        node("Sigmoid", ["x"], ["s"], name="sigmoid"),
        node("Mul", ["x", "s"], ["y"], name="mul"),
    ]
    origins = origins_of(model_of(nodes, inputs=[tensor_info("x", (4, 5))], opset=21))
    assert origins["sigmoid"].computed_by == origins["mul"].computed_by
    assert len(origins["mul"].computed_by) == 1
    assert origins["mul"].gone_in == "recognise_swish"


def test_one_node_becomes_several() -> None:
    nodes = [
        node("MatMul", ["x", "a"], ["p"], name="left"),
        node("MatMul", ["x", "b"], ["q"], name="right"),
        node("MatMul", ["p", "q"], ["y"], name="both"),
    ]
    model = model_of(
        nodes,
        inputs=[tensor_info("x", (8, 8))],
        weights={"a": normal(8, 8), "b": normal(8, 8) + 1},
        opset=21,
    )
    origins = origins_of(model)
    assert len(origins["left"].computed_by) == 2  # the joined product and its split
    assert origins["left"].computed_by == origins["right"].computed_by
    assert origins["both"].computed_by == ("both",)


def test_old_forms_are_followed_through_normalisation() -> None:
    nodes = [node("Upsample", ["x", "s"], ["y"], name="up", mode="nearest")]
    model = model_of(
        nodes,
        inputs=[tensor_info("x", (1, 2, 4, 4))],
        weights={"s": np.array([1, 1, 2, 2], np.float32)},
        opset=9,
    )
    (origin,) = origins_of(model).values()
    assert origin.gone_in in ("", "normalize")
    assert len(origin.computed_by) == 1


def test_nodes_of_a_branch_are_followed_out_of_it() -> None:
    inner = tensor_info("b", (2,))
    then = helper.make_graph([node("Neg", ["x"], ["b"], name="neg")], "then", [], [inner])
    other = helper.make_graph(
        [node("Exp", ["x"], ["b2"], name="exp")], "else", [], [tensor_info("b2", (2,))]
    )
    condition = helper.make_tensor("c", TensorProto.BOOL, [], [1])
    nodes = [
        node("Constant", [], ["c"], name="c", value=condition),
        node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=other),
    ]
    origins = origins_of(model_of(nodes, opset=21))
    assert origins["neg"].computed_by == ("neg",)
    assert (origins["if"].computed_by, origins["if"].gone_in) == ((), "inline_branches")
    assert (origins["exp"].computed_by, origins["exp"].gone_in) == ((), "inline_branches")
