"""Candidates of an engine are timed, checked, chosen and remembered; no GPU is needed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tilewright.cli.app import build_app
from tilewright.core.dtypes import FLOAT32
from tilewright.core.errors import BadTarget
from tilewright.core.shape import Dim
from tilewright.runtime.cuda import (
    arrays,
    context,
    driver,
    executor,
    graph,
    memory,
    modules,
    timing,
    weights,
)
from tilewright.runtime.engine import Engine, load
from tilewright.runtime.engine_file import EngineParts
from tilewright.runtime.profile import all_calls
from tilewright.runtime.program import KernelCall, Launch, Program, Segment, TensorSpec
from tilewright.tune.on_gpu import fastest, tune_on_gpu
from tilewright.tune.store import Timing, TimingStore
from unit.runtime.cuda.fake_driver import FakeDriver, floats

N, ONE = Dim.symbol("n"), Dim.of(1)
_COSTS = {"first": 3.0, "slow": 20.0, "fast": 2.0, "wrong": 1.0, "last": 5.0}


def _scale(factor: float) -> Any:
    def kernel(a: int, w: int, out: int, n: int, *_: int) -> None:
        floats(out, n)[:] = factor * floats(w, 1)[0] * floats(a, n)

    return kernel


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    made = FakeDriver({name: _scale(3.0 if name == "wrong" else 2.0) for name in _COSTS})
    made.cost_us = dict(_COSTS)
    for module in (arrays, context, driver, executor, graph, memory, modules, timing, weights):
        monkeypatch.setattr(module, "bindings", lambda: made)
    driver.open_device.cache_clear()
    yield made
    gc.collect()
    driver.open_device.cache_clear()


def _spec(name: str, *shape: Dim) -> TensorSpec:
    return TensorSpec(name=name, dtype=FLOAT32, shape=shape)


def _call(symbol: str, *buffers: str, alternatives: tuple[KernelCall, ...] = ()) -> KernelCall:
    return KernelCall(
        kernel=f"key_{symbol}",
        name=symbol,
        sources=(f"node_{buffers[-1]}",),
        buffers=buffers,
        dims=(N,),
        stages=(Launch(symbol=symbol, grid=(ONE, ONE, ONE), threads=128),),
        traffic=(4 * N,) * len(buffers),
        flops=N,
        dtype="float32",
        tactic=f"tactic({symbol})",
        alternatives=alternatives,
    )


def _parts() -> EngineParts:
    """y = w (w (2 x) 2): the first of two kernels has candidates."""
    others = tuple(_call(name, "x", "w", "a") for name in ("slow", "wrong", "fast"))
    segment = Segment(
        calls=(_call("first", "x", "w", "a", alternatives=others), _call("last", "a", "w", "y")),
        inputs=(_spec("x", N), _spec("w", ONE)),
        outputs=(_spec("y", N),),
        internal=(_spec("a", N),),
    )
    keys = [f"key_{name}" for name in _COSTS]
    return EngineParts(
        program=Program(inputs=(_spec("x", N),), outputs=(_spec("y", N),), steps=(segment,)),
        constants={"w": np.ones(1, np.float32)},
        objects={},
        device_code={f"{key}.sm_90.cubin": b"code" for key in keys},
        sources=dict.fromkeys(keys, "code"),
        exports={key: (key[4:],) for key in keys},
        info={
            "archs": ("sm_90",),
            "cpu": "sm_90",
            "threads": 1,
            "summary": {},
            "triple": "",
            "required_features": (),
            "ranges": {},
            "metadata": {},
            "nvrtc": "13.0",
        },
    )


FEEDS = {"x": np.arange(1, 6, dtype=np.float32)}


def test_the_fastest_right_candidate_is_chosen() -> None:
    tuned, report = tune_on_gpu(Engine(_parts()), FEEDS)
    (row,) = report.rows
    assert (row.chosen, row.formula, row.calls) == ("tactic(fast)", "tactic(first)", 1)
    assert (row.us, row.formula_us, row.wrong) == (2.0, 3.0, ("tactic(wrong)",))
    assert (report.before_us, report.after_us) == (8.0, 7.0)
    assert [call.name for call in all_calls(tuned.program)] == ["fast", "last"]
    assert not any(call.alternatives for call in all_calls(tuned.program))
    assert sorted(tuned.parts.exports) == ["key_fast", "key_last"]
    np.testing.assert_array_equal(tuned.run(FEEDS)["y"], 4 * FEEDS["x"])
    decision = tuned.decisions[-1]
    assert (decision.stage, decision.chosen) == ("tuned", "tactic(fast)")
    assert dict(decision.rejected)["tactic(wrong)"].startswith("its values differ")
    assert dict(decision.rejected)["tactic(slow)"] == "took 20.00 us"


def test_equal_stores_give_equal_engines_and_nothing_is_timed_twice(tmp_path: Path) -> None:
    store = TimingStore(tmp_path / "t.sqlite", write=True)
    first, report = tune_on_gpu(Engine(_parts()), FEEDS, store)
    assert (report.timed, report.known) == (2, 0)
    again, report = tune_on_gpu(Engine(_parts()), FEEDS, store)
    assert (report.timed, report.known) == (0, 2)
    for name, engine in (("a", first), ("b", again)):
        engine.save(tmp_path / name)
    assert load(tmp_path / "a").program == load(tmp_path / "b").program
    choices = [[d.chosen for d in engine.decisions] for engine in (first, again)]
    assert choices[0] == choices[1]


def test_candidates_are_timed_for_each_size(tmp_path: Path) -> None:
    store = TimingStore(tmp_path / "t.sqlite", write=True)
    for size in (5, 6):
        _, report = tune_on_gpu(Engine(_parts()), {"x": np.ones(size, np.float32)}, store)
        assert report.timed == 2


def test_a_gain_that_may_be_chance_changes_nothing(fake: FakeDriver) -> None:
    fake.cost_us["fast"] = 2.97
    tuned, _ = tune_on_gpu(Engine(_parts()), FEEDS)
    assert [call.name for call in all_calls(tuned.program)] == ["first", "last"]


def _slow_after(fake: FakeDriver, symbol: str, us: float) -> None:
    """Has the kernel ``last`` take longer where ``symbol`` ran before it, as one that evicts."""
    execute, before = fake._execute, [""]

    def observed(node: list[Any]) -> None:
        fake.cost_us["last"] = _COSTS["last"] + us * (before[0] == symbol)
        before[0] = node[0]
        execute(node)

    fake._execute = observed  # type: ignore[method-assign]


def test_a_choice_that_makes_whole_runs_slower_is_dropped(fake: FakeDriver, tmp_path: Path) -> None:
    _slow_after(fake, "fast", 2.0)
    store = TimingStore(tmp_path / "t.sqlite", write=True)
    for timed in (2, 0):
        tuned, report = tune_on_gpu(Engine(_parts()), FEEDS, store)
        assert [call.name for call in all_calls(tuned.program)] == ["first", "last"]
        assert (report.timed, report.before_us, report.after_us) == (timed, 8.0, 8.0)
        text = "tuned choice was not faster as a whole (9.0 us instead of 8.0): kept 0 of 1 change"
        assert report.whole == text
        found = {d.subject: d for d in tuned.decisions if d.stage == "tuned"}
        assert found["whole runs"].rejected == (("1 change", text),)
        reasons = dict(found["node_a"].rejected)
        assert reasons["tactic(fast)"] == "took 2.00 us, but whole runs were no faster with it"


def test_the_verb_says_that_the_choice_was_dropped(fake: FakeDriver, tmp_path: Path) -> None:
    _slow_after(fake, "fast", 2.0)
    Engine(_parts()).save(tmp_path / "a.tw")
    arguments = ["tune", str(tmp_path / "a.tw"), "--dim", "n=7", "--quiet"]
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code == 0, result.stderr
    assert "0 of 1 kernels changed" in result.stdout
    assert "tuned choice was not faster as a whole" in result.stdout


def test_the_choice_is_the_mean_over_sizes() -> None:
    def timing(schedule: str, sizes: str, us: float) -> Timing:
        return Timing(sizes=sizes, schedule=schedule, us=us, formula_us=10.0, samples=5)

    found = [timing("a", "d0=1", 5.0), timing("a", "d0=2", 25.0), timing("b", "d0=1", 9.0)]
    assert fastest("f", ["a", "b", "c"], found) == "b"
    assert fastest("f", ["a"], found) == "f"
    assert fastest("f", [], []) == "f"


def test_engines_without_candidates_are_refused() -> None:
    parts = _parts()
    (segment,) = parts.program.steps
    assert isinstance(segment, Segment)
    calls = tuple(replace(call, alternatives=()) for call in segment.calls)
    program = replace(parts.program, steps=(replace(segment, calls=calls),))
    with pytest.raises(BadTarget, match="no candidates to choose from"):
        tune_on_gpu(Engine(replace(parts, program=program)), FEEDS)


def test_the_verb_writes_the_tuned_engine(tmp_path: Path) -> None:
    Engine(_parts()).save(tmp_path / "a.tw")
    arguments = ["tune", str(tmp_path / "a.tw"), "-o", str(tmp_path / "b.tw"), "--dim", "n=7"]
    arguments += ["--timing-store", str(tmp_path / "t.sqlite"), "--quiet"]
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code == 0, result.stderr
    assert "2 candidates timed, 0 known; 1 of 1 kernels changed" in result.stdout
    assert "tactic(fast) instead of tactic(first)" in result.stdout
    assert [call.name for call in all_calls(load(tmp_path / "b.tw").program)] == ["fast", "last"]
