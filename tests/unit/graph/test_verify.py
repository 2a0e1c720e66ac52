"""The verifier finds what a faulty pass can leave behind, and says where."""

from collections.abc import Callable

import onnx_ir as ir
import pytest

from tilewright.core.errors import InvalidModel
from tilewright.graph.load import load_model
from tilewright.graph.verify import verify
from unit.graph.models import model_of, node


def chain() -> ir.Model:
    nodes = [
        node("Neg", ["x" if k == 0 else f"v{k - 1}"], [f"v{k}"], name=f"n{k}") for k in range(30)
    ]
    return load_model(model_of([*nodes, node("Relu", ["v29"], ["y"], name="last")]))


def swap(model: ir.Model) -> None:
    first, second = model.graph[3], model.graph[4]
    model.graph.remove(first)
    model.graph.insert_after(second, first)


def rename_value(model: ir.Model) -> None:
    model.graph[3].outputs[0].name = "v7"


def rename_node(model: ir.Model) -> None:
    model.graph[3].name = "n7"


def unname(model: ir.Model) -> None:
    model.graph[3].outputs[0].name = ""


def foreign(model: ir.Model) -> None:
    model.graph[3].replace_input_with(0, ir.Value(name="stranger"))


def no_outputs(model: ir.Model) -> None:
    model.graph.outputs.clear()


def lost_output(model: ir.Model) -> None:
    model.graph.outputs.append(ir.Value(name="stranger"))


def untyped(model: ir.Model) -> None:
    model.graph.inputs[0].type = None


def test_a_sound_model_passes() -> None:
    verify(chain())


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (swap, "before it is defined"),
        (rename_value, "defined twice"),
        (rename_node, "used twice"),
        (unname, "no name"),
        (foreign, "before it is defined"),
        (no_outputs, "no outputs"),
        (lost_output, "not computed"),
        (untyped, "element type"),
    ],
)
def test_faults_are_found(fault: Callable[[ir.Model], None], says: str) -> None:
    model = chain()
    fault(model)
    with pytest.raises(InvalidModel, match=says) as caught:
        verify(model, after="fold_constants")
    assert "fold_constants" in str(caught.value)


def test_the_report_shows_ten_lines_around_the_node() -> None:
    model = chain()
    model.graph[15].replace_input_with(0, ir.Value(name="stranger"))
    with pytest.raises(InvalidModel) as caught:
        verify(model)
    lines = caught.value.message.splitlines()
    assert sum(line.startswith("> ") for line in lines) == 1
    assert len([line for line in lines if "= Neg" in line]) == 21
    assert caught.value.node == "n15 (Neg)"
