"""Faults of what is read and written: outputs that would replace inputs, files that lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner

import tilewright as tw
from integration.faults import own_cache
from tilewright.cli import app
from tilewright.compiler.feeds import load_npz
from tilewright.core.errors import BadOption
from tilewright.graph.external_files import external_files

__all__ = ["own_cache"]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose weights lie beside it, in the current folder."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
              g (float[n, 4] x) => (float[n, 4] y) { y = MatMul(x, w) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, size_threshold=0, location="w.bin")
    np.save(tmp_path / "x.npy", np.zeros((9, 4), np.float32))
    (tmp_path / "link.bin").symlink_to("w.bin")
    monkeypatch.chdir(tmp_path)
    return path


@pytest.mark.parametrize("output", ["w.bin", "./w.bin", "link.bin"])
@pytest.mark.parametrize(
    "command",
    [
        "compile m.onnx -o",
        "compile m.onnx -o new.tw --dump-graph",
        "run m.onnx --input x=x.npy -o",
        "quantize m.onnx --data x.npy -o",
        "quantize m.onnx --data x.npy -o new.onnx --html",
        "explain m.onnx --html",
        "profile m.onnx --input x=x.npy --trace",
    ],
)
def test_weights_beside_a_model_are_not_replaced(model: Path, command: str, output: str) -> None:
    before = (model.parent / "w.bin").read_bytes()
    result = CliRunner().invoke(app.build_app(), [*command.split(), output])
    assert result.exit_code == 1
    assert "is the same file as" in result.stderr
    assert (model.parent / "w.bin").read_bytes() == before


def test_a_dump_does_not_replace_weights(model: Path) -> None:
    with pytest.raises(BadOption, match="is the same file as"):
        tw.compile(model, dump_graph=model.parent / "w.bin")


def test_files_are_found_wherever_tensors_are(tmp_path: Path) -> None:
    def tensor(name: str, location: str) -> onnx.TensorProto:
        proto = onnx.TensorProto(name=name, data_location=onnx.TensorProto.EXTERNAL)
        proto.external_data.add(key="location", value=location)
        return proto

    inner = helper.make_graph([], "inner", [], [], [tensor("a", "in a branch")])
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner),
        helper.make_node("Constant", [], ["k"], value=tensor("k", "in/a/node")),
    ]
    body = [helper.make_node("Constant", [], ["f"], value=tensor("f", "../in a function"))]
    function = helper.make_function("own", "F", [], ["f"], body, [helper.make_opsetid("", 21)])
    graph = helper.make_graph(nodes, "g", [], [], [tensor("w", "/whole"), tensor("n", "a\0b")])
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph, functions=[function]).SerializeToString())
    names = ["../in a function", "/whole", "in a branch", "in/a/node"]
    assert external_files(path) == tuple(tmp_path / name for name in names)
    path.write_bytes(b"none")
    assert external_files(path) == external_files(tmp_path) == ()


@pytest.mark.parametrize("name", ["file", "args", "allow_pickle", "a/b", "x.npy", "é", "arr_0"])
def test_outputs_are_written_whatever_their_names(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    node = helper.make_node("Relu", ["x"], [name])
    infos = [
        helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, [3]) for value in ("x", name)
    ]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), "m.onnx")
    command = "run m.onnx --random --threads 1 -o out.npz"
    result = CliRunner().invoke(app.build_app(), command.split())
    assert result.exit_code == 0, result.output
    assert load_npz(tmp_path / "out.npz")[name].shape == (3,)
