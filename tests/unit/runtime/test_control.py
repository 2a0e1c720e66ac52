"""If, Loop and Scan: captures, trips, early ends, changing shapes, axes and directions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.core.dtypes import BOOL, INT64
from tilewright.core.errors import OutOfRange, ShapeMismatch
from tilewright.runtime.program import (
    Bind,
    Branch,
    DimsArg,
    Program,
    Refuse,
    Repeat,
    Sweep,
    TensorArg,
    TensorSpec,
)
from unit.runtime.programs import flag, op, program, run, scalar, spec, unknown

X = spec("x", "n")
ONE = {"one": np.float32(1), "two": np.float32(2), "yes": np.array(True)}


# --- If -------------------------------------------------------------------------------------------


def branching(then: Program, otherwise: Program, out: TensorSpec) -> Program:
    step = Branch(node="if1", condition="c", then=then, otherwise=otherwise, outputs=(out,))
    return program([unknown("c", BOOL), X], [out], step)


def plus_or_times() -> Program:
    """Branches that see the values around them."""
    plus, times = spec("plus", "n"), spec("times", "n")
    return branching(
        program([], [plus], op("Add", "x one", plus)),
        program([], [times], op("Mul", "x two", times)),
        spec("y", "n"),
    )


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_branch_is_chosen_by_a_single_element(shape: tuple[int, ...]) -> None:
    x = np.arange(3, dtype=np.float32)
    for choice, expected in ((True, x + 1), (False, x * 2)):
        (y,), _ = run(plus_or_times(), {"c": np.full(shape, choice), "x": x}, ONE)
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("size", [0, 2])
def test_a_condition_of_several_elements_names_the_node(size: int) -> None:
    with pytest.raises(ShapeMismatch, match="node if1: the condition has"):
        run(plus_or_times(), {"c": np.ones(size, bool), "x": np.zeros(2, np.float32)}, ONE)


def test_branches_may_give_different_shapes() -> None:
    long, short = spec("long", "m"), spec("short", "n")
    both = branching(
        program([], [long], op("Concat", "x x", long, axis=0)),
        program([], [short], op("Identity", "x", short)),
        spec("y", "d"),
    )
    x = np.arange(3, dtype=np.float32)
    for choice, length in ((True, 6), (False, 3)):
        (y,), state = run(both, {"c": choice, "x": x})
        assert y.shape == (length,)
        assert state.symbols == {"n": 3, "d": length}


def test_a_branch_with_impossible_sizes_fails_only_when_it_is_taken() -> None:
    y = spec("plus", "n")
    both = branching(
        program([], [y], op("Add", "x one", y)),
        program([], [y], Refuse(node="reshape7", message="12 elements cannot become 5")),
        spec("y", "n"),
    )
    run(both, {"c": True, "x": np.zeros(2, np.float32)}, ONE)
    with pytest.raises(ShapeMismatch, match="node reshape7: 12 elements cannot become 5"):
        run(both, {"c": False, "x": np.zeros(2, np.float32)}, ONE)


def test_a_result_of_another_shape_than_promised_is_refused() -> None:
    """A size of the caller's is never overwritten by what a step gives."""
    wrong = spec("y", "n")
    step = op("Concat", "x x", wrong, axis=0)
    with pytest.raises(ShapeMismatch, match=r"node Concat of y: y: axis 0 \(n\) is 4, expected 2"):
        run(program([X], [wrong], step), {"x": np.zeros(2, np.float32)})


def test_an_error_inside_keeps_the_inner_node() -> None:
    bad = spec("bad", "k")
    gather = op("Gather", "x far", bad, axis=0)
    both = branching(program([], [bad], gather), program([], [bad], gather), spec("y", "k"))
    far = {"far": np.array([9], np.int64)}
    with pytest.raises(OutOfRange, match="node Gather of bad"):
        run(both, {"c": True, "x": np.zeros(2, np.float32)}, far)


# --- Loop -----------------------------------------------------------------------------------------


