"""The command as a process: data, messages, exit codes, full disks, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unit.compiler.models import network, saved
from unit.graph.models import model_of, node, tensor_info

ENTRY = [sys.executable, "-m", "tilewright"]


def _environment(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "TILEWRIGHT_CACHE": str(folder / "cache"), **more}


def test_compile_and_run_as_processes(tmp_path: Path) -> None:
    def run(*arguments: str) -> Any:
        done = subprocess.run(
            [*ENTRY, *arguments, "--json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            cwd=tmp_path,
            env=_environment(tmp_path),
        )
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    saved(network(), tmp_path)
    assert run("compile", "model.onnx", "-o", "net.tw")["max_error"] < 1e-5
    facts = run("run", "net.tw", "--random", "--dim", "batch=2", "--dim", "height=4")
    assert facts["y"]["shape"] == [2, 5]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_under_stdout_is_explained() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*ENTRY, "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr == "error: stdout cannot be written: No space left on device\n"


def test_a_reader_that_has_read_enough_is_no_error_message() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run(
            [*ENTRY, "--version"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (1, "")


def _wide() -> Any:
    """A model of many different kernels, which keep workers busy for a while."""
    nodes, value = [], "x"
    for k in range(40):
        nodes.append(node("Tanh", [value], [f"t{k}"], name=f"tanh{k}"))
        nodes.append(node("MatMul", [f"t{k}", f"w{k}"], [f"v{k}"], name=f"product{k}"))
        value = f"v{k}"
    nodes.append(node("Identity", [value], ["y"], name="last"))
    sizes = [7 + 3 * k for k in range(41)]
    weights = {f"w{k}": np.ones((sizes[k], sizes[k + 1]), np.float32) for k in range(40)}
    return model_of(nodes, inputs=[tensor_info("x", ("n", 7))], weights=weights, opset=21)


def _children(process: int) -> list[int]:
    found = Path(f"/proc/{process}/task/{process}/children")
    return [int(word) for word in found.read_text().split()] if found.exists() else []


def _wait_until_ended(processes: list[int]) -> None:
    for _ in range(200):
        if not any(Path(f"/proc/{process}").exists() for process in processes):
            return
        time.sleep(0.05)
    pytest.fail(f"still there: {processes}")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*ENTRY, "compile", str(saved(_wide(), tmp_path)), "-o", str(tmp_path / "net.tw")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=_environment(tmp_path, TMPDIR=str(tmp_path)),
    )
    workers: list[int] = []
    while not workers and process.poll() is None:
        time.sleep(0.02)
        workers = _children(process.pid)
    assert workers
    process.kill()
    process.wait(timeout=60)
    _wait_until_ended(workers)
    assert not (tmp_path / "net.tw").exists()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_ctrl_c_ends_everything_and_leaves_nothing(tmp_path: Path) -> None:
    path = saved(_wide(), tmp_path)
    (tmp_path / "temp").mkdir()
    (tmp_path / "out").mkdir()
    process = subprocess.Popen(
        [*ENTRY, "compile", str(path), "-o", str(tmp_path / "out" / "net.tw")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(tmp_path, TMPDIR=str(tmp_path / "temp")),
    )
    workers: list[int] = []
    while not workers and process.poll() is None:
        time.sleep(0.02)
        workers = _children(process.pid)
    assert workers, process.communicate()
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, "")
    *stages, last = stderr.splitlines()
    assert last == "interrupted"
    assert all(line.startswith(f"{path.name}: [") for line in stages), stages
    _wait_until_ended(workers)
    assert list((tmp_path / "temp").iterdir()) == []
    assert list((tmp_path / "out").iterdir()) == []
    assert all(file.suffix == ".o" for file in (tmp_path / "cache" / "objects").iterdir())
