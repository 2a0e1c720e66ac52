"""Profiles: every part once, parts that add up, loops, traces; results stay what they were."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.core.errors import BadOption, CacheError, ShapeMismatch
from tilewright.report.profile import Profile
from tilewright.report.units import us_text
from tilewright.runtime import profile as profile_module
from tilewright.runtime.executor import Run
from tilewright.runtime.profile import Stopwatch, all_calls
from tilewright.runtime.program import Segment
from unit.compiler.models import compiled, feeds_of, network
from unit.graph.models import model_of, node, tensor_info


@pytest.fixture(scope="module")
def engine() -> tw.Engine:
    return compiled(network(), verify=False)


def test_every_kernel_once_and_parts_that_add_up(engine: tw.Engine) -> None:
    profile = engine.profile(feeds_of(), runs=5)
    calls = list(all_calls(engine.program))
    assert [step.index for step in profile.kernels] == list(range(len(calls)))
    assert [step.sources for step in profile.kernels] == [call.sources for call in calls]
    assert all(step.calls == 1 and step.iterations > 0 for step in profile.kernels)
    assert all(step.microseconds > 0 for step in profile.kernels)
    assert 0 < profile.sum_us <= profile.profiled_us * 1.0001
    shares = sum(step.share for step in (*profile.kernels, *profile.host))
    assert shares + profile.runtime_us / profile.sum_us == pytest.approx(1)
    assert profile.runtime_us > 0
    assert dict(profile.sizes) == {"batch": 2, "height": 6}


def test_profiling_leaves_results_and_memory_alone(engine: tw.Engine) -> None:
    feeds = feeds_of()
    before = engine.run(feeds)
    engine.profile(feeds, runs=1)
    after = engine.run(feeds)
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name])
    base = engine._runnable()
    timed = base.watched(Stopwatch(base.native))
    segment = next(step for step in engine.program.steps if isinstance(step, Segment))
    sizes = {"batch": 2, "height": 6}
    assert timed.plan(segment, sizes) is base.plan(segment, sizes)


def test_a_timed_run_computes_the_same(engine: tw.Engine) -> None:
    feeds = feeds_of()
    base = engine._runnable()
    timed = base.watched(Stopwatch(base.native))
    run = Run(dict(feeds), {"batch": 2, "height": 6})
    timed.execute(engine.program, run)
    expected = engine.run(feeds)
    for spec, value in zip(engine.outputs, timed.outputs(engine.program, run), strict=True):
        np.testing.assert_array_equal(value, expected[spec.name])


def test_kernels_in_a_loop_are_counted_and_the_loop_is_charged_for_the_rest() -> None:
    body = helper.make_graph(
        [
            node("Mul", ["x_in", "two"], ["x_out"], name="double"),
            node("Identity", ["going"], ["still"], name="keep"),
        ],
        "body",
        [
            tensor_info("i", (), TensorProto.INT64),
            tensor_info("going", (), TensorProto.BOOL),
            tensor_info("x_in", (4, 64)),
        ],
        [tensor_info("still", (), TensorProto.BOOL), tensor_info("x_out", (4, 64))],
    )
    model = model_of(
        [node("Loop", ["trips", "", "x"], ["y"], name="loop", body=body)],
        inputs=[tensor_info("x", (4, 64))],
        outputs=["y"],
        weights={"two": np.float32(2), "trips": np.int64(7)},
        opset=21,
    )
    engine = compiled(model, verify=False)
    profile = engine.profile({"x": np.ones((4, 64), np.float32)}, runs=3)
    (kernel,) = [step for step in profile.kernels if "double" in step.sources]
    assert kernel.calls == 7
    (loop,) = [step for step in profile.host if step.kind == "Repeat"]
    assert loop.calls == 1
    assert loop.sources == ("loop",)
    assert loop.microseconds > 0
    assert 0 < profile.sum_us <= profile.profiled_us * 1.0001


def test_a_kernel_that_steps_is_charged_as_one() -> None:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((1, 32, 4), np.float32),
        "r": rng.standard_normal((1, 32, 8), np.float32),
    }
    model = model_of(
        [node("LSTM", ["x", "w", "r"], ["y"], name="lstm", hidden_size=8)],
        inputs=[tensor_info("x", (5, 2, 4))],
        outputs=["y"],
        weights=weights,
        opset=21,
    )
    profile = compiled(model, verify=False).profile({"x": np.ones((5, 2, 4), np.float32)}, runs=2)
    assert sum(step.calls for step in profile.kernels) == len(profile.kernels)
    assert all(step.microseconds > 0 for step in profile.kernels)


def test_a_trace_is_valid_and_its_events_lie_inside_the_run(
    engine: tw.Engine, tmp_path: Path
) -> None:
    profile = engine.profile(feeds_of(), runs=3)
    profile.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    intervals = [event for event in events if event["ph"] == "X"]
    run, *kernels = intervals
    assert run["name"] == "run"
    assert len(kernels) == len(profile.kernels)
    end = run["ts"]
    for event in kernels:
        assert event["ts"] >= end - 0.01  # one after another
        end = event["ts"] + event["dur"]
        assert {"name", "cat", "ph", "ts", "dur", "pid", "tid"} <= event.keys()
    assert end <= run["ts"] + run["dur"]
    with pytest.raises(CacheError, match="no such folder"):
        profile.trace(tmp_path / "missing" / "trace.json")


def test_json_and_text_say_the_same(engine: tw.Engine) -> None:
    profile = engine.profile(feeds_of(), runs=2)
    document = json.loads(json.dumps(profile.json()))
    assert document["schema"] == "tilewright.profile/1"
    assert len(document["kernels"]) == len(profile.kernels)
    assert document["sum_us"] == pytest.approx(profile.sum_us)
    text = profile.text(most=1)
    assert f"end to end {us_text(profile.end_to_end_us)} (2 runs, " in text
    assert f"{len(profile.kernels) - 1} more" in text


def test_wrong_arguments_are_refused(engine: tw.Engine) -> None:
    with pytest.raises(BadOption, match="runs is 0"):
        engine.profile(feeds_of(), runs=0)
    with pytest.raises(ShapeMismatch):
        engine.profile({}, runs=1)


@pytest.mark.parametrize(("longest_ns", "expected"), [(0, 5), (10**12, 50)])
def test_runs_that_nobody_asked_for_take_a_bounded_time(
    engine: tw.Engine, monkeypatch: pytest.MonkeyPatch, longest_ns: int, expected: int
) -> None:
    monkeypatch.setattr(profile_module, "_LONGEST_NS", longest_ns)
    assert engine.profile(feeds_of()).runs == expected
    assert engine.profile(feeds_of(), runs=7).runs == 7


def test_parts_and_the_whole_are_of_the_same_runs(engine: tw.Engine) -> None:
    for runs in (1, 9):
        profile = engine.profile(feeds_of(), runs=runs)
        assert profile.sum_us == pytest.approx(profile.end_to_end_us, rel=0.01)
        assert profile.coverage == pytest.approx(1, abs=0.01)
        assert profile.end_to_end_us <= profile.profiled_us


def test_one_slow_kind_of_run_is_not_divided_by_another(
    engine: tw.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = engine._run

    def slow(executor: object, given: object) -> object:
        if executor is engine._runnable():
            time.sleep(0.02)  # as if runs without the clock met another program
        return original(executor, given)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "_run", slow, raising=False)
    profile = engine.profile(feeds_of(), runs=3)
    assert profile.coverage == pytest.approx(1, abs=0.01)
    assert "the machine is busy" in profile.text()


@pytest.mark.parametrize(
    ("on_processor", "median", "plain", "said"),
    [
        (100.0, 105.0, 100.0, ""),
        (60.0, 105.0, 100.0, "other programs took 40% of a run"),
        (100.0, 250.0, 100.0, "2.5 times as long"),
        (100.0, 105.0, 200.0, "runs without profiling took 0.200 ms"),
    ],
)
def test_what_disturbed_a_run_is_said(
    on_processor: float, median: float, plain: float, said: str
) -> None:
    profile = Profile(
        kernels=(),
        host=(),
        runtime_us=100.0,
        end_to_end_us=100.0,
        profiled_us=100.0,
        on_processor_us=on_processor,
        plain_us=plain,
        median_us=median,
        runs=1,
        threads=1,
    )
    assert said in profile.disturbance
    assert bool(profile.disturbance) == bool(said)
    assert "(1 run, 1 thread)" in profile.text()


def test_processors_that_others_took_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "stat"
    monkeypatch.setattr(profile_module, "_STATISTICS", file)
    monkeypatch.setattr(profile_module, "_SHORTEST_NS", 0)
    assert profile_module._Others().share() == 0.0  # the system does not tell
    file.write_text("cpu  100 0 100 5000 50 0 0 0 0 0\n")
    others = profile_module._Others()
    assert others.share() == 0.0
    file.write_text("cpu  100 0 100 9000 50 0 0 0 0 0\n")
    assert others.share() == 0.0  # idle time is nobody's
    file.write_text("cpu  99999 0 100 9000 50 0 0 0 0 0\n")
    assert others.share() == 1.0
