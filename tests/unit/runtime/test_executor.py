"""The executor: values, sizes, plans of a bounded number, and errors with their node."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.core.dtypes import FLOAT32, INT64, STRING
from tilewright.core.errors import OutOfRange, ShapeMismatch
from tilewright.core.shape import Dim
from tilewright.runtime import executor
from tilewright.runtime.cpu.native import NativeCode
from tilewright.runtime.executor import Executor, Run
from tilewright.runtime.program import (
    Bind,
    DimsArg,
    LiteralArg,
    Program,
    Reshape,
    Segment,
    TensorArg,
    TensorSpec,
)
from tilewright.runtime.segment_layout import SegmentLayout
from unit.compiler.models import compiled, normal
from unit.graph.models import model_of, node, tensor_info
from unit.runtime.programs import op, program, run, scalar, spec, unknown

X = spec("x", "n")


# --- values and sizes -----------------------------------------------------------------------------


def test_a_computed_value_comes_before_a_constant_of_its_name() -> None:
    host = Executor({"a": np.zeros(1), "b": np.ones(1)}, NativeCode({}, {}, 1))
    state = Run({"a": np.full(1, 7.0), "b": None})
    assert host.value(state, "a") == 7
    assert host.value(state, "b") == 1
    assert host.value(state, "c") is None


def test_results_take_the_promised_type() -> None:
    """The reference may compute in a wider one."""
    host = Executor({}, NativeCode({}, {}, 1))
    state = Run({})
    host.settle(spec("y", "n"), np.zeros(3, np.float64), state)
    assert state.values["y"].dtype == np.float32
    host.settle(spec("s", "k", dtype=STRING), np.array(["a"], object), state)
    host.settle(scalar("z"), 5, state)
    assert state.values["z"].shape == ()
    assert state.symbols == {"n": 3, "k": 1}


def test_sizes_are_read_off_the_first_result_and_checked_on_the_next() -> None:
    late = spec("late", "k")
    steps = (
        op("Unique", "x", late),
        op("Identity", "late", spec("again", "k")),
        op("Concat", "late late", spec("twice", Dim.symbol("k") * 2), axis=0),
    )
    outputs = [late, spec("again", "k"), unknown("twice")]
    _, state = run(program([X], outputs, *steps), {"x": np.array([1, 1, 2], np.float32)})
    assert state.symbols == {"n": 3, "k": 2}
    wrong = op("Concat", "late late", spec("twice", Dim.symbol("k") + 1), axis=0)
    with pytest.raises(ShapeMismatch, match=r"node Concat of twice: .*\(k\+1\) is 4, expected 3"):
        run(program([X], [], steps[0], wrong), {"x": np.array([1, 1, 2], np.float32)})


def test_bindings_set_sizes_from_data_sizes_and_literals() -> None:
    target = Reshape(source="x", target=spec("y", "rows", "columns"))
    bind = Bind(
        function="reshape",
        args=(TensorArg("shape"), DimsArg((Dim.symbol("n"),)), LiteralArg(False)),
        symbols=("rows", "columns"),
        node="reshape1",
    )
    what = program([X, spec("shape", 2, dtype=INT64)], [unknown("y")], bind, target)
    feeds: dict[str, Any] = {"x": np.arange(6, dtype=np.float32), "shape": np.array([-1, 2])}
    (y,), state = run(what, feeds)
    assert y.shape == (3, 2)
    assert (state.symbols["rows"], state.symbols["columns"]) == (3, 2)
    with pytest.raises(ShapeMismatch, match="node reshape1: reshape"):
        run(what, {**feeds, "shape": np.array([-1, 4])})
    short = replace(bind, symbols=("rows",))
    with pytest.raises(ShapeMismatch, match="node reshape1: expected 1 sizes, the data gives 2"):
        run(replace(what, steps=(short,)), feeds)


def test_an_operator_that_fails_names_its_node() -> None:
    gather, far = op("Gather", "x far", unknown("y"), axis=0), {"far": np.array([5])}
    with pytest.raises(OutOfRange, match="node Gather of y"):
        run(program([X], [unknown("y")], gather), {"x": np.zeros(2, np.float32)}, far)


def test_optional_inputs_are_absent() -> None:
    clip = op("Clip", ("x", None, "high"), spec("y", "n"))
    (y,), _ = run(
        program([X], [spec("y", "n")], clip),
        {"x": np.array([-9, 9], np.float32)},
        {"high": np.float32(1)},
    )
    assert y.tolist() == [-9, 1]


# --- plans ----------------------------------------------------------------------------------------


def _segment(name: str = "y") -> Segment:
    return Segment(calls=(), inputs=(X,), outputs=(spec(name, "n"),), internal=())


def test_plans_are_kept_by_size_and_the_oldest_are_dropped() -> None:
    host = Executor({}, NativeCode({}, {}, 1))
    segment = _segment()
    first = host.plan(segment, {"n": 0, "other": 1})
    assert host.plan(segment, {"n": 0, "other": 2}) is first
    for size in range(1, executor.MAX_PLANS):
        host.plan(segment, {"n": size})
    assert host.plan(segment, {"n": 0}) is first
    for size in range(100, 100 + executor.MAX_PLANS - 1):
        host.plan(segment, {"n": size})
    assert host.plan(segment, {"n": 0}) is first
    host.plan(segment, {"n": 1})
    assert len(host._plans) == executor.MAX_PLANS


def test_a_segment_is_laid_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Segment] = []

    class Counted(SegmentLayout):
        def __init__(self, segment: Segment, *rest: Any) -> None:
            made.append(segment)
            super().__init__(segment, *rest)

    monkeypatch.setattr(executor, "SegmentLayout", Counted)
    host = Executor({}, NativeCode({}, {}, 1))
    segment = _segment()
    for size in range(9):
        host.plan(segment, {"n": size})
    assert made == [segment]


def test_runs_of_other_sizes_share_memory_that_ends_with_the_executor() -> None:
    host = Executor({}, NativeCode({}, {}, 1))
    segment = _segment()
    plans = [host.plan(segment, {"n": size}) for size in (100, 50)]
    first = plans[0].lease()
    assert first.block is not None
    arena = weakref.ref(first.block.memory)
    plans[0].release(first)
    other = plans[1].lease()
    assert other.base == first.base
    beside = plans[0].lease()
    assert beside is first
    assert beside.base != other.base  # two runs at once
    plans[0].release(beside)
    plans[1].release(other)
    del first, other, beside, plans, host
    gc.collect()
    assert arena() is None


def test_a_segment_made_later_never_gets_the_plan_of_one_that_is_gone() -> None:
    """Plans are known by the identity of their segment, which Python uses again."""
    host = Executor({}, NativeCode({}, {}, 1))
    for number in range(50):
        segment = _segment(f"y{number}")
        assert host.plan(segment, {"n": 1}).segment is segment
        del segment


# --- native ---------------------------------------------------------------------------------------


def _relu() -> tw.Engine:
    model = model_of(
        [node("Relu", ["x"], ["y"], name="relu")], inputs=[tensor_info("x", ("n", 3))], opset=21
    )
    return compiled(model)


@pytest.mark.parametrize(("high", "is_there"), [(1024, True), (None, False)])
def test_the_arena_of_the_largest_declared_sizes_is_there_after_the_first_run(
    high: int | None, is_there: bool
) -> None:
    model = model_of(
        [
            node("MatMul", ["x", "w"], ["h"], name="first"),
            node("Softmax", ["h"], ["s"], name="softmax"),
            node("MatMul", ["s", "w"], ["y"], name="second"),
        ],
        inputs=[tensor_info("x", ("n", 1024))],
        weights={"w": normal(1024, 1024)},
        opset=21,
    )
    engine = compiled(model, dims={"n": (1, high)})
    needed = engine.arena_bytes({"n": 1024})
    assert needed is not None
    assert needed > 2 << 20
    engine.run(x=normal(1, 1024))
    executor = engine._executor
    assert executor is not None
    assert (executor._arenas.take(64, 0).num_bytes >= needed) is is_there


def test_results_of_the_largest_declared_sizes_are_prepared_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared: list[list[int]] = []
    monkeypatch.setattr("tilewright.runtime.executor.prepare_results", prepared.append)
    model = model_of([node("Relu", ["x"], ["y"])], inputs=[tensor_info("x", ("n", 3))], opset=21)
    engine = compiled(model, dims={"n": (0, 50)})
    for n in (2, 1):
        engine.run(x=normal(n, 3))
    assert prepared == [[50 * 3 * 4]]


@pytest.mark.parametrize("size", [0, 1, 5])
def test_empty_inputs_run(size: int) -> None:
    x = normal(size, 3)
    np.testing.assert_array_equal(_relu()(x=x)["y"], np.maximum(x, 0))


def test_a_window_larger_than_its_input_is_refused() -> None:
    model = model_of(
        [node("Conv", ["x", "w"], ["y"], name="conv")],
        inputs=[tensor_info("x", (1, 1, "h", 8))],
        weights={"w": normal(1, 1, 3, 3)},
        opset=21,
    )
    engine = compiled(model)
    assert engine(x=normal(1, 1, 3, 8))["y"].shape == (1, 1, 1, 6)
    with pytest.raises(ShapeMismatch, match=r"h-2 = -1 with h = 1"):
        engine(x=normal(1, 1, 1, 8))


def test_constants_need_not_be_in_rows() -> None:
    host = Executor({"w": np.asfortranarray(normal(2, 3))}, NativeCode({}, {}, 1))
    assert host.constants["w"].flags.c_contiguous


def test_scalars_that_are_no_arrays_become_some() -> None:
    host = Executor({}, NativeCode({}, {}, 1))
    state = Run({"x": 3.0})
    what = TensorSpec(name="x", dtype=FLOAT32, shape=())
    assert host._input(state, what).dtype == np.float32
    empty = Program(inputs=(), outputs=(), steps=())
    host.execute(empty, state)
