"""``compile`` keeps its contracts, tells its progress, and writes only what it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from tilewright.compiler import Require
from tilewright.core.errors import (
    BadOption,
    BadTarget,
    CacheError,
    ContractBreach,
    ShapeMismatch,
    VerificationFailed,
)
from tilewright.core.shape import Dim
from tilewright.kernel.ir import call
from tilewright.lower.broadcast import elementwise
from tilewright.lower.context import Lowering
from tilewright.lower.families import LOWERINGS
from unit.compiler.models import compiled, feeds_of, network, saved
from unit.graph.models import model_of, node, tensor_info


def _strings() -> onnx.ModelProto:
    nodes = [node("StringNormalizer", ["x"], ["y"], name="lower", case_change_action="LOWER")]
    model = model_of(nodes, inputs=[tensor_info("x", ("n",), 8)], outputs=[], opset=21)
    model.graph.output.append(tensor_info("y", None, 8))
    return model


# --- contracts ------------------------------------------------------------------------------------


def test_compiled_names_every_interpreted_node_and_why() -> None:
    with pytest.raises(
        ContractBreach, match=r"1 node would[^$]*lower \(StringNormalizer\)"
    ) as caught:
        compiled(_strings(), require=["compiled"], verify=False)
    assert "remedy" in str(caught.value)
    engine = compiled(_strings(), verify=False)
    ((name, operator, reason),) = engine.summary["interpreted"]
    assert (name, operator) == ("lower", "StringNormalizer")
    assert reason
    assert engine(x=np.array(["AB"], object))["y"].tolist() == ["ab"]


@pytest.mark.parametrize("wanted", [["compiled", "max_error=1e-5"], Require(compiled=True)])
def test_contracts_that_hold_change_nothing(wanted: Any) -> None:
    assert compiled(network(), require=wanted).summary["interpreted"] == ()


def test_an_error_beyond_the_contract_is_a_breach() -> None:
    with pytest.raises(ContractBreach, match="max_error=1e-12 is required, the engine has"):
        compiled(network(), require={"max_error": 1e-12})


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"require": ["fast"]}, BadOption, "unknown contract 'fast'"),
        ({"require": ["max_error=often"]}, BadOption, "is no number"),
        ({"require": ["max_error=-1"]}, BadOption, "max_error='-1'"),
        ({"require": ["compiled=perhaps"]}, BadOption, "compiled='perhaps'"),
        ({"target": "tpu"}, BadTarget, "unknown target 'tpu'"),
        ({"cpu": "z80"}, BadTarget, "unknown processor 'z80'"),
        ({"precision": "int3"}, BadOption, "unknown precision"),
        ({"threads": True}, BadOption, "threads is True"),
        ({"dims": {"batch": (3, 1)}}, BadOption, "3 is above 1"),
        ({"dims": {"batch": (-1, 1)}}, BadOption, "range of batch"),
        ({"dims": {"depth": 3}}, BadOption, "unknown dims depth"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        compiled(network(), **options)


# --- what is written and told ---------------------------------------------------------------------


def test_nothing_is_written_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    compiled(network())
    assert list(tmp_path.iterdir()) == []
    tw.compile(network(), verify=False)
    assert [file.name for file in tmp_path.iterdir()] == ["cache"]


def test_dumps_hold_the_graph_and_every_kernel(tmp_path: Path) -> None:
    engine = compiled(
        network(), dump_graph=tmp_path / "graph.onnx", dump_kernels=tmp_path / "kernels"
    )
    dumped = compiled(onnx.load(tmp_path / "graph.onnx"))
    for name, value in engine.run(feeds_of()).items():
        np.testing.assert_allclose(dumped.run(feeds_of())[name], value, rtol=1e-5, atol=1e-6)
    names = {call.kernel for step in engine.program.steps for call in getattr(step, "calls", ())}
    assert {file.stem for file in (tmp_path / "kernels").glob("*.ll")} == names
    assert {file.stem for file in (tmp_path / "kernels").glob("*.txt")} == names
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(CacheError, match="is no folder"):
        compiled(network(), dump_kernels=tmp_path / "file")


def test_progress_is_told_by_stage() -> None:
    told: list[tuple[str, int, int]] = []
    compiled(network(), progress=lambda *entry: told.append(entry))
    stages = list(dict.fromkeys(stage for stage, _, _ in told))
    assert stages[0] == "import"
    assert stages[-1] == "verify"
    assert all(0 <= done <= total for _, done, total in told)
    kernels = [(done, total) for stage, done, total in told if stage == "compile kernels" and total]
    assert kernels[-1][0] == kernels[-1][1]


# --- verification ---------------------------------------------------------------------------------


def test_given_inputs_are_those_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that random numbers do not meet is met by the inputs that are given."""

    def wrong_beyond_50(ctx: Lowering) -> None:
        elementwise(ctx, lambda x: call("tanh", x) + x.max(50.0) - 50.0)

    monkeypatch.setitem(LOWERINGS, ("", "Tanh"), wrong_beyond_50)
    model = model_of([node("Tanh", ["x"], ["y"], name="tanh")], inputs=[tensor_info("x", ("n",))])
    assert compiled(model).summary["max_error"] < 1e-5
    with pytest.raises(VerificationFailed, match="tanh"):
        compiled(model, verify_feeds={"x": np.array([60.0], np.float32)})
    assert compiled(model, verify=False).summary["verification"] == "skipped on request"


