"""The comparison of outputs can refuse, and contenders answer from processes of their own."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tilewright.compiler import bench, bench_worker
from tilewright.compiler.bench import BenchOptions, Worker, relative_error
from tilewright.compiler.feeds import Arrays
from tilewright.core.errors import BadOption, UserError, VerificationFailed

X = np.array([1.0, -4.0, 2.0], np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that adds its input [n, 3] to itself."""
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
    opsets = [helper.make_opsetid("", 21)]
    path = tmp_path_factory.mktemp("model") / "double.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


@pytest.mark.parametrize(
    ("actual", "wanted", "error"),
    [
        ({"y": X}, {"y": X}, 0.0),
        ({"y": X + np.float32(0.4)}, {"y": X}, pytest.approx(0.1)),
        ({"y": X}, {"z": X}, np.inf),
        ({"y": X[:2]}, {"y": X}, np.inf),
        ({"y": X * np.float32("nan")}, {"y": X}, np.inf),
        ({"y": X}, {"y": X * np.float32("inf")}, np.inf),
        ({"y": X}, {"y": 0 * X}, np.inf),
        ({"y": 0 * X}, {"y": 0 * X}, 0.0),
        ({"y": X * np.float32("nan")}, {"y": X * np.float32("nan")}, 0.0),
        ({"y": np.array([True])}, {"y": np.array([False])}, np.inf),
        ({"y": np.zeros(0)}, {"y": np.zeros(0)}, 0.0),
    ],
)
def test_relative_error(actual: Arrays, wanted: Arrays, error: float) -> None:
    assert relative_error(actual, wanted) == error


@pytest.mark.parametrize(
    ("peers", "message"), [(("tensorflow",), "unknown peers"), ((), "nothing to compare")]
)
def test_bad_peers_are_refused(peers: tuple[str, ...], message: str, model: Path) -> None:
    with pytest.raises(BadOption, match=message):
        bench.bench(model, BenchOptions(peers=peers))


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        bench.bench(tmp_path / "none.onnx", BenchOptions())


def test_a_contender_tells_its_inputs_runs_and_is_timed(model: Path, tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(tmp_path / "feeds.npz", x=x)
    with Worker("onnxruntime", model, threads=1) as worker:
        (spec,) = worker.specs
        assert (spec.name, spec.dtype, spec.shape) == ("x", "float32", ("n", 3))
        feeds, outputs = str(tmp_path / "feeds.npz"), tmp_path / "outputs.npz"
        worker.ask(verb="check", feeds=feeds, outputs=str(outputs))
        samples_us = worker.ask(verb="time", milliseconds=2)["samples_us"]
    with np.load(outputs) as arrays:
        assert np.array_equal(arrays["y"], 2 * x)
    assert samples_us
    assert min(samples_us) > 0


def test_what_is_wrong_in_a_contender_reaches_the_user(model: Path) -> None:
    with pytest.raises(UserError, match="torch does not execute ONNX files"):
        Worker("torch", model, threads=1)


def test_a_missing_contender_is_explained(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    for opener in (bench_worker.open_openvino, bench_worker.open_onnxruntime):
        with pytest.raises(BadOption, match="is not installed"):
            opener(model, 1)


def test_outputs_that_differ_stop_the_comparison(tmp_path: Path) -> None:
    class Fake(Worker):
        def __init__(self, name: str, value: float) -> None:
            self.name = name
            self.value = value

        def ask(self, **request: object) -> dict[str, Any]:
            np.savez(str(request["outputs"]), y=np.array([self.value]))
            return {}

    workers = [Fake("onnxruntime", 1.0), Fake("tilewright", 1.001)]
    errors = bench._compare_outputs(workers, tmp_path, tolerance=1e-2)
    assert errors == {"onnxruntime": 0.0, "tilewright": pytest.approx(1e-3)}
    with pytest.raises(VerificationFailed, match="tilewright by 1.0e-03") as caught:
        bench._compare_outputs(workers, tmp_path, tolerance=1e-4)
    assert "nothing was timed" in str(caught.value)
