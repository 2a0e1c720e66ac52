"""Engines on a GPU: arrays of torch, streams, batches, profiles, errors."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from typer.testing import CliRunner

import tilewright as tw
from gpu.launch import arch
from tilewright.cli.app import build_app
from tilewright.core.errors import OutOfRange
from tilewright.runtime.engine import Engine
from tilewright.runtime.profile import all_calls
from tilewright.tune.on_gpu import tune_on_gpu
from tilewright.tune.store import TimingStore
from unit.graph.models import model_of, node, tensor_info

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def engine() -> Engine:
    """y = relu(x w + x), two kernels at least."""
    nodes = [
        node("MatMul", ["x", "x"], ["a"], name="product"),
        node("Add", ["a", "x"], ["b"], name="add"),
        node("Softmax", ["b"], ["y"], name="softmax"),
    ]
    model = model_of(nodes, inputs=[tensor_info("x", ("n", "n"))])
    return tw.compile(model, target=arch())


@pytest.fixture(scope="module")
def gathering() -> Engine:
    """y = x[i], which may fail."""
    nodes = [node("Gather", ["x", "i"], ["y"], name="gather")]
    inputs = [tensor_info("x", ("n", 3)), tensor_info("i", ("m",), TensorProto.INT64)]
    return tw.compile(model_of(nodes, inputs=inputs), target=arch())


def _expected(x: Any) -> Any:
    x = np.asarray(x, np.float64)
    b = x @ x + x
    e = np.exp(b - b.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _x(size: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((size, size)).astype(np.float32)


def _close(found: Any, x: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), _expected(x), rtol=1e-4, atol=1e-5)


def test_results_on_the_device(engine: Engine) -> None:
    for size in (7, 64, 7, 130):
        x = _x(size)
        _close(engine.run({"x": x})["y"], x)
        found = engine.run_on_device({"x": x})["y"]
        _close(found, x)
        again = engine.run_on_device({"x": found})["y"]
        _close(again, np.asarray(found))


def test_arrays_of_torch_both_ways(engine: Engine) -> None:
    torch = pytest.importorskip("torch")
    for size in (33, 64):
        x = torch.from_numpy(_x(size)).cuda() * 1.0  # what made it may still be running
        _close(torch.from_dlpack(engine.run_on_device({"x": x})["y"]).cpu(), x.cpu())
        _close(engine.run({"x": x})["y"], x.cpu())
        part = torch.zeros(size * size + 1, device="cuda")[1:].view(size, size)
        part.copy_(x)  # begins where no vector of kernels may
        _close(engine.run_on_device({"x": part})["y"], x.cpu())


def test_a_stream_of_torch_orders_everything(engine: Engine) -> None:
    torch = pytest.importorskip("torch")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.from_numpy(_x(64)).cuda(non_blocking=True)
        summed = torch.zeros(64, 64, device="cuda")
        for _ in range(300):
            x = x * 1.001
            y = engine.run_on_device({"x": x}, stream=stream.cuda_stream)["y"]
            summed += torch.from_dlpack(y)
    stream.synchronize()
    expected, x_here = 0.0, _x(64)
    for _ in range(300):
        x_here = x_here * np.float32(1.001)
        expected = expected + _expected(x_here)
    np.testing.assert_allclose(summed.cpu().numpy(), expected, rtol=1e-3, atol=1e-3)


def test_batches_in_a_pipeline(engine: Engine) -> None:
    batches = [{"x": _x(65 if k % 7 else 129, k)} for k in range(40)]
    for feeds, found in zip(batches, engine.stream(batches), strict=True):
        _close(found["y"], feeds["x"])
    pinned = [engine.pinned(feeds) for feeds in batches[:9]]
    for feeds, found in zip(pinned, engine.stream(pinned), strict=True):
        _close(found["y"], feeds["x"])


def test_indices_out_of_range(gathering: Engine) -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    for bad, good in (([0, 4], [3, 0]), ([-5], [-4, 1, 2])):
        for run in (gathering.run, gathering.run_on_device):
            with pytest.raises(OutOfRange):
                run({"x": x, "i": np.array(bad)})
            found = np.asarray(run({"x": x, "i": np.array(good)})["y"])
            np.testing.assert_array_equal(found, x[np.array(good)])
    batches = [{"x": x, "i": np.array([k % 4])} for k in range(9)]
    batches[5]["i"] = np.array([9])
    results = gathering.stream(batches)
    for k in range(5):
        np.testing.assert_array_equal(next(results)["y"], x[[k % 4]])
    with pytest.raises(OutOfRange):
        next(results)


def test_a_profile_adds_up(engine: Engine) -> None:
    x = _x(512)
    profile = engine.profile({"x": x}, runs=5)
    assert len(profile.kernels) == engine.summary["kernels"]
    assert 0 < profile.kernels_us < profile.end_to_end_us
    assert profile.sum_us == pytest.approx(profile.end_to_end_us)
    assert "H200" in engine.explain({"x": x}, runs=3).text() or "GPU" in arch()


def test_neither_torch_nor_onnx_is_imported_to_run(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "engine.tw"
    engine.save(path)
    code = (
        "import sys, numpy, tilewright\n"
        f"engine = tilewright.load({str(path)!r})\n"
        "engine.run(x=numpy.ones((4, 4), numpy.float32))\n"
        "print([name for name in ('torch', 'triton', 'onnx') if name in sys.modules])\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_device_fault_names_the_kernel(tmp_path: Path, engine: Engine) -> None:
    """In a process of its own, which the fault takes its GPU from."""
    path = tmp_path / "engine.tw"
    engine.save(path)
    code = (
        "import numpy, tilewright\n"
        f"engine = tilewright.load({str(path)!r})\n"
        "there = engine.to_device({'x': numpy.ones((64, 64), numpy.float32)})\n"
        "there['x'].address = 16\n"
        "try:\n    engine.run_on_device(there)\n"
        "except tilewright.UserError as error:\n    print(type(error).__name__, error)\n"
    )
    for blocking, expected in (("0", "one of the kernels"), ("1", "it computes")):
        found = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "CUDA_LAUNCH_BLOCKING": blocking},
        )
        assert "DeviceFault" in found.stdout, found.stderr
        assert expected in found.stdout
        assert "shapes: x [64, 64]" in found.stdout


def _wide_network() -> Any:
    random = np.random.default_rng(0)
    weights = {
        name: random.standard_normal((256, 256)).astype(np.float32) / 16 for name in ("v", "w")
    }
    nodes = [
        node("MatMul", ["x", "v"], ["a"], name="first"),
        node("Relu", ["a"], ["b"], name="relu"),
        node("MatMul", ["b", "w"], ["c"], name="second"),
        node("Neg", ["c"], ["y"], name="negative"),
    ]
    return model_of(nodes, inputs=[tensor_info("x", (64, 256))], weights=weights)


def test_candidates_are_timed_and_give_the_same(tmp_path: Path) -> None:
    feeds = {"x": np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)}
    engine = tw.compile(_wide_network(), target=arch(), precision="fp16", candidates=5)
    before = engine.run(feeds)["y"]
    store = TimingStore(tmp_path / "t.sqlite", write=True)
    tuned, report = tune_on_gpu(engine, feeds, store)
    assert report.timed > 0
    assert not any(row.wrong for row in report.rows)
    np.testing.assert_allclose(tuned.run(feeds)["y"], before, atol=1e-2 * np.abs(before).max())
    again, report = tune_on_gpu(engine, feeds, store)
    assert report.timed == 0
    assert again.program == tuned.program


def test_a_wrong_kernel_is_named(tmp_path: Path) -> None:
    """Two kernels of one shape change their places."""
    model = _wide_network()
    engine = tw.compile(model, target=arch())
    first, second = [call.kernel for call in all_calls(engine.program)][:2]
    assert first != second
    code = dict(engine.parts.device_code)
    for end in (f"{arch()}.cubin", "ptx"):
        code[f"{first}.{end}"], code[f"{second}.{end}"] = (
            code[f"{second}.{end}"],
            code[f"{first}.{end}"],
        )
    engine.of(replace(engine.parts, device_code=code)).save(tmp_path / "wrong.tw")
    onnx.save(model, tmp_path / "model.onnx")
    arguments = ["verify", str(tmp_path / "model.onnx"), "--engine", str(tmp_path / "wrong.tw")]
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code == 1
    assert "first" in result.stdout or "relu" in result.stdout
    assert "kernel" in result.stdout
