"""``compile``, ``run``, ``verify`` and ``bench`` on a small network: what they print and refuse."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from tilewright.cli import app
from tilewright.cli import bench as bench_verb
from tilewright.compiler.bench import BenchReport, Comparison
from tilewright.compiler.bench.results import Round, Timing, canaries_of
from tilewright.core.errors import UserError
from unit.compiler.models import feeds_of, network, saved
from unit.graph.models import model_of, node, tensor_info

SIZES = ("--dim", "batch=2", "--dim", "height=4")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the network and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    saved(network(), tmp_path)
    return tmp_path


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(app.build_app(), [str(part) for part in arguments])


def _json(result: Result) -> Any:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def _refused(result: Result, message: str) -> None:
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr
    assert "remedy: " in result.stderr


# --- files and options of several verbs -----------------------------------------------------------


def test_an_engine_is_recognised_whatever_its_name() -> None:
    assert _run("compile", "model.onnx", "-o", "plain", "--quiet").exit_code == 0
    random = ("--random", *SIZES)
    assert _run("run", "plain", *random).exit_code == 0
    assert _run("verify", "model.onnx", "--engine", "plain").exit_code == 0
    for verb in ("explain", "profile"):
        result = _run(verb, "plain", *SIZES, "--runs", "1")
        assert result.exit_code == 0, result.stderr
    _refused(_run("bench", "plain"), "this is an engine")
    Path("zipped").write_bytes(b"PK\x03\x04 something else")
    _refused(_run("run", "zipped"), "zip archive, not an ONNX file")


@pytest.mark.parametrize("verb", ["compile", "run", "verify", "explain", "profile", "quantize"])
def test_too_many_threads_get_one_answer(verb: str) -> None:
    result = _run(verb, "model.onnx", "--threads", "5000")
    assert result.exit_code == 2
    assert "1024" in result.stderr
    assert "warning" not in result.stderr


def test_the_demo_is_quiet_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*_: object, progress: Callable[[str], None], **__: object) -> None:
        progress("reading")
        raise UserError("enough")

    monkeypatch.setattr("tilewright.demo.networks.require_packages", lambda: None)
    monkeypatch.setattr("tilewright.demo.compare.compare", told)
    assert "reading" in _run("demo", "page.png").stderr
    assert _run("demo", "page.png", "--quiet").stderr == "error: enough\n"


def test_a_size_may_be_zero() -> None:
    found = _run("run", "model.onnx", "--random", "--dim", "batch=0", "--dim", "height=4", "--json")
    assert all(0 in one["shape"] for one in _json(found).values())
    assert _run("compile", "model.onnx", "-o", "net.tw", "--dim", "batch=0..4").exit_code == 0


# --- compile --------------------------------------------------------------------------------------


def test_compile_prints_what_was_built() -> None:
    result = _run("compile", "model.onnx", "-o", "net.tw", "--dim", "batch=1..4", "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = dict(line.split(None, 1) for line in result.stdout.splitlines())
    assert lines["engine"].startswith("net.tw (")
    assert lines["input"] == "x float32[batch, 3, height, 8]"
    assert lines["range"] == "batch: 1..4"
    assert "after fusion" in lines["kernels"]
    assert "batch = " in lines["arena"]
    assert lines["error"].endswith("within tolerance")
    assert lines["interpreted"] == "nothing: every node is compiled"
    assert "total" not in lines


def test_compile_json_is_one_document(folder: Path) -> None:
    facts = _json(_run("compile", "model.onnx", "-o", "net.tw", "--json"))
    assert facts["num_bytes"] == (folder / "net.tw").stat().st_size
    assert 0 < facts["kernels"] <= facts["kernels_before_fusion"]
    assert 0 <= facts["max_error"] < 1e-5
    assert facts["seconds"].keys() >= {"import", "verify"}


def test_what_is_interpreted_is_printed_and_can_be_forbidden(folder: Path) -> None:
    nodes = [node("StringNormalizer", ["x"], ["y"], name="lower", case_change_action="LOWER")]
    text = model_of(nodes, inputs=[tensor_info("x", ("n",), 8)], outputs=[], opset=21)
    text.graph.output.append(tensor_info("y", None, 8))
    saved(text, folder)
    result = _run("compile", "model.onnx", "-o", "net.tw", "--no-verify")
    assert result.exit_code == 0, result.stderr
    assert "lower (StringNormalizer): " in result.stdout
    _refused(
        _run("compile", "model.onnx", "-o", "strict.tw", "--require", "compiled"),
        "lower (StringNormalizer)",
    )
    assert not (folder / "strict.tw").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--dim", "width=1..2"), "unknown dims width"),
        (("--require", "fast"), "unknown contract 'fast'"),
        (("--require", "max_error=1e-12"), "max_error=1e-12 is required"),
        (("--require", "max_error=1e-5", "--no-verify"), "verification is switched off"),
        (("--cpu", "z80"), "unknown processor 'z80'"),
        (("--target", "abacus"), "unknown target 'abacus'"),
        (("--precision", "fp16"), "--target cuda"),
        (("--precision", "int3"), "unknown precision 'int3'"),
        (("-o", "none/net.tw"), "no such folder"),
        (("-o", "."), "is a folder"),
    ],
)
def test_compile_explains_what_it_refuses(
    folder: Path, options: tuple[str, ...], message: str
) -> None:
    _refused(_run("compile", "model.onnx", "-o", "net.tw", *options), message)
    assert not (folder / "net.tw").exists()


def test_compile_for_another_architecture() -> None:
    arguments = ("compile", "model.onnx", "-o", "arm.tw", "--cpu", "neoverse-v1", "--no-verify")
    assert _run(*arguments).exit_code == 0
    if os.uname().machine == "x86_64":
        _refused(
            _run("run", "arm.tw", "--random"),
            "arm.tw: the engine was compiled for neoverse-v1; this processor lacks ['aarch64']",
        )


def test_dumps_are_written(folder: Path) -> None:
    arguments = ("--dump-graph", "graph.onnx", "--dump-kernels", "kernels")
    assert _run("compile", "model.onnx", "-o", "net.tw", *arguments).exit_code == 0
    assert (folder / "graph.onnx").stat().st_size > 0
    assert {file.suffix for file in (folder / "kernels").iterdir()} == {".txt", ".ll"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_named(folder: Path) -> None:
    (folder / "closed").mkdir(mode=0o500)
    _refused(_run("compile", "model.onnx", "-o", "closed/net.tw"), "cannot be written")


def test_a_cache_that_cannot_be_written_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").write_text("no folder")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(folder / "file"))
    result = _run("compile", "model.onnx", "-o", "net.tw")
    _refused(result, "cannot write the cache")
    assert "TILEWRIGHT_CACHE" in result.stderr


def test_a_budget_gives_an_engine_at_once_and_a_store(folder: Path) -> None:
    arguments = ("--time-budget", "1.5", "--timing-store", "t.sqlite", "--threads", "1")
    result = _run("compile", "model.onnx", "-o", "net.tw", *arguments)
    assert result.exit_code == 0, result.stderr
    assert "net.tw can be used; what is found in 1.5 s will replace it" in result.stderr
    assert re.search(r"tuning .* kernels gained -?[\d.]+ ms of [\d.]+ ms", result.stdout)
    assert (folder / "t.sqlite").stat().st_size > 0
    before = (folder / "net.tw").read_bytes()
    again = ("--timing-store", "t.sqlite", "--threads", "1", "--quiet")
    assert _run("compile", "model.onnx", "-o", "net.tw", *again).exit_code == 0
    assert (folder / "net.tw").read_bytes() == before


def test_an_interrupt_while_tuning_leaves_the_engine_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tilewright.tune.rounds.Search.run", interrupt)
    result = _run("compile", "model.onnx", "-o", "net.tw", "--time-budget", "9")
    assert result.exit_code == 130
    sizes = ("--dim", "batch=1", "--dim", "height=8")
    assert _run("run", "net.tw", "--random", *sizes).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--timing-store", "none.sqlite"), "none.sqlite: no such timing store"),
        (("--timing-store", "model.onnx"), "damaged or none at all"),
        (("--timing-store", "model.onnx", "--time-budget", "9"), "damaged or none at all"),
        (("--cpu", "neoverse-v1", "--no-verify", "--time-budget", "1"), "cannot be timed"),
        (("--target", "sm_90", "--time-budget", "1"), "with the target sm_90"),
        (("--candidates", "4"), "candidates=4 is for GPUs"),
    ],
)
def test_tuning_that_cannot_be_is_refused(arguments: tuple[str, ...], message: str) -> None:
    _refused(_run("compile", "model.onnx", "-o", "net.tw", *arguments), message)


# --- run ------------------------------------------------------------------------------------------


def test_run_writes_the_outputs(folder: Path) -> None:
    assert _run("compile", "model.onnx", "-o", "net.tw").exit_code == 0
    np.savez(folder / "in.npz", **feeds_of(2, 6))
    facts = _json(_run("run", "net.tw", "--npz", "in.npz", "-o", "out.npz", "--json"))
    assert facts["y"]["shape"] == [2, 5]
    with np.load(folder / "out.npz") as outputs:
        np.testing.assert_allclose(outputs["y"].sum(axis=1), 1.0, rtol=1e-5)
    np.save(folder / "x.npy", feeds_of(2, 6)["x"])
    assert _json(_run("run", "model.onnx", "--input", "x=x.npy", "--json")) == facts
    twice = _run("run", "model.onnx", "--input", "x=x.npy", "--npz", "in.npz")
    _refused(twice, "x: given by --input and in in.npz")


def test_a_size_that_is_missing_is_told_before_anything_is_compiled() -> None:
    for verb in ("run", "profile"):
        random = ["--random"] if verb == "run" else []
        result = _run(verb, "model.onnx", *random, "--dim", "batch=1")
        _refused(result, "no size for the symbolic dims height")
        assert "import" not in result.stderr
    assert _run("run", "model.onnx", "--random", *SIZES, "--quiet").stderr == ""


def test_tuning_an_engine_for_cpus_says_so_whatever_its_inputs_are() -> None:
    assert _run("compile", "model.onnx", "-o", "net.tw", "--no-verify").exit_code == 0
    _refused(_run("tune", "net.tw"), "is for CPUs")


def test_run_says_what_it_wrote() -> None:
    result = _run("run", "model.onnx", "--random", *SIZES, "-o", "out.npz")
    assert "wrote out.npz: y" in result.stderr


def test_a_difference_tells_how_far_it_is_and_is_quiet_on_request() -> None:
    for name in ("a.tw", "b.tw"):
        assert _run("compile", "model.onnx", "-o", name, "--no-verify").exit_code == 0
    arguments = ("explain", "a.tw", "--diff", "b.tw", "--runs", "1", "--no-probe", *SIZES)
    lines = _run(*arguments).stderr.splitlines()
    assert lines[-6:] == [f"{name}: turn {k} of 3" for k in (1, 2, 3) for name in ("a.tw", "b.tw")]
    for verb in (arguments, ("profile", "a.tw", "--runs", "1", *SIZES)):
        result = _run(*verb, "--quiet")
        assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "missing x"),
        (("--random",), "no size for the symbolic dims batch, height"),
        (("--random", "--dim", "batch=1", "--dim", "height=4", "--dim", "w=1"), "no input has"),
        (("--random", "--dim", "q=9", *SIZES), "no input has a dim q"),
        (("--npz", "none.npz"), "no such file"),
        (("--input", "x=none.npy"), "no such file"),
        (("-o", "none/out.npz"), "no such folder"),
    ],
)
def test_run_explains_what_is_missing(arguments: tuple[str, ...], message: str) -> None:
    _refused(_run("run", "model.onnx", *arguments), message)


def test_missing_inputs_are_described_with_the_options_that_give_them() -> None:
    result = _run("run", "model.onnx")
    assert "x float32[batch, 3, height, 8]" in result.stderr
    assert "--npz FILE, --input NAME=FILE or --random" in result.stderr


def test_numbers_are_rounded_for_people() -> None:
    result = _run("run", "model.onnx", "--random", "--dim", "batch=2", "--dim", "height=4")
    numbers = [word for word in result.stdout.split() if "." in word]
    assert numbers
    assert all(len(number) <= 13 for number in numbers)


def test_a_wasteful_number_of_threads_is_told() -> None:
    result = _run("compile", "model.onnx", "-o", "net.tw", "--threads", "1000")
    assert result.exit_code == 0
    assert "warning: --threads 1000 is more than the " in result.stderr


def test_what_cannot_be_random_is_verified_with_a_file(folder: Path) -> None:
    nodes = [node("StringNormalizer", ["x"], ["y"], case_change_action="LOWER")]
    text = model_of(nodes, inputs=[tensor_info("x", ("n",), 8)], outputs=[], opset=21)
    text.graph.output.append(tensor_info("y", None, 8))
    saved(text, folder)
    result = _run("compile", "model.onnx", "-o", "net.tw")
    _refused(result, "cannot be random")
    assert "--npz" in result.stderr
    assert "--no-verify" in result.stderr
    np.savez(folder / "in.npz", x=np.array(["A", "b"]))
    result = _run("compile", "model.onnx", "-o", "net.tw", "--npz", "in.npz")
    assert result.exit_code == 0, result.stderr


def test_with_json_an_error_is_a_document_too() -> None:
    result = _run("run", "none.tw", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "error": "UserError",
        "message": "no such file",
        "remedy": "check the path",
        "file": "none.tw",
        "node": None,
    }
    assert "error: none.tw: no such file" in result.stderr


def test_a_damaged_engine_is_named(folder: Path) -> None:
    (folder / "net.tw").write_bytes(b"PK\x03\x04 nothing")
    _refused(_run("run", "net.tw", "--random"), "net.tw: not an engine file")


# --- verify ---------------------------------------------------------------------------------------


def test_verify_prints_the_error_of_each_output(folder: Path) -> None:
    assert _run("compile", "model.onnx", "-o", "net.tw").exit_code == 0
    np.savez(folder / "in.npz", **feeds_of(2, 6))
    result = _run("verify", "model.onnx", "--engine", "net.tw", "--npz", "in.npz")
    assert result.exit_code == 0, result.stderr
    assert "within tolerance" in result.stdout
    assert "  y: " in result.stdout
    assert "  r: " in result.stdout
    facts = _json(_run("verify", "model.onnx", "--json", "--reproducer", "small"))
    assert facts["passed"]
    assert facts["fault"] is None
    assert [output["name"] for output in facts["outputs"]] == ["y", "r"]
    assert not (folder / "small").exists()


def test_verify_traces_the_engine_of_another_model(folder: Path) -> None:
    """An engine whose weights are not the model's is wrong where they are read."""
    other = network()
    (weight,) = (part for part in other.graph.initializer if part.name == "v")
    weight.raw_data = bytes(len(weight.raw_data))
    (folder / "other").mkdir()
    saved(other, folder / "other")
    assert _run("compile", "other/model.onnx", "-o", "net.tw").exit_code == 0
    result = _run("verify", "model.onnx", "--engine", "net.tw")
    assert result.exit_code == 1
    assert "WRONG" in result.stdout
    assert "gemm (Gemm)" in result.stdout
    result = _run("verify", "model.onnx", "--engine", "net.tw", "--json")
    facts = json.loads(result.stdout)
    assert (result.exit_code, facts["passed"]) == (1, False)
    assert any("gemm" in name for name in facts["fault"]["nodes"])


