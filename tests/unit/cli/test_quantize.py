"""``tilewright quantize --lint`` prints findings and tells errors by its exit code."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from tilewright.cli.app import build_app
from unit.compiler.models import network, normal
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


def test_weights_alone_need_no_data(tmp_path: Path) -> None:
    weights = {"w": np.random.default_rng(0).standard_normal((64, 32), np.float32)}
    model = model_of(
        [node("MatMul", ["x", "w"], ["y"], name="product")],
        inputs=[tensor_info("x", ("n", 64))],
        weights=weights,
    )
    onnx.save(model, tmp_path / "model.onnx")
    paths = [str(tmp_path / "model.onnx"), "-o", str(tmp_path / "small.onnx")]
    result = CliRunner().invoke(build_app(), ["quantize", *paths, "--weights", "int4"])
    assert result.exit_code == 0
    assert "1 layer (weights int4 in blocks of 32, activations float)" in result.stdout
    assert (tmp_path / "small.onnx").stat().st_size < 64 * 32 * 4 / 3
    result = CliRunner().invoke(
        build_app(), ["quantize", *paths, "--weights", "int4", "--sensitivity"]
    )
    assert result.exit_code == 1
    assert "sensitivity would have no effect" in result.stderr


def test_threads_of_a_gpu_are_refused(tmp_path: Path) -> None:
    arguments = ["quantize", _saved(tmp_path, 1), "--lint", "--board", "h200", "--threads", "2"]
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code == 1
    assert "would have no effect" in result.stderr


def _float_model(folder: Path) -> str:
    onnx.save(network(), folder / "float.onnx")
    np.save(folder / "data.npy", normal(12, 3, 6, 8))
    return str(folder / "float.onnx")


def test_a_model_is_quantised_and_told(tmp_path: Path) -> None:
    words = ["quantize", _float_model(tmp_path), "--data", str(tmp_path / "data.npy"), "--quiet"]
    output = tmp_path / "out.onnx"
    result = CliRunner().invoke(build_app(), [*words, "-o", str(output), "--sensitivity"])
    assert result.exit_code == 0, result.output
    assert "2 layers" in result.stdout
    assert "main cause" in result.stdout
    onnx.checker.check_model(str(output), full_check=True)
    result = CliRunner().invoke(build_app(), [*words, "-o", str(output), "--json", "--per-tensor"])
    facts = json.loads(result.stdout)
    assert facts["weights"] == "int8 per tensor"
    assert facts["sensitivity"] is None
    assert {"stage", "subject", "chosen"} <= set(facts["decisions"][0])
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--data", "DATA"], 2, "-o OUT.onnx, or --lint"),
        (["-o", "OUT"], 1, "data is missing"),
        (["-o", "OUT", "--data", "MODEL"], 1, "no folder, .npy or .npz file"),
        (["-o", "MODEL", "--data", "DATA"], 1, "is the same file"),
        (["-o", "OUT", "--data", "DATA", "--mean", "1"], 2, "both --mean and --std"),
        (["-o", "OUT", "--data", "DATA", "--mean", "x", "--std", "1"], 2, "is no number"),
        (["-o", "OUT", "--data", "DATA", "--size", "8"], 2, "both --mean and --std"),
        (["-o", "OUT", "--data", "DATA", "--mean", "1", "--std", "1"], 1, "is for pictures"),
        (["-o", "OUT", "--data", "DATA", "--eval-limit", "9"], 1, "nothing is evaluated"),
        (["-o", "OUT", "--data", "DATA", "--dim", "batch=1"], 1, "sizes are those of the data"),
        (["--lint", "--data", "DATA"], 1, "with --lint nothing is quantised"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, words: list[str], code: int, message: str
) -> None:
    model = _float_model(tmp_path)
    files = {"MODEL": model, "DATA": str(tmp_path / "data.npy"), "OUT": str(tmp_path / "o.onnx")}
    given = ["quantize", model, *(files.get(word, word) for word in words)]
    result = CliRunner().invoke(build_app(), given)
    assert result.exit_code == code
    assert message in " ".join(result.stderr.split())
