"""``tilewright quantize --lint`` prints findings and tells errors by its exit code."""

import json
from pathlib import Path

import numpy as np
import onnx
from typer.testing import CliRunner

from tilewright.cli.app import build_app
from unit.graph.models import model_of, node, tensor_info


def _saved(folder: Path, axis: int) -> str:
    weights = {"w": np.ones((3, 2), np.int8), "ws": np.full(2, 0.5, np.float32)}
    nodes = [
        node("DequantizeLinear", ["w", "ws"], ["wd"], name="dw", axis=axis),
        node("MatMul", ["x", "wd"], ["y"], name="product"),
    ]
    model = model_of(nodes, inputs=[tensor_info("x", ("n", 3))], weights=weights)
    onnx.save(model, folder / "model.onnx")
    return str(folder / "model.onnx")


def test_errors_give_exit_code_1(tmp_path: Path) -> None:
    result = CliRunner().invoke(build_app(), ["quantize", _saved(tmp_path, 0), "--lint"])
    assert result.exit_code == 1
    assert "weight-axis" in result.stdout
    assert "1 error, 0 warnings" in result.stdout


def test_a_clean_model_gives_exit_code_0(tmp_path: Path) -> None:
    arguments = ["quantize", _saved(tmp_path, 1), "--lint", "--json", "--dim", "n=4"]
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"errors": 0, "findings": []}


def test_threads_of_a_gpu_are_refused(tmp_path: Path) -> None:
    arguments = ["quantize", _saved(tmp_path, 1), "--lint", "--board", "h200", "--threads", "2"]
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code == 1
    assert "would have no effect" in result.stderr