def test_inputs_that_cannot_be_random_are_asked_for() -> None:
    with pytest.raises(BadOption, match="cannot be random") as caught:
        compiled(_strings())
    assert "verify_feeds" in str(caught.value)
    given = {"x": np.array(["Ab", "c"], object)}
    assert "within tolerance" in compiled(_strings(), verify_feeds=given).summary["verification"]


def test_sizes_that_the_model_refuses_are_not_used() -> None:
    """A reshape to rows of 7 only takes multiples of 7: sizes come from the declared range."""
    model = model_of(
        [node("Reshape", ["x", "shape"], ["r"], name="rows"), node("Relu", ["r"], ["y"])],
        inputs=[tensor_info("x", ("n",))],
        weights={"shape": np.array([-1, 7])},
        opset=21,
    )
    with pytest.raises(BadOption, match="no random inputs fit the model"):
        compiled(model)
    assert compiled(model, dims={"n": (14, 14)}).inputs[0].shape == (Dim.of(14),)
    assert compiled(model, dims={"n": (14, 15)}).summary["arena_sizes"]["n"] == 14


def test_a_model_may_be_a_path_bytes_or_an_object(tmp_path: Path) -> None:
    path = saved(network(), tmp_path)
    wanted = compiled(network(), verify=False).run(feeds_of())
    for model in (path, str(path), path.read_bytes()):
        found = tw.compile(model, threads=2, cache=None, verify=False).run(feeds_of())
        for name, value in wanted.items():
            np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("dims", [{"batch": 2}, {"batch": (2, 2)}])
def test_a_range_of_one_size_is_that_size(dims: dict[str, Any]) -> None:
    engine = compiled(network(), dims={**dims, "height": (1, 9)})
    shape = [str(dim).strip("`") for dim in engine.inputs[0].shape or ()]
    assert shape == ["2", "3", "height", "8"]
    assert engine.ranges == {"height": (1, 9)}
    assert any(one.subject == "batch" and one.chosen.startswith("2, ") for one in engine.decisions)
    feeds = feeds_of(batch=2)
    for name, array in compiled(network()).run(feeds).items():
        np.testing.assert_allclose(engine.run(feeds)[name], array, rtol=1e-5, atol=1e-5)
    with pytest.raises(ShapeMismatch, match="axis 0 is 3, expected 2"):
        engine.run(feeds_of(batch=3))


def test_one_size_of_an_unknown_dim_is_refused() -> None:
    with pytest.raises(BadOption, match="unknown dims nothing"):
        compiled(network(), dims={"nothing": 1})
