"""As a user would: from an ONNX file to the sentence that says what to do, and on from there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner, Result

from integration.networks import mobile_network
from integration.test_explain_page import some_roofs
from tilewright.cli import app
from tilewright.compiler import roofs as roofs_module
from tilewright.hw.roofs import load_all_measured, store_measured


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a network, and roofs that were measured."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    onnx.save(mobile_network(1), tmp_path / "net.onnx")
    store_measured([some_roofs()])
    return tmp_path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app.build_app(), [str(part) for part in arguments])


def good(*arguments: object) -> Result:
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    return result


def document(result: Result) -> Any:
    return json.loads(result.stdout)


def build(*options: str, name: str = "net.tw") -> None:
    good("compile", "net.onnx", "-o", name, "--no-verify", "--threads", 1, *options)


def test_two_commands_lead_to_the_sentence() -> None:
    build()
    text = good("explain", "net.tw", "--runs", 3).stdout
    subject, saving = (
        r"#\d+ \(\S+\) (is|are) (bound by|[\d.e+]+ times over the floor) .+",
        r"would save up to [\d.]+ ms",
    )
    assert re.search(f"{subject}; .+ {saving}", text)
    assert "sizes: batch=1 (assumed: batch" in text


def test_json_says_the_same(folder: Path) -> None:
    build()
    np.savez(folder / "in.npz", x=np.ones((2, 3, 32, 32), np.float32))
    found = document(good("explain", "net.tw", "--runs", 2, "--npz", "in.npz", "--json"))
    assert found["schema"] == "tilewright.explanation/1"
    assert found["sizes"]["batch"] == 2
    assert found["is_built"] is True
    assert all(kernel["time_us"] > 0 for kernel in found["kernels"])


def test_a_page_is_written_whole(folder: Path) -> None:
    build()
    result = good("explain", "net.tw", "--runs", 1, "--html", "report.html")
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert "wrote report.html" in result.stderr
    refused = run("explain", "net.tw", "--html", "missing/report.html")
    assert refused.exit_code == 1
    assert "no such folder" in refused.stderr


def test_a_model_is_estimated_unless_it_shall_be_built() -> None:
    result = good("explain", "net.onnx", "--dim", "batch=8")
    assert "Floor on other devices" in result.stdout
    assert "--build" in result.stderr
    found = document(good("explain", "net.onnx", "--on", "L40S", "--json"))
    assert (found["is_built"], found["roofs"]["device"]) == (False, "L40S")
    built = document(good("explain", "net.onnx", "--build", "--threads", 1, "--runs", 1, "--json"))
    assert built["is_built"] is True
    assert built["end_to_end_us"] > 0


def test_two_engines_are_compared() -> None:
    build()
    build("--disable", "contraction", name="slow.tw")
    result = good("explain", "net.tw", "--diff", "slow.tw", "--runs", 2)
    assert "slow.tw against net.tw" in result.stdout
    assert "contraction" in result.stdout
    found = document(good("explain", "net.tw", "--diff", "slow.tw", "--runs", 2, "--json"))
    assert found["schema"] == "tilewright.difference/1"
    assert found["kernels"]
    assert run("explain", "net.onnx", "--diff", "net.tw").exit_code == 2


def test_roofs_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    def probe(options: Any) -> tuple[Any, ...]:
        asked.append(options.threads)
        return (some_roofs(),)

    monkeypatch.setattr(roofs_module, "probe_cpu", probe)
    build()
    good("explain", "net.tw", "--runs", 1)
    assert asked == []  # they were there
    for file in (Path("cache") / "roofs").glob("*.json"):
        file.unlink()
    good("explain", "net.tw", "--runs", 1, "--no-probe")
    assert asked == []
    assert "measuring this machine" in good("explain", "net.tw", "--runs", 1).stderr
    good("explain", "net.tw", "--runs", 1)
    assert asked == [(1,)]
    assert len(load_all_measured()) == 1


def test_a_profile_and_its_trace(folder: Path) -> None:
    build()
    arguments = ("profile", "net.tw", "--dim", "batch=2", "--runs", 2)
    text = good(*arguments, "--trace", "trace.json", "--top", 3).stdout
    assert "end to end" in text
    assert "more" in text
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) > 5
    found = document(good(*arguments, "--json"))
    assert found["schema"] == "tilewright.profile/1"
    missing = run("profile", "net.tw")
    assert missing.exit_code == 1
    assert "--dim batch=SIZE" in missing.stderr


def test_contracts_reach_the_command_line() -> None:
    good(
        "compile",
        "net.onnx",
        "-o",
        "net.tw",
        "--no-verify",
        "--require",
        "device=cpu,dtypes=float32",
    )
    refused = run("compile", "net.onnx", "-o", "no.tw", "--no-verify", "--require", "dtypes=int8")
    assert refused.exit_code == 1
    assert "stem (Conv)" in refused.stderr
    assert "computes in float32" in refused.stderr
    assert not Path("no.tw").exists()


def test_an_estimate_takes_the_sizes_of_its_inputs(folder: Path) -> None:
    np.savez(folder / "in.npz", x=np.ones((4, 3, 32, 32), np.float32))
    found = document(good("explain", "net.onnx", "--npz", "in.npz", "--no-probe", "--json"))
    assert found["sizes"]["batch"] == 4
    assert "batch" not in found["assumed"]


def test_an_estimate_without_roofs_measures_them_or_says_where_they_are_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for file in (Path("cache") / "roofs").glob("*.json"):
        file.unlink()
    result = good("explain", "net.onnx", "--no-probe")
    assert "roofs: " in result.stdout
    assert "tables at" in result.stdout
    monkeypatch.setattr(roofs_module, "probe_cpu", lambda _: (some_roofs(),))
    measured = good("explain", "net.onnx", "--threads", 1)
    assert "measuring this machine" in measured.stderr
    assert "measured on a day of the test" in measured.stdout


def test_engines_of_different_models_are_called_so(folder: Path) -> None:
    build()
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("Relu", ["q"], ["y"], "only")],
            "other",
            [onnx.helper.make_tensor_value_info("q", 1, [2])],
            [onnx.helper.make_tensor_value_info("y", 1, [2])],
        ),
        ir_version=10,
        opset_imports=[onnx.helper.make_opsetid("", 21)],
    )
    onnx.save(model, folder / "other.onnx")
    good("compile", "other.onnx", "-o", "other.tw", "--no-verify", "--threads", 1)
    first = good("explain", "net.tw", "--diff", "other.tw", "--runs", 1).stdout.splitlines()[0]
    assert "different models" in first
    refused = run("explain", "net.tw", "--diff", "other.tw", "--dim", "batch=2")
    assert refused.exit_code == 1
    assert "different models" in refused.stderr