def looping(
    body: Program,
    outputs: list[TensorSpec],
    *,
    trips: str | None = "m",
    condition: str | None = None,
    carried: tuple[str, ...] = ("x",),
) -> Program:
    step = Repeat(
        node="loop1",
        trips=trips,
        condition=condition,
        carried=carried,
        body=body,
        outputs=tuple(outputs),
    )
    inputs = [X, *([scalar("m")] if trips else []), *([flag("c")] if condition else [])]
    return program(inputs, outputs, step)


def growing(scanned: bool = True) -> Program:
    """Doubles the length of ``v``; stops when it is longer than 10; scans its sum."""
    v, w, total, keep = spec("v", "vn"), spec("w", "wn"), scalar("total", X.dtype), flag("keep")
    steps = (
        op("Concat", "v v", w, axis=0),
        op("ReduceSum", "w", total, keepdims=0),
        op("Size", "w", scalar("size")),
        op("LessOrEqual", "size ten", keep),
    )
    outputs = [keep, w, *([total] if scanned else [])]
    return program([scalar("i"), flag("going"), v], outputs, *steps)


TEN = {"ten": np.array(10, np.int64)}


@pytest.mark.parametrize(("trips", "length"), [(0, 1), (1, 2), (3, 8), (100, 16), (-5, 1)])
def test_shapes_change_and_the_condition_ends_the_loop(trips: int, length: int) -> None:
    what = looping(growing(), [spec("y", "yn"), spec("sums", "trips")])
    (y, sums), state = run(what, {"x": np.ones(1, np.float32), "m": trips}, TEN)
    assert y.shape == (length,)
    np.testing.assert_array_equal(sums, [2.0**k for k in range(1, length.bit_length())])
    assert sums.dtype == np.float32
    assert state.symbols == {"n": 1, "yn": length, "trips": len(sums)}


def test_a_loop_without_a_trip_count_runs_until_its_condition_fails() -> None:
    what = looping(growing(False), [spec("y", "yn")], trips=None, condition="c")
    for going, length in ((True, 16), (False, 1)):
        (y,), _ = run(what, {"x": np.ones(1, np.float32), "c": going}, TEN)
        assert y.shape == (length,)


def test_the_body_is_told_the_iteration_and_that_it_goes_on() -> None:
    i, going, keep = scalar("i"), flag("going"), flag("keep")
    number = scalar("number")
    body = program(
        [i, going], [keep, number, keep], op("Identity", "i", number), op("Not", "no", keep)
    )
    what = looping(body, [spec("y", "t", dtype=INT64), spec("flags", "t", dtype=BOOL)], carried=())
    (numbers, flags), _ = run(what, {"x": np.ones(1, np.float32), "m": 4}, {"no": np.array(False)})
    assert numbers.tolist() == [0, 1, 2, 3]
    assert flags.tolist() == [True] * 4


def test_a_carried_value_may_be_passed_through_and_initial_values_stay() -> None:
    v, swapped = spec("v", "a"), spec("w", "a")
    body = program([scalar("i"), flag("going"), v, swapped], [flag("going"), swapped, v])
    what = looping(body, [spec("y", "n"), spec("z", "n")], carried=("x", "other"))
    x, other = np.zeros(2, np.float32), np.ones(2, np.float32)
    (y, z), _ = run(what, {"x": x, "m": 3}, {"other": other})
    np.testing.assert_array_equal(y, other)
    np.testing.assert_array_equal(z, x)


def test_no_trips_give_scans_of_the_shape_of_a_first_trip() -> None:
    v, doubled = spec("v", "a"), spec("doubled", "b")
    concat = op("Concat", "v v", doubled, axis=0)
    body = program([scalar("i"), flag("going"), v], [flag("going"), v, doubled], concat)
    what = looping(body, [spec("y", "n"), spec("scans", "t", "k")])
    (y, scans), state = run(what, {"x": np.ones(3, np.float32), "m": 0})
    assert scans.shape == (0, 6)
    assert (state.symbols["t"], state.symbols["k"]) == (0, 6)
    assert y.shape == (3,)


