"""What nobody reads goes; readers in sub-graphs and graph outputs count."""

from tilewright.graph.passes.eliminate_dead_nodes import eliminate_dead_nodes
from unit.graph.passes.harness import assert_fires, f32, make, ops, run_alone


def test_chain_without_readers_and_its_constants_go() -> None:
    model = make("float[2] x => float[2] y", "a = Exp(x) b = Mul(a, c) y = Relu(x)", c=f32(1, 2))
    assert_fires(model, eliminate_dead_nodes, ["Relu"])
    assert not model.graph.initializers


def test_outputs_that_are_optional_become_absent() -> None:
    model = make(
        "float[1,1,4,4] x => float[1,1,3,3] y",
        "y, i = MaxPool<kernel_shape = [2, 2]>(x)",
    )
    assert_fires(model, eliminate_dead_nodes, ["MaxPool"])
    assert not model.graph[0].outputs[1].name


def test_unread_parts_of_a_split_stay() -> None:
    model = make("float[4] x => float[2] y", "y, z = Split<num_outputs = 2>(x)")
    assert_fires(model, eliminate_dead_nodes, ["Split"])
    assert model.graph[0].outputs[1].name


def test_capture_counts_as_a_reader_until_the_sub_graph_goes() -> None:
    body = (
        "e = Exp(x) y = If(c) <then_branch = t () => (float[2] p) { p = Relu(e) },"
        " else_branch = f () => (float[2] q) { q = Neg(x) }>"
    )
    kept = make("bool c, float[2] x => float[2] y", body)
    assert_fires(kept, eliminate_dead_nodes, ["Exp", "If", "Relu", "Neg"])
    dead = make("bool c, float[2] x => float[2] z", body.replace("y =", "u =") + " z = Abs(x)")
    assert_fires(dead, eliminate_dead_nodes, ["Abs"])


def test_dead_nodes_in_sub_graphs_go() -> None:
    model = make(
        "bool c, float[2] x => float[2] y",
        "y = If(c) <then_branch = t () => (float[2] p) { u = Exp(x) p = Relu(x) },"
        " else_branch = f () => (float[2] q) { q = Neg(x) }>",
    )
    assert_fires(model, eliminate_dead_nodes, ["If", "Relu", "Neg"])


def test_unused_inputs_stay() -> None:
    model = make("float[2] x, float[3] unused => float[2] y", "y = Relu(x)")
    run_alone(model, eliminate_dead_nodes)
    assert [value.name for value in model.graph.inputs] == ["x", "unused"]
    assert ops(model) == ["Relu"]
