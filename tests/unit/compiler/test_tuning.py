"""Builds with a timing store: equal, verified, explained; and builds without one as before."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
from tilewright.codegen.cpu.target import host_target
from tilewright.compiler import tuning
from tilewright.compiler.options import make_tuning
from tilewright.compiler.tuning import scope_of
from tilewright.core.errors import BadOption, CacheError, UserError
from tilewright.kernel.schedule import Schedule
from tilewright.tune.rounds import Turn
from tilewright.tune.store import Stage, TimingStore
from unit.compiler.models import compiled, feeds_of, network

LAST = {"verify": False, "threads": 1}


class Planted(tuning._Bench):
    """Pretends that of each stage the second candidate takes half the formula's time."""

    def time(self, trial: Mapping[Stage, Schedule]) -> Mapping[Stage, list[Turn]]:
        found = {}
        for stage, sizes in self._groups:
            second = self.candidates(stage)[1:2]
            fast = bool(second) and trial.get(stage) == second[0]
            us = 5.0 if fast else 20.0 if stage in trial else 10.0
            found[stage] = [Turn(sizes=sizes, us=us, formula_us=10.0, samples=1)]
        return found


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_Bench", Planted)


def saved(engine: tw.Engine, path: Path) -> bytes:
    engine.save(path)
    return path.read_bytes()


def schedules(engine: tw.Engine) -> list[str]:
    return [d.chosen for d in engine.decisions if d.stage == "tactic"]


@pytest.mark.usefixtures("planted")
def test_a_store_gives_the_engine_that_tuning_gave_byte_for_byte(tmp_path: Path) -> None:
    store = tmp_path / "t.sqlite"
    plain = compiled(network(), **LAST)
    tuned = compiled(network(), tune=True, timing_store=store, **LAST)
    assert schedules(tuned) != schedules(plain)
    first = saved(tuned, tmp_path / "a.tw")
    for name in ("b.tw", "c.tw"):
        again = compiled(network(), timing_store=store, **LAST)
        assert saved(again, tmp_path / name) == first


def test_a_real_search_is_verified_and_repeatable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tilewright.tune.candidates._MAX_CANDIDATES", 2)
    monkeypatch.setattr(tuning, "_TURNS_S", 0.01)
    store = tmp_path / "t.sqlite"
    told: list[tuple[str, int, int]] = []
    tuned = compiled(
        network(),
        tune=True,
        timing_store=store,
        threads=1,
        progress=lambda *report: told.append(report),
        verify_feeds=feeds_of(),
    )
    assert tuned.summary["max_error"] < 1e-5
    assert tuned.summary["tuning"]["rounds"] > 0
    assert tuned.summary["tuning"]["gained_us"] < tuned.summary["tuning"]["formula_us"]
    assert any(stage == "tune" and total for stage, _, total in told)
    again = compiled(network(), timing_store=store, threads=1, verify_feeds=feeds_of())
    assert saved(again, tmp_path / "a.tw") == saved(tuned, tmp_path / "b.tw")


@pytest.mark.usefixtures("planted")
def test_decisions_have_both_times_and_what_else_was_tried(tmp_path: Path) -> None:
    tuned = compiled(network(), tune=True, timing_store=tmp_path / "t.sqlite", **LAST)
    timed = [d for d in tuned.decisions if d.stage == "tactic" and d.measured_us is not None]
    assert timed
    assert {d.measured_us for d in timed} <= {5.0, 10.0}
    assert all(d.predicted_us is not None for d in timed)
    assert tuned.summary["tuning"]["gained_us"] >= 5.0  # a stage took half of the formula's 10 us
    won = next(d for d in timed if d.measured_us == 5.0)
    assert any(reason.startswith("took 20.0 us, 4.00 x") for _, reason in won.rejected)
    text = tuned.explain(feeds_of(), runs=1).json()
    assert won.chosen in str(text)


@pytest.mark.usefixtures("planted")
def test_without_a_store_nothing_changes(tmp_path: Path) -> None:
    before = saved(compiled(network(), **LAST), tmp_path / "a.tw")
    compiled(network(), tune=True, **LAST)
    assert saved(compiled(network(), **LAST), tmp_path / "b.tw") == before