def test_no_trips_of_a_body_that_cannot_run_give_empty_scans() -> None:
    v, part = spec("v", "a"), spec("part", 4, "b")
    gather = op("Gather", "v far", part, axis=0)
    body = program([scalar("i"), flag("going"), v], [flag("going"), v, part], gather)
    what = looping(body, [spec("y", "n"), spec("scans", "t", 4, "k")])
    (_, scans), _ = run(
        what, {"x": np.ones(3, np.float32), "m": 0}, {"far": np.array([9], np.int64)}
    )
    assert scans.shape == (0, 4, 0)


def test_scans_of_different_shapes_name_the_loop() -> None:
    v, w = spec("v", "a"), spec("w", "b")
    concat = op("Concat", "v v", w, axis=0)
    body = program([scalar("i"), flag("going"), v], [flag("going"), w, v], concat)
    what = looping(body, [spec("y", "m1"), spec("scans", "t", "k")])
    with pytest.raises(ShapeMismatch, match="node loop1: iterations give v the shapes"):
        run(what, {"x": np.ones(3, np.float32), "m": 2})


@pytest.mark.parametrize("size", [0, 2])
def test_a_condition_of_the_body_has_one_element(size: int) -> None:
    keep = unknown("flags", BOOL)
    body = program([scalar("i"), flag("going"), spec("v", "a")], [keep, spec("v", "a")])
    what = looping(body, [spec("y", "n")])
    with pytest.raises(ShapeMismatch, match="node loop1: the condition has"):
        run(what, {"x": np.ones(1, np.float32), "m": 1}, {"flags": np.ones(size, bool)})


def test_scans_keep_each_iteration_though_the_body_reuses_its_memory() -> None:
    """What a body gives may be the very array that it was given."""
    v = spec("v", "a")
    body = program([scalar("i"), flag("going"), v], [flag("going"), v, v])
    what = looping(body, [spec("y", "n"), spec("scans", "t", "n")])
    x = np.ones(2, np.float32)
    (_, scans), _ = run(what, {"x": x, "m": 2})
    assert not np.may_share_memory(scans, x)


def test_nested_loops_see_the_values_around_them() -> None:
    """sum over i < 3, j < i of i: the inner loop captures the outer counter."""
    total, inner = scalar("total"), scalar("inner")
    added = scalar("added")
    inside = program(
        [scalar("j"), flag("g2"), inner], [flag("g2"), added], op("Add", "inner i", added)
    )
    loop = Repeat(
        node="inner1",
        trips="i",
        condition=None,
        carried=("total",),
        body=inside,
        outputs=(scalar("sum"),),
    )
    body = program([scalar("i"), flag("g1"), total], [flag("g1"), scalar("sum")], loop)
    what = looping(body, [scalar("y")], carried=("zero",))
    (y,), _ = run(what, {"x": np.ones(1, np.float32), "m": 4}, {"zero": np.array(0, np.int64)})
    assert y == 1 * 1 + 2 * 2 + 3 * 3


def test_sizes_set_by_bindings_inside_stay_inside() -> None:
    v, part = spec("v", "n"), spec("part", "found")
    bind = Bind(
        function="nonzero_count", args=(TensorArg("v"),), symbols=("found",), node="nonzero"
    )
    check = Bind(
        function="require_equal",
        args=(DimsArg(part.shape or ()), DimsArg(part.shape or ()), TensorArg("what")),
        symbols=(),
        node="check",
    )
    body = program([scalar("i"), flag("going"), v], [flag("going"), v], bind, check)
    (_,), state = run(
        looping(body, [spec("y", "n")]),
        {"x": np.ones(3, np.float32), "m": 2},
        {"what": np.array("sizes")},
    )
    assert state.symbols == {"n": 3}


# --- Scan -----------------------------------------------------------------------------------------


