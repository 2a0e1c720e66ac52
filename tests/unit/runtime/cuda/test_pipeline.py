"""Batches in a pipeline: results in order, and a schedule whose proof sees what is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.core.errors import OutOfRange, ShapeMismatch
from tilewright.runtime.cuda import pipeline
from tilewright.runtime.cuda.pipeline import SLOTS, can_stream, copied, schedule
from tilewright.runtime.engine import Engine
from tilewright.runtime.hazards import HOST, Operation, Sync, Wait, Work, find_races, whole
from tilewright.runtime.program import Program
from unit.runtime.cuda.fake_driver import FakeDriver
from unit.runtime.cuda.test_executor import _engine, fake  # noqa: F401  (a fixture)

pytestmark = pytest.mark.usefixtures("fake")


@pytest.fixture
def driver(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:  # noqa: F811
    monkeypatch.setattr(pipeline, "bindings", lambda: fake)
    return fake


def _one_segment(*, checked: bool = False) -> Engine:
    engine = _engine(checked=checked)
    program = engine.program
    return engine.with_program(
        Program(inputs=program.inputs, outputs=program.outputs[:1], steps=program.steps[:1])
    )


def _batches(*sizes: int) -> list[dict[str, Any]]:
    return [{"x": np.full(n, k, np.float32)} for k, n in enumerate(sizes)]


@pytest.mark.parametrize("count", [0, 1, 2, SLOTS, 10])
def test_results_come_in_order(driver: FakeDriver, count: int) -> None:
    engine = _one_segment()
    assert can_stream(engine.program)
    found = list(engine.stream(_batches(*[5] * count)))
    assert [result["y"].tolist() for result in found] == [[2 * (k + 1)] * 5 for k in range(count)]
    assert driver.count("cuMemcpyHtoDAsync") == count


def test_sizes_may_change_on_the_way(driver: FakeDriver) -> None:
    engine = _one_segment()
    sizes = [3, 3, 7, 7, 7, 7, 3, 1]
    found = list(engine.stream(_batches(*sizes)))
    assert [result["y"].shape for result in found] == [(size,) for size in sizes]
    assert [result["y"][0] for result in found] == [2 * (k + 1) for k in range(8)]
    assert driver.count("cuGraphLaunch") == 8


def test_pinned_batches_are_copied_from_where_they_lie(driver: FakeDriver) -> None:
    engine = _one_segment()
    batches = [engine.pinned(feeds) for feeds in _batches(4, 4)]
    assert [result["y"][0] for result in engine.stream(batches)] == [2, 4]
    assert driver.count("cuMemcpyHtoDAsync") == 2


def test_large_batches_are_moved_in_parts(driver: FakeDriver) -> None:
    engine = _one_segment()
    batch = {"x": np.arange(3_000_001, dtype=np.float32)}
    (found,) = engine.stream([batch])
    np.testing.assert_array_equal(found["y"], 2 * (batch["x"] + 1))
    assert driver.count("cuGraphLaunch") == 1


def test_errors_come_with_their_batch(driver: FakeDriver) -> None:
    engine = _one_segment(checked=True)
    batches = _batches(2, 2, 2, 2, 2)
    batches[2]["x"][0] = -5
    results = engine.stream(batches)
    assert [next(results)["y"][0] for _ in range(2)] == [2, 4]
    with pytest.raises(OutOfRange):
        next(results)
    with pytest.raises(ShapeMismatch):
        list(engine.stream([{"x": np.zeros((2, 2), np.float32)}]))
    assert engine.run(_batches(2)[0])["y"][0] == 2
    assert driver.status == 0


def test_several_segments_run_one_batch_after_another(driver: FakeDriver) -> None:
    engine = _engine()
    assert not can_stream(engine.program)
    found = list(engine.stream(_batches(2, 2)))
    assert [result["z"][0] for result in found] == [4, 8]
    assert driver.count("cuEventSynchronize") == 0


@pytest.mark.parametrize("count", [1, 2, SLOTS, 3 * SLOTS])
def test_the_schedule_has_no_race(count: int) -> None:
    assert find_races(schedule(count)) == []


@pytest.mark.parametrize(
    ("missing", "kind"),
    [
        (Wait(event="in 0", stream="run"), "read after write of inputs 0"),
        (Wait(event="run 0", stream="out"), "read after write of outputs 0"),
        (Sync(event="out 0"), "read after write of results 0"),
    ],
)
def test_each_event_of_the_schedule_is_needed(missing: Operation, kind: str) -> None:
    races = find_races([one for one in schedule(2 * SLOTS) if one != missing])
    assert kind in " ".join(map(str, races))


def test_work_of_the_host_comes_before_what_it_enqueues_later() -> None:
    host = Work(name="fill", stream=HOST, writes=(whole("inputs 0"),))
    copy, record = copied(0, SLOTS)
    assert find_races([host, copy]) == []
    assert len(find_races([copy, host])) == 1  # written again while it is copied
    assert find_races([copy, record, Sync(event="in 0"), host]) == []