@pytest.mark.usefixtures("planted")
def test_timings_of_another_number_of_threads_do_not_hold(tmp_path: Path) -> None:
    store = tmp_path / "t.sqlite"
    compiled(network(), tune=True, timing_store=store, **LAST)
    two = compiled(network(), timing_store=store, verify=False, threads=2)
    assert schedules(two) == schedules(compiled(network(), verify=False, threads=2))


@pytest.mark.usefixtures("planted")
def test_a_forged_schedule_is_left_out_and_told(tmp_path: Path) -> None:
    store = tmp_path / "t.sqlite"
    compiled(network(), tune=True, timing_store=store, **LAST)
    with sqlite3.connect(store) as db:
        db.execute("UPDATE OR REPLACE timings SET schedule = 'contraction(lanes=4096)', us = 1e-5")
        db.execute(
            "INSERT OR REPLACE INTO timings SELECT kernel, 1000000 + stage, target, "
            "compiler, threads, sizes, schedule, 'soon', 1.0, 1 FROM timings"
        )
    engine = compiled(network(), timing_store=store, threads=1)
    assert schedules(engine) == schedules(compiled(network(), **LAST))
    told = [pair for d in engine.decisions if d.stage == "timing_store" for pair in d.rejected]
    reasons = {reason for _, reason in told}
    assert "they are of schedules that this kernel cannot have" in reasons
    assert "they hold no times or sizes" in reasons


def test_an_interrupted_search_keeps_what_was_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Interrupted(Planted):
        rounds = 0

        def time(self, trial: Mapping[Stage, Schedule]) -> Mapping[Stage, list[Turn]]:
            self.rounds += 1
            if self.rounds == 3:
                raise KeyboardInterrupt
            return super().time(trial)

    monkeypatch.setattr(tuning, "_Bench", Interrupted)
    store = tmp_path / "t.sqlite"
    with pytest.raises(KeyboardInterrupt):
        compiled(network(), tune=True, timing_store=store, **LAST)
    known = TimingStore(store, write=False).read(scope_of(host_target(), 1)).timings
    assert known
    assert {len(found) for found in known.values()} == {1}


@pytest.mark.parametrize("budget", [0, -1, float("inf"), float("nan"), "60", True])
def test_a_budget_is_a_positive_number(budget: Any) -> None:
    with pytest.raises(BadOption, match="time_budget is"):
        compiled(network(), time_budget=budget)


def test_options_that_ask_for_nothing_are_no_tuning() -> None:
    assert make_tuning(tune=False, time_budget=None, timing_store=None) is None


@pytest.mark.parametrize("target", ["cuda", "sm_90"])
@pytest.mark.parametrize("how", [{"tune": True}, {"time_budget": 1}])
def test_kernels_of_gpus_are_timed_on_the_gpu(target: str, how: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match=f"with the target {target}"):
        compiled(network(), target=target, verify=False, **how)


def test_candidates_are_for_gpus_and_for_a_later_choice() -> None:
    with pytest.raises(BadOption, match="candidates=3 is for GPUs"):
        compiled(network(), verify=False, candidates=3)
    with pytest.raises(BadOption, match="leaves one for each kernel"):
        compiled(network(), target="sm_90", candidates=3, timing_store="t.sqlite")
    with pytest.raises(BadOption, match="candidates"):
        compiled(network(), target="sm_90", candidates=0)


def test_another_machine_s_code_cannot_be_timed_here() -> None:
    other = "haswell" if host_target().architecture == "aarch64" else "neoverse-v1"
    with pytest.raises(BadOption, match="cannot be timed on this machine"):
        compiled(network(), cpu=other, tune=True, verify=False)


def test_a_store_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="no such timing store"):
        compiled(network(), timing_store=tmp_path / "none.sqlite")


def test_inputs_that_do_not_fit_are_refused_before_anything_is_timed() -> None:
    with pytest.raises(UserError, match="x"):
        compiled(network(), tune=True, verify_feeds={"x": 1})
