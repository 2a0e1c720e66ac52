"""Graphs as steps: what goes into one segment, what the host does, and what is kept for later."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.core.errors import InvalidModel
from tilewright.runtime.program import Bind, Branch, Interpret, Program, Repeat, Reshape, Segment
from unit.compiler.models import compiled, normal
from unit.graph.models import model_of, node, tensor_info


def build(*nodes: Any, outputs: tuple[str, ...] = ("y",), **more: Any) -> tw.Engine:
    inputs = more.pop("inputs", [tensor_info("x", ("n", 4))])
    return compiled(model_of(list(nodes), inputs=inputs, outputs=list(outputs), opset=21, **more))


def kinds(program: Program) -> list[str]:
    """What each step is: kernels and host operators by name."""
    found = []
    for step in program.steps:
        if isinstance(step, Segment):
            found.append(" ".join(name for call in step.calls for name in call.sources))
        elif isinstance(step, Interpret):
            found.append(f"host {step.node}")
        else:
            found.append(type(step).__name__)
    return found


def graph(
    nodes: list[onnx.NodeProto], inputs: list[Any], outputs: list[str], **weights: Any
) -> onnx.GraphProto:
    return helper.make_graph(
        nodes,
        "inner",
        inputs,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in weights.items()],
    )


HOST = node("Unique", ["x"], ["u"], name="unique")  # has no kernel


def test_kernels_without_the_host_in_between_are_one_segment() -> None:
    engine = build(
        node("MatMul", ["x", "w"], ["h"], name="product"),
        node("Softmax", ["h"], ["y"], name="softmax", axis=-1),
        weights={"w": normal(4, 4)},
    )
    assert kinds(engine.program) == ["product softmax"]
    (segment,) = engine.program.steps
    assert isinstance(segment, Segment)
    assert [spec.name for spec in segment.internal] == ["h"]
    assert {spec.name for spec in segment.inputs} >= {"x"}


def test_a_host_step_goes_before_a_segment_that_it_does_not_need() -> None:
    """So that what comes after it can join what came before it."""
    engine = build(
        node("Exp", ["x"], ["a"], name="exp"),
        HOST,
        node("ReduceSum", ["u"], ["s"], name="sum", keepdims=0),
        node("Add", ["a", "s"], ["y"], name="add"),
    )
    assert kinds(engine.program)[0] == "host unique"
    assert len(engine.program.steps) == 2


def test_a_host_step_waits_for_the_segment_that_it_reads() -> None:
    engine = build(
        node("Exp", ["x"], ["a"], name="exp"),
        node("Unique", ["a"], ["u"], name="unique"),
        node("Neg", ["u"], ["y"], name="neg"),
    )
    assert kinds(engine.program) == ["exp", "host unique", "neg"]


def test_a_node_without_a_kernel_says_why() -> None:
    engine = build(HOST, node("Neg", ["u"], ["y"], name="neg"))
    ((name, op, reason),) = engine.summary["interpreted"]
    assert (name, op) == ("unique", "Unique")
    (decision,) = [d for d in engine.decisions if d.subject == "unique" and d.stage == "lower"]
    assert decision.rejected == (("compile", reason),)


def test_sizes_found_in_data_are_bound_before_they_are_used() -> None:
    engine = build(
        node("NonZero", ["x"], ["places"], name="places"),
        node("Cast", ["places"], ["y"], name="cast", to=TensorProto.FLOAT),
    )
    steps = engine.program.steps
    assert isinstance(steps[0], Bind)
    assert isinstance(steps[-1], Segment)
    assert steps[0].symbols[0] in {
        name for spec in engine.outputs for dim in spec.shape or () for name in dim.symbols
    }


def test_known_values_become_constants_without_a_step() -> None:
    engine = build(
        node("Shape", ["x"], ["shape"], name="shape", start=1),
        node("Reshape", ["x", "flat"], ["r"], name="reshape"),
        node("Add", ["r", "one"], ["y"], name="add"),
        outputs=("y", "shape"),
        weights={"flat": np.array([-1]), "one": np.float32(1)},
    )
    assert kinds(engine.program) == ["add"]
    assert engine(x=normal(3, 4))["shape"].tolist() == [4]


def test_what_is_read_under_another_shape_later_becomes_a_view() -> None:
    engine = build(
        node("Exp", ["x"], ["a"], name="exp"),
        node("Reshape", ["a", "flat"], ["f"], name="reshape"),
        node("Unique", ["f"], ["y"], name="unique"),
        weights={"flat": np.array([-1])},
    )
    assert kinds(engine.program) == ["exp", "Reshape", "host unique"]
    view = engine.program.steps[1]
    assert isinstance(view, Reshape)
    assert (view.source, view.target.name) == ("a", "f")


def test_a_view_of_an_input_needs_no_kernel() -> None:
    engine = build(
        node("Reshape", ["x", "flat"], ["y"], name="reshape"), weights={"flat": np.array([-1])}
    )
    assert kinds(engine.program) == ["Reshape"]
    assert engine(x=normal(2, 4))["y"].shape == (8,)


def test_dead_kernels_and_their_segments_vanish() -> None:
    engine = build(
        node("Exp", ["x"], ["unused"], name="exp"), HOST, node("Neg", ["u"], ["y"], name="neg")
    )
    assert kinds(engine.program) == ["host unique", "neg"]


# --- control flow ---------------------------------------------------------------------------------


def test_a_known_condition_leaves_one_branch() -> None:
    then, other = (
        graph([helper.make_node(op, ["x"], [op], name=op)], [], [op]) for op in ("Exp", "Neg")
    )
    engine = build(
        node("Unique", ["x"], ["u"], name="unique"),
        node("If", ["yes"], ["y"], name="choice", then_branch=then, else_branch=other),
        outputs=("y", "u"),
        weights={"yes": np.array(False)},
    )
    np.testing.assert_allclose(engine(x=np.ones((1, 4), np.float32))["y"], -np.ones((1, 4)))
    branches = [step for step in engine.program.steps if isinstance(step, Branch)]
    assert not any(branch.then.steps for branch in branches)


def test_values_that_a_body_captures_are_kept() -> None:
    """They are read in the loop only; fusion must not swallow them."""
    body = graph(
        [
            helper.make_node("Add", ["state", "a"], ["next"], name="add"),
            helper.make_node("Identity", ["going"], ["keep"], name="keep"),
        ],
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, None),
        ],
        ["keep", "next"],
    )
    body.output[0].type.tensor_type.elem_type = TensorProto.BOOL
    engine = build(
        node("Exp", ["x"], ["a"], name="exp"),
        node("Neg", ["a"], ["b"], name="neg"),
        node("Loop", ["count", "", "b"], ["y"], name="loop", body=body),
        weights={"count": np.array(3)},
    )
    first = engine.program.steps[0]
    assert isinstance(first, Segment)
    assert {"a", "b"} <= {spec.name for spec in first.outputs}
    assert isinstance(engine.program.steps[-1], Repeat)
    x = normal(2, 4)
    np.testing.assert_allclose(engine(x=x)["y"], np.exp(x) * 2, rtol=1e-5)


def test_a_sub_graph_of_an_unknown_operator_is_refused() -> None:
    body = graph([helper.make_node("Neg", ["a"], ["b"])], [tensor_info("a", None)], ["b"])
    nodes = [
        node("SequenceConstruct", ["x"], ["s"], name="construct"),
        node("SequenceMap", ["s"], ["t"], name="map", body=body),
        node("SequenceAt", ["t", "zero"], ["y"], name="at"),
    ]
    model = model_of(
        nodes, inputs=[tensor_info("x", (2,))], weights={"zero": np.array(0)}, opset=21
    )
    try:
        engine = compiled(model)
    except InvalidModel as error:
        assert "sub-graph body" in str(error)  # noqa: PT017
    else:  # once it is expanded or executed
        np.testing.assert_allclose(engine(x=normal(2))["y"], -normal(2))


@pytest.mark.parametrize("count", [500])
def test_thousands_of_nodes_with_host_steps_in_between(count: int) -> None:
    """Looking through all pending kernels for each host step would take minutes."""
    nodes = [node("Exp", ["x"], ["v0"], name="first")]
    for k in range(count):
        nodes.append(node("Tanh", [f"v{k}"], [f"v{k + 1}"], name=f"tanh{k}"))
        if k % 5 == 0:
            nodes.append(node("Unique", ["x"], [f"u{k}"], name=f"unique{k}", sorted=k % 2))
    total = [f"u{k}" for k in range(0, count, 5)]
    nodes.append(node("Concat", total, ["all"], name="join", axis=0))
    model = model_of(
        nodes,
        inputs=[tensor_info("x", ("n", 4))],
        outputs=["all", f"v{count}"],
        opset=21,
    )
    engine = compiled(model, verify=False)
    found = engine(x=np.zeros((1, 4), np.float32))
    assert found["all"].shape == (len(total),)
    assert 2 <= engine.summary["kernels"] < 40
