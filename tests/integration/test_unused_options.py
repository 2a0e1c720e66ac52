"""Options that would have no effect are refused, and the others are honoured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import tilewright as tw
from tilewright.cli import app
from unit.compiler.models import feeds_of, network, saved


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network, its engine and inputs."""
    folder = tmp_path_factory.mktemp("warm")
    saved(network(), folder)
    np.savez(folder / "in.npz", **feeds_of(2, 8))
    tw.compile(folder / "model.onnx", threads=1, verify=False).save(folder / "net.tw")
    return folder


@pytest.fixture(autouse=True)
def folder(warm: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    monkeypatch.chdir(warm)
    return warm


def _run(command: str) -> Result:
    return CliRunner().invoke(app.build_app(), command.split())


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("explain net.tw --diff net.tw --html page.html", "--html"),
        ("explain net.tw --build", "--build"),
        ("explain net.tw --on H200 --runs 3", "--runs"),
        ("explain model.onnx --runs 3", "--runs"),
        ("explain net.tw --on H200 --no-probe", "--no-probe"),
        ("explain net.tw --on H200 --threads 1", "--threads"),
        ("run net.tw --npz in.npz --seed 3", "--seed"),
        ("run net.tw --npz in.npz --dim batch=2", "--dim"),
        ("verify model.onnx --engine net.tw --npz in.npz --seed 3", "--seed"),
        ("bench model.onnx --npz in.npz --dim batch=2", "--dim"),
        ("device --seconds 3", "--seconds"),
        ("device --threads 1", "--threads"),
        ("device --arch sm_90 --occupancy block=128,smem_per_thread=16", "smem_per_thread"),
        ("device --arch sm_90 --advise --occupancy block=128", "block"),
        ("device --arch sm_90 --advise --occupancy carveout=1024", "carveout"),
        ("device --arch sm_90 --occupancy block=128,threads=9999", "threads"),
        ("profile net.tw --npz in.npz --top 3", "--top"),
    ],
)
def test_an_option_without_effect_is_refused(command: str, option: str) -> None:
    result = _run(f"{command} --json")
    assert result.exit_code == 1, result.output
    error = json.loads(result.stdout)
    assert error["error"] == "BadOption"
    assert f"{option} would have no effect" in error["message"]
    assert option in error["remedy"]
    assert not Path("page.html").exists()


@pytest.mark.parametrize("verb", ["run net.tw --random", "profile net.tw", "verify model.onnx"])
def test_sizes_agree_with_the_inputs_beside_them(verb: str) -> None:
    result = _run(f"{verb} --npz in.npz --dim batch=3")
    assert result.exit_code == 1
    assert "--dim batch=3, but x was given with batch=2" in result.stderr


@pytest.mark.parametrize("verb", ["run net.tw", "profile net.tw", "explain net.tw --on H200"])
def test_a_file_of_no_input_is_named(verb: str, folder: Path) -> None:
    np.savez(folder / "strange.npz", z=np.zeros(3, np.float32))
    result = _run(f"{verb} --npz strange.npz")
    assert result.exit_code == 1
    assert "no input is called z" in result.stderr
    assert "the inputs are x" in result.stderr


@pytest.mark.parametrize("model", ["net.tw", "model.onnx"])
def test_sizes_of_inputs_count_where_nothing_is_timed(model: str) -> None:
    result = _run(f"explain {model} --on H200 --npz in.npz --json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["assumed"] == []
    assert (found["sizes"]["batch"], found["sizes"]["height"]) == (2, 8)
