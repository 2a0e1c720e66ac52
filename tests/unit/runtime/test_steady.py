"""The short way of a run gives what the long way gives, and leaves to it what it must look at."""

from __future__ import annotations

import pickle
import weakref
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
from tilewright.core.shape import Dim
from tilewright.runtime.executor import MAX_PLANS
from tilewright.runtime.program import Bind, DimsArg, Reshape, TensorArg
from tilewright.runtime.steady import SteadyRuns, only_segment
from unit.compiler.models import compiled, normal
from unit.graph.models import model_of, node, tensor_info
from unit.runtime.programs import program, spec, unknown


def _model(rows: int | str = 6) -> onnx.ModelProto:
    nodes = [
        node("Gather", ["x", "k"], ["rows"], axis=0),
        node("MatMul", ["rows", "w"], ["product"]),
        node("Softmax", ["product"], ["y"]),
        node("Neg", ["x"], ["z"]),
    ]
    inputs = [
        tensor_info("x", (rows, 8)),
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


def _steady(engine: tw.Engine) -> SteadyRuns:
    segment = only_segment(engine.program)
    assert segment is not None
    return SteadyRuns(engine._runnable(), engine.program, segment)


@pytest.fixture
def steady(engine: tw.Engine) -> SteadyRuns:
    made = _steady(engine)
    made.learn({})
    return made


def test_results_are_those_of_the_long_way(engine: tw.Engine, steady: SteadyRuns) -> None:
    feeds = _feeds()
    _same(steady(feeds) or {}, engine.run(feeds))


def test_an_engine_takes_it_from_the_second_run_on(
    engine: tw.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds = _feeds()
    first = engine.run(feeds)
    monkeypatch.setattr(engine, "_run", None)
    _same(engine.run(feeds), first)


def test_only_sizes_that_were_run_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = compiled(_model("n"), dims={"n": (6, 64)})
    sizes = (6, 9, 64)
    expected = {n: engine.run(_feeds(x=normal(n, 8))) for n in sizes}
    assert _steady(engine)(_feeds()) is None
    with pytest.raises(ShapeMismatch, match="outside of its declared range"):
        engine.run(_feeds(x=normal(65, 8)))
    monkeypatch.setattr(engine, "_run", None)
    for n in (*sizes, *sizes):
        _same(engine.run(_feeds(x=normal(n, 8))), expected[n])
    with pytest.raises(TypeError, match="not callable"):
        engine.run(_feeds(x=normal(7, 8)))


def test_many_sizes_are_not_all_kept() -> None:
    engine = compiled(_model("n"))
    for n in [*range(6, 8 + MAX_PLANS), 6]:
        feeds = _feeds(x=normal(n, 8))
        for _ in range(2):
            np.testing.assert_array_equal(engine.run(feeds)["z"], -feeds["x"])
    assert engine._steady is not None
    assert len(engine._steady._known) <= MAX_PLANS


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
    engine: tw.Engine, steady: SteadyRuns, change: Callable[[Any], Any]
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


def test_arrays_live_until_kernels_end_though_the_dict_changes(
    engine: tw.Engine, steady: SteadyRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds = _feeds()
    expected = engine.run(feeds)
    read, run = [weakref.ref(array) for array in feeds.values()], steady._run

    def run_of_changed(context: Any) -> None:
        feeds.clear()
        assert all(array() is not None for array in read)
        run(context)

    monkeypatch.setattr(steady, "_run", run_of_changed)
    _same(steady(feeds) or {}, expected)


def test_arrays_of_another_process_take_it(engine: tw.Engine, steady: SteadyRuns) -> None:
    feeds = _feeds()
    sent = pickle.loads(pickle.dumps(feeds))  # noqa: S301  (our own)
    _same(steady(sent) or {}, engine.run(feeds))


def test_keywords_take_it(engine: tw.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    feeds = _feeds()
    first = engine.run(feeds)
    monkeypatch.setattr(engine, "_run", None)
    _same(engine.run(**feeds), first)


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


def test_no_memory_for_a_result_is_told(
    steady: SteadyRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_memory_of_different_sizes_is_shared() -> None:
    engine = compiled(_model("n"))
    blocks = set()
    for n in (40, 6, 40, 6):
        engine.run(_feeds(x=normal(n, 8)))
        plan = engine._runnable().plan(engine.program.steps[-1], {"n": n})  # type: ignore[arg-type]
        context = plan.lease()
        blocks.add(context.base)
        plan.release(context)
        assert context.block is None
    assert len(blocks) == 1


def test_programs_of_other_kinds_stay_with_the_executor(engine: tw.Engine) -> None:
    whole = engine.program
    (segment,) = whole.steps
    x = whole.inputs[0]
    text = spec("x", 2, dtype=STRING)
    flat = Reshape(source=whole.outputs[0].name, target=spec("flat", 48))
    size = Dim.symbol("n")
    of_sizes = Bind(function="positive", args=(DimsArg((size,)),), symbols=(), node="")
    of_data = Bind(function="positive", args=(TensorArg("k"),), symbols=("n",), node="")
    assert only_segment(whole) is segment
    assert only_segment(program(whole.inputs, whole.outputs, of_sizes, segment)) is segment
    others = [
        program((text,), whole.outputs, segment),
        program((unknown("x"),), whole.outputs, segment),
        program((x,), (*whole.outputs, whole.outputs[0]), segment),
        program((x,), (x,), segment),
        program(whole.inputs, whole.outputs, of_data, segment),
        program(whole.inputs, whole.outputs, segment, flat),
        program(whole.inputs, whole.outputs),
    ]
    assert [only_segment(other) for other in others] == [None] * 7