def scanning(
    input_axes: tuple[int, ...] = (0,),
    input_reversed: tuple[bool, ...] = (False,),
    output_axis: int = 0,
    output_reversed: bool = False,
    names: tuple[str, ...] = ("x",),
) -> Program:
    """A running sum of the first input; its values so far are scanned, twice."""
    state, part = unknown("state"), unknown("part")
    others = [unknown(f"other{k}") for k in range(len(names) - 1)]
    new, twice = unknown("new"), unknown("twice")
    body = program(
        [state, part, *others],
        [new, twice],
        op("Add", "state part", new),
        op("Mul", "new two", twice),
    )
    step = Sweep(
        node="scan1",
        carried=("start",),
        scanned=names,
        body=body,
        input_axes=input_axes,
        input_reversed=input_reversed,
        output_axes=(output_axis,),
        output_reversed=(output_reversed,),
        outputs=(unknown("last"), unknown("all")),
    )
    inputs = [unknown(name) for name in names]
    return program(inputs, [unknown("last"), unknown("all")], step)


START = {"start": np.float32(0), "two": np.float32(2)}


@settings(max_examples=80, deadline=None)
@given(
    shape=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    axis=st.integers(-3, 2),
    out_axis=st.integers(-3, 2),
    back=st.booleans(),
    out_back=st.booleans(),
)
def test_axes_and_directions(
    shape: list[int], axis: int, out_axis: int, back: bool, out_back: bool
) -> None:
    rank = len(shape)
    if not (-rank <= axis < rank and -rank <= out_axis < rank):
        return
    x = np.random.default_rng(0).integers(0, 9, shape).astype(np.float32)
    what = scanning((axis,), (back,), out_axis, out_back)
    (last, stacked), _ = run(what, {"x": x}, START)
    slices = np.moveaxis(x, axis, 0)
    sums = np.cumsum(slices[::-1] if back else slices, axis=0) * 2
    expected = np.moveaxis(sums[::-1] if out_back else sums, 0, out_axis)
    np.testing.assert_array_equal(stacked, expected)
    np.testing.assert_array_equal(last, x.sum(axis))


def test_several_inputs_are_cut_along_their_own_axes() -> None:
    x, y = np.ones((4, 2), np.float32), np.ones((3, 4), np.float32)
    what = scanning((0, 1), (False, True), names=("x", "y"))
    (last, stacked), _ = run(what, {"x": x, "y": y}, START)
    assert last.tolist() == [4, 4]
    assert stacked.shape == (4, 2)
    with pytest.raises(ShapeMismatch, match=r"node scan1: scanned inputs have lengths \[3, 4\]"):
        run(what, {"x": x, "y": y.T}, START)


@pytest.mark.parametrize("axis", [2, -3])
def test_an_axis_that_does_not_exist_is_refused(axis: int) -> None:
    with pytest.raises(ShapeMismatch, match=f"node scan1: axis {axis}"):
        run(scanning((axis,)), {"x": np.ones((2, 2), np.float32)}, START)


@pytest.mark.parametrize(("axis", "out_axis"), [(0, 0), (1, 1), (-1, -1)])
def test_no_slices_give_the_initial_state_and_empty_scans(axis: int, out_axis: int) -> None:
    shape = [3, 3]
    shape[axis] = 0
    what = scanning((axis,), output_axis=out_axis)
    (last, stacked), _ = run(what, {"x": np.ones(shape, np.float32)}, START)
    assert last == 0
    assert list(stacked.shape) == shape


def test_slices_are_copies() -> None:
    """A body must not see its input through memory that the caller owns."""
    x = np.ones((2, 2), np.float32)
    part = unknown("part")
    step = Sweep(
        node="scan1",
        carried=(),
        scanned=("x",),
        body=program([part], [part]),
        input_axes=(0,),
        input_reversed=(False,),
        output_axes=(0,),
        output_reversed=(False,),
        outputs=(unknown("all"),),
    )
    (found,), _ = run(program([unknown("x")], [unknown("all")], step), {"x": x})
    assert not np.may_share_memory(found, x)
    np.testing.assert_array_equal(found, x)


def test_results_that_nobody_wants_are_dropped() -> None:
    v: Any = spec("v", "a")
    body = program([scalar("i"), flag("going"), v], [flag("going"), v, v])
    step = Repeat(
        node="loop1", trips="m", condition=None, carried=("x",), body=body, outputs=(None, None)
    )
    what = program([X, scalar("m")], [X], step)
    (x,), state = run(what, {"x": np.ones(2, np.float32), "m": 2})
    assert x.shape == (2,)
    assert state.symbols == {"n": 2}
