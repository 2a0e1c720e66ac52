"""Engines for GPUs, built on a machine that may have none."""

from __future__ import annotations

from pathlib import Path

import pytest

import tilewright as tw
from tilewright.core.errors import BadOption, BadTarget, ContractBreach, CorruptEngine
from tilewright.runtime.engine_file import load_parts
from tilewright.runtime.profile import all_calls
from tilewright.runtime.program import Launch, Segment
from tilewright.tune.on_gpu import scope_of
from tilewright.tune.store import Stage, Timing, TimingStore
from unit.compiler.models import compiled, feeds_of, network

pytestmark = pytest.mark.nvrtc


def test_an_engine_holds_code_of_every_architecture_and_its_source(tmp_path: Path) -> None:
    engine = compiled(network(), target="sm_80+sm_90", precision="fp16", verify=False)
    engine.save(tmp_path / "a.tw")
    parts = load_parts(tmp_path / "a.tw")
    assert parts.program == engine.program
    keys = {call.kernel for s in parts.program.steps if isinstance(s, Segment) for call in s.calls}
    for key in keys:
        assert {f"{key}.sm_80.cubin", f"{key}.sm_90.cubin", f"{key}.ptx"} <= set(parts.device_code)
        assert "__global__ void" in parts.sources[key]
    stages = [
        t for s in parts.program.steps if isinstance(s, Segment) for c in s.calls for t in c.stages
    ]
    assert all(isinstance(stage, Launch) for stage in stages)
    assert any(d.stage == "resources" and "registers" in d.chosen for d in parts.decisions)
    assert parts.info["archs"] == ("sm_80", "sm_90")


def test_equal_builds_are_equal(tmp_path: Path) -> None:
    for name in ("a.tw", "b.tw"):
        compiled(network(), target="sm_90", verify=False).save(tmp_path / name)
    assert (tmp_path / "a.tw").read_bytes() == (tmp_path / "b.tw").read_bytes()


def test_it_says_that_it_was_not_verified_where_it_cannot_run(tmp_path: Path) -> None:
    engine = compiled(network(), target="sm_80", verify=True)
    if engine.runs_here:
        pytest.skip("this machine has a GPU")
    assert engine.summary["verification"].startswith("skipped: compiled for sm_80")
    engine.save(tmp_path / "a.tw")
    with pytest.raises(BadTarget, match="the engine was compiled for sm_80"):
        tw.load(tmp_path / "a.tw")
    assert tw.load(tmp_path / "a.tw", inspect=True).info["target"] == "sm_80"
    with pytest.raises(ContractBreach, match="max_error"):
        compiled(network(), target="sm_80", require=["max_error=1e-3"])


def test_impossible_blocks_are_refused(tmp_path: Path) -> None:
    engine = compiled(network(), target="sm_90", verify=False)
    engine.save(tmp_path / "a.tw")
    parts = load_parts(tmp_path / "a.tw")
    (segment,) = [step for step in parts.program.steps if isinstance(step, Segment)]
    launch = segment.calls[0].stages[0]
    assert isinstance(launch, Launch)
    object.__setattr__(launch, "threads", 2048)
    tw.Engine(parts).save(tmp_path / "b.tw")
    with pytest.raises(CorruptEngine, match="impossible block"):
        load_parts(tmp_path / "b.tw")


def test_it_is_explained_anywhere_and_profiled_where_it_runs() -> None:
    engine = compiled(network(), target="sm_90", verify=False)
    assert "softmax" in engine.explain(runs=0, board="H200").text().lower()
    if not engine.runs_here:
        with pytest.raises(BadTarget, match="the engine was compiled for sm_90"):
            engine.profile(feeds_of())


def test_candidates_are_kept_and_a_store_chooses_one(tmp_path: Path) -> None:
    engine = compiled(network(), target="sm_90", verify=False, candidates=3)
    calls = list(all_calls(engine.program))
    assert any(call.alternatives for call in calls)
    engine.save(tmp_path / "a.tw")
    assert tw.load(tmp_path / "a.tw", inspect=True).program == engine.program
    call = next(call for call in calls if call.alternatives)
    wanted = call.alternatives[-1].tactic
    store = TimingStore(tmp_path / "t.sqlite", write=True)
    timing = Timing(sizes="", schedule=wanted, us=1.0, formula_us=2.0, samples=3)
    scope = scope_of("sm_90", engine.info["nvrtc"])
    store.write(scope, {Stage(call.kernel, 0): [timing]}, {call.kernel: "code"})
    for _ in range(2):
        tuned = compiled(network(), target="sm_90", verify=False, timing_store=store.path)
        found = {one.sources: one for one in all_calls(tuned.program)}
        assert found[call.sources].tactic == wanted
        assert not any(one.alternatives for one in found.values())
    with pytest.raises(BadOption, match="timings are of one architecture"):
        compiled(network(), target="sm_80+sm_90", verify=False, timing_store=store.path)
