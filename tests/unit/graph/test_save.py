"""What is written is valid ONNX; a part of a model computes the same values."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from tilewright.core.dtypes import FLOAT32
from tilewright.core.errors import BadOption, CacheError, InternalError
from tilewright.core.shape import Dim
from tilewright.graph.info import TensorInfo
from tilewright.graph.load import load_model, view
from tilewright.graph.normalize import normalize
from tilewright.graph.reference import evaluate_graph
from tilewright.graph.save import extract, save_model, to_proto
from unit.graph.models import model_of, node, tensor_info

X = np.asarray([[1.0, -2.0, 0.5]], dtype=np.float32)


def sample() -> ir.Model:
    branch = helper.make_graph([node("Neg", ["a"], ["n"])], "b", [], [tensor_info("n", None)])
    other = helper.make_graph([node("Add", ["a", "w"], ["n"])], "b", [], [tensor_info("n", None)])
    model = load_model(
        model_of(
            [
                node("Abs", ["x"], ["a"]),
                node("Softmax", ["a"], ["s"], axis=0),
                node("If", ["c"], ["i"], then_branch=branch, else_branch=other),
                node("Mul", ["i", "s"], ["y"]),
            ],
            inputs=[tensor_info("x", (1, "n")), tensor_info("c", (), TensorProto.BOOL)],
            weights={"w": np.ones(3, np.float32), "unused": np.ones(3, np.float32)},
            opset=11,
            output_shape=(1, "n"),
        )
    )
    normalize(model)
    return model


def test_the_file_is_valid_onnx_and_loads_to_the_same(tmp_path: Path) -> None:
    model, path = sample(), tmp_path / "m.onnx"
    names = [n.name for n in view(model).nodes]
    save_model(model, path)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    again = view(load_model(path))
    assert [n.name for n in again.nodes] == names
    feeds = {"x": X, "c": np.asarray(False)}
    np.testing.assert_array_equal(
        evaluate_graph(again, feeds)["y"],
        evaluate_graph(view(model), feeds)["y"],
    )


def test_mixed_operator_sets_are_refused() -> None:
    model = sample()
    model.graph[0].version = 11
    with pytest.raises(InternalError, match="normalise"):
        to_proto(model)


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="absent"):
        save_model(sample(), tmp_path / "absent" / "m.onnx")


@pytest.mark.parametrize("flag", [True, False])
def test_a_part_computes_the_same(flag: bool) -> None:
    model = sample()
    feeds = {"x": X, "c": np.asarray(flag)}
    values = evaluate_graph(view(model), feeds, keep=["a", "i"])
    info = TensorInfo(dtype=FLOAT32, shape=(Dim.of(1), Dim.symbol("n")))
    part = extract(model, ["a"], ["i"], infos={"a": info, "i": info})
    onnx.checker.check_model(to_proto(part))
    seen = view(part)
    assert [value.name for value in seen.inputs] == ["a", "c"]
    assert [n.op_type for n in seen.nodes] == ["If"]
    assert list(seen.initializers) == ["w"]
    result = evaluate_graph(seen, {"a": values["a"], "c": np.asarray(flag)})
    np.testing.assert_array_equal(result["i"], values["i"])


def test_unknown_names_are_refused() -> None:
    with pytest.raises(BadOption, match="'ghost'"):
        extract(sample(), ["ghost"], ["y"])