def test_the_engine_of_a_model_with_other_inputs_is_refused(folder: Path) -> None:
    assert _run("compile", "model.onnx", "-o", "net.tw").exit_code == 0
    other = network()
    other.graph.input[0].name = other.graph.node[0].input[0] = "image"
    saved(other, folder)
    result = _run("verify", "model.onnx", "--engine", "net.tw")
    _refused(result, "the engine was built from another model")
    assert "x float32[batch, 3, height, 8] of the engine, image float32[" in result.stderr
    wider = network()
    wider.graph.input[0].type.tensor_type.shape.dim[3].dim_value = 16
    saved(wider, folder)
    _refused(_run("verify", "model.onnx", "--engine", "net.tw"), "the inputs differ")


# --- bench ----------------------------------------------------------------------------------------


def test_bench_names_the_kind_of_file_that_it_takes(folder: Path) -> None:
    (folder / "net.tw").write_bytes(b"PK")
    _refused(
        _run("bench", "net.tw"), "net.tw: this is an engine; bench compares runtimes on an ONNX"
    )


def test_bench_shows_no_traceback_of_a_worker(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    (folder / "bad.onnx").write_bytes(b"no model at all")
    result = _run("bench", "bad.onnx")
    _refused(result, "damaged or another format")
    assert "left out: onnxruntime: InvalidProtobuf: " in result.stderr
    assert "Traceback" not in capfd.readouterr().err


def test_bench_compares_outputs_and_prints_ratios(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    sizes = ("--dim", "batch=1", "--dim", "height=8")
    quick = ("--rounds", "2", "--batch-ms", "2", "-o", "found.json")
    report = _json(_run("bench", "model.onnx", *sizes, *quick, "--json"))
    assert json.loads((folder / "found.json").read_text()) == report
    (found,) = report["comparisons"]
    peer, ours = found["timings"]
    assert (peer["precision"], ours["precision"]) == ("fp32", "fp32")
    assert len(found["canaries"]["share"]) >= found["canaries"]["num_kept"] >= 1
    (ratio,) = found["ratio_median"].values()
    means = {"onnxruntime": pytest.approx(ratio), "best peer": pytest.approx(ratio)}
    assert report["geomean_median"] == means
    assert (peer["contender"], ours["contender"]) == ("onnxruntime", "tilewright")
    assert ours["error"] < 1e-5
    assert found["ratio_median"]["onnxruntime"] > 0


def test_bench_ends_with_ratios_and_their_mean() -> None:
    pytest.importorskip("onnxruntime")
    sizes = ("--dim", "batch=1", "--dim", "height=8")
    result = _run("bench", "model.onnx", *sizes, "--rounds", "1", "--batch-ms", "1")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert any("counted, " in line and "GFLOP/s at best" in line for line in lines)
    assert any("geometric mean" in line for line in lines)
    assert any("onnxruntime" in line and ": fp32 (" in line for line in lines)


def test_bench_doubts_a_mean_of_few_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    rounds = [
        Round(canary_flops=speed, samples_us={"p": [2.0]}, round_trip_ns=trip_ns)
        for speed, trip_ns in ((9e9, 80.0), (5e9, 85.0), (5e9, 310.0))
    ]
    found = Comparison(
        model="m.onnx",
        threads=1,
        device="d",
        commit=None,
        inputs={},
        timings=[],
        ratio_min={"p": 2.0},
        ratio_median={"p": 2.0},
        canaries=canaries_of(rounds, 3),
    )
    bench_verb._print_report(BenchReport.of([found]))
    printed = " ".join(capsys.readouterr().out.split())
    assert "of m.onnx, 1 thread, only 1 of 3 rounds counted" in printed
    assert "processors moved apart; a cache line to another processor and back takes 80" in printed


@pytest.mark.parametrize(("median_us", "is_doubted"), [(12.0, False), (37.0, True)])
def test_bench_doubts_medians_far_from_their_minima(
    capsys: pytest.CaptureFixture[str], median_us: float, is_doubted: bool
) -> None:
    """Canaries before and after a round do not see what ran in the middle of it."""
    timing = Timing(
        contender="tilewright",
        version="1",
        precision="fp32",
        settings="",
        setup_s=0.1,
        num_runs=9,
        min_us=10.0,
        median_us=median_us,
        error=0.0,
    )
    found = Comparison(
        model="m.onnx",
        threads=1,
        device="d",
        commit=None,
        inputs={},
        timings=[timing],
        ratio_min={"p": 2.0},
        ratio_median={"p": 0.5},
        canaries=canaries_of([Round(canary_flops=9e9, samples_us={"p": [2.0]})], 1),
    )
    bench_verb._print_report(BenchReport.of([found]))
    text = "Doubtful: of m.onnx, 1 thread, most runs of tilewright took"
    assert (text in capsys.readouterr().out) == is_doubted


def test_bench_keeps_what_was_measured_before_a_failure(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    (folder / "bad.onnx").write_bytes(b"no model at all")
    sizes = ("--dim", "batch=1", "--dim", "height=8")
    result = _run("bench", "model.onnx", "bad.onnx", *sizes, "--rounds", "1", "--batch-ms", "1")
    assert result.exit_code == 1
    assert "geometric mean" in result.stdout
    assert "InvalidProtobuf" in result.stderr


def test_bench_explains_where_results_go(folder: Path) -> None:
    _refused(_run("bench", "model.onnx", "out.json"), "out.json: is no ONNX file")
    _refused(_run("bench", "model.onnx", "-o", "model.onnx"), "is the same file as model.onnx")
    assert not (folder / "out.json").exists()
