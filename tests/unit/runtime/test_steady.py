"""The short way of a run gives what the long way gives, and leaves to it what it must look at."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import tilewright as tw
from tilewright.core.dtypes import STRING
from tilewright.core.errors import OutOfMemory, OutOfRange, ShapeMismatch
from tilewright.runtime.program import Program, Reshape
from tilewright.runtime.steady import SteadyRun, fixed_segment
from unit.compiler.models import compiled, normal
from unit.graph.models import model_of, node, tensor_info
from unit.runtime.programs import program, spec


def _model() -> onnx.ModelProto:
    nodes = [
        node("Gather", ["x", "k"], ["rows"], axis=0),
        node("MatMul", ["rows", "w"], ["product"]),
        node("Softmax", ["product"], ["y"]),
        node("Neg", ["x"], ["z"]),
    ]
    inputs = [
        tensor_info("x", (6, 8)),
        tensor_info("k", (3,), TensorProto.INT64),
        tensor_info("unread"),
    ]
    return model_of(nodes, inputs=inputs, outputs=("z", "y"), weights={"w": normal(8, 5)})


def _feeds(**changes: Any) -> dict[str, Any]:
    rows = np.array([0, 5, 2], np.int64)
    return {"x": normal(6, 8), "k": rows, "unread": normal(2), **changes}


def _same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


@pytest.fixture
def engine() -> tw.Engine:
    return compiled(_model())


@pytest.fixture
def steady(engine: tw.Engine) -> SteadyRun:
    segment = fixed_segment(engine.program)
    assert segment is not None
    return SteadyRun(engine._runnable(), engine.program, segment)


def test_results_are_those_of_the_long_way(engine: tw.Engine, steady: SteadyRun) -> None:
    feeds = _feeds()
    _same(steady(feeds) or {}, engine.run(feeds))


def test_an_engine_takes_it_from_the_second_run_on(
    engine: tw.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds = _feeds()
    first = engine.run(feeds)
    monkeypatch.setattr(engine, "_run", None)
    _same(engine.run(feeds), first)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.astype(np.float64).astype(x.dtype.newbyteorder()),
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        lambda x: np.frombuffer(b" " + x.tobytes(), x.dtype, offset=1, count=48).reshape(6, 8),
        lambda x: x.view(np.ndarray).tolist(),
        lambda x: np.ma.masked_array(x),
        lambda x: x[:, :7],
        lambda x: x.astype(np.float64),
    ],
    ids="swapped columns strided misaligned list subclass shape dtype".split(),
)
def test_other_feeds_are_left_to_the_long_way(
    engine: tw.Engine, steady: SteadyRun, change: Callable[[Any], Any]
) -> None:
    feeds = _feeds()
    expected = engine.run(feeds)
    given = {**feeds, "x": change(feeds["x"])}
    assert steady(given) is None
    try:
        found = engine.run(given)
    except ShapeMismatch:
        return
    _same(found, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"more": normal(1)}, "unknown more"), ({"unread": normal(3)}, "axis 0 is 3, expected 2")],
)
def test_wrong_feeds_are_refused_as_before(
    engine: tw.Engine, changes: dict[str, Any], message: str
) -> None:
    engine.run(_feeds())
    with pytest.raises(ShapeMismatch, match=message):
        engine.run(_feeds(**changes))


def test_feeds_that_cannot_be_written_to_are_read(engine: tw.Engine) -> None:
    feeds = _feeds()
    expected = engine.run(feeds)
    for array in feeds.values():
        array.flags.writeable = False
    _same(engine.run(feeds), expected)


def test_results_are_never_overwritten(engine: tw.Engine) -> None:
    engine.run(_feeds())
    feeds = [_feeds(x=normal(6, 8, seed=seed)) for seed in range(5)]
    found = [engine.run(one) for one in feeds]
    for one, results in zip(feeds, found, strict=True):
        np.testing.assert_array_equal(results["z"], -one["x"])
        assert all(not np.shares_memory(results["z"], other) for other in one.values())
        assert results["y"].ctypes.data % 64 == 0


def test_threads_do_not_disturb_each_other(engine: tw.Engine) -> None:
    engine.run(_feeds())
    feeds = [_feeds(x=normal(6, 8, seed=seed)) for seed in range(4)]
    expected = [engine.run(one) for one in feeds]

    def many(number: int) -> None:
        for _ in range(200):
            _same(engine.run(feeds[number]), expected[number])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(many, range(4)))


def test_an_index_out_of_range_is_told_each_time_and_forgotten(engine: tw.Engine) -> None:
    feeds = _feeds()
    expected = engine.run(feeds)
    for _ in range(2):
        with pytest.raises(OutOfRange, match="an index lies outside"):
            engine.run({**feeds, "k": np.array([0, 6, 2], np.int64)})
        _same(engine.run(feeds), expected)


def test_no_memory_for_a_result_is_told(steady: SteadyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: Any) -> Any:
        raise MemoryError("none")

    feeds = _feeds()
    monkeypatch.setattr("tilewright.runtime.steady.np.empty", no_memory)
    with pytest.raises(OutOfMemory, match="the value z does not fit: none"):
        steady(feeds)


def test_memory_is_kept_between_runs_and_not_taken_twice(engine: tw.Engine) -> None:
    feeds = _feeds()
    engine.run(feeds)
    plan = engine._runnable().plan(engine.program.steps[0], {})  # type: ignore[arg-type]
    before = plan.lease()
    plan.release(before)
    engine.run({**feeds, "x": np.asfortranarray(feeds["x"])})  # the long way
    engine.run(feeds)
    assert plan.lease() is before
    assert before.block is not None


def test_programs_of_other_kinds_stay_with_the_executor(engine: tw.Engine) -> None:
    whole = engine.program
    (segment,) = whole.steps
    x = whole.inputs[0]
    text = spec("x", 2, dtype=STRING)
    renamed = Reshape(source=whole.outputs[0].name, target=spec("flat", 48))
    assert fixed_segment(whole) is segment
    others: list[Program] = [
        program((spec("x", "n", 8),), whole.outputs, segment),
        program((text,), whole.outputs, segment),
        program((x,), (*whole.outputs, whole.outputs[0]), segment),
        program((x,), (x,), segment),
        program(whole.inputs, whole.outputs, segment, renamed),
        program(whole.inputs, whole.outputs),
    ]
    assert [fixed_segment(other) for other in others] == [None] * 6
