"""Dims of one size become numbers, wherever they are declared."""

from __future__ import annotations

import onnx_ir as ir
from onnx import TensorProto, helper

from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model
from tilewright.graph.fix_sizes import fix_sizes
from tilewright.graph.walk import all_graphs, own_values
from unit.graph.models import model_of, node, tensor_info


def _shapes(model: ir.Model) -> dict[str, list[int | str | None]]:
    found: dict[str, list[int | str | None]] = {}
    for graph in all_graphs(model.graph):
        for value in own_values(graph):
            if value.shape is not None:
                dims = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
                found[value.name or ""] = dims
    return found


def test_formulas_of_known_dims_become_numbers_and_others_stay() -> None:
    then = helper.make_graph(
        [node("Neg", ["x"], ["a"])], "then", [], [tensor_info("a", ("n", "m"))]
    )
    other = helper.make_graph([node("Abs", ["x"], ["b"])], "else", [], [tensor_info("b", ("n", 4))])
    model = model_of(
        [node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        inputs=[
            tensor_info("c", (), TensorProto.BOOL),
            tensor_info("x", ("n", "m")),
            tensor_info("twice", ("2*n", "n*m", None, 7)),
        ],
        output_shape=("n", "m"),
    )
    read = ir.from_proto(model)
    fix_sizes(read, {"n": 3, "twice.d2": 5, "elsewhere": 1})
    shapes = _shapes(read)
    assert shapes["x"] == [3, "m"]
    assert shapes["twice"] == [6, "n*m", 5, 7]
    assert shapes["y"] == [3, "m"]
    assert (shapes["a"], shapes["b"]) == ([3, "m"], [3, 4])


def test_a_model_says_which_dims_were_fixed() -> None:
    log = DecisionLog()
    relu = model_of([node("Relu", ["x"], ["y"])], inputs=[tensor_info("x", ("n", "m"))])
    model = Model.load(relu, log)
    model.fix_sizes({"n": 3}, log)
    assert [str(dim) for dim in model.view().inputs[0].shape or ()] == ["3", "m"]
    assert model.original == model.view()
    (decision,) = (one for one in log.entries if one.subject == "n")
    assert decision.chosen == "3, the only size that is declared for it"
