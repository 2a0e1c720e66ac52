"""Generated code against the interpreter: every kind of kernel, schedule, size and processor."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.codegen.cpu.generate import generate
from tilewright.codegen.cpu.objects import compile_module
from tilewright.codegen.cpu.tactics import TACTICS
from tilewright.codegen.cpu.target import CpuTarget, host_target, named_target
from tilewright.core.errors import OutOfRange
from tilewright.core.shape import Dim
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    DimValue,
    Expr,
    Kernel,
    Reduce,
    Stage,
    Store,
    dim_value,
    reduce_axes,
    transform,
)
from tilewright.kernel.nest import Nest, prepare
from tilewright.kernel.schedule import Schedule
from tilewright.kernel.verify import verify
from tilewright.runtime.cpu.host import missing_features
from tilewright.runtime.cpu.loader import load_object
from unit.codegen.cpu.kernels import KERNELS, Array, buffer, feeds_for, pure
from unit.codegen.cpu.native import call_stages, run_native

Feeds = Mapping[str, Array]
_TIMES_GROWTH = 8.0  # two results, each rounded at more places than their feeds are
SIZES = {
    "odd": {"b": 2, "m": 7, "n": 37, "k": 19},
    "vectors": {"b": 1, "m": 16, "n": 64, "k": 32},
    "ones": {"b": 1, "m": 1, "n": 1, "k": 1},
    "empty": {"b": 0, "m": 3, "n": 0, "k": 2},
    "no rows": {"b": 2, "m": 0, "n": 5, "k": 4},
}


def close(found: Mapping[str, Array], expected: Mapping[str, Array], slack: float = 0.0) -> None:
    """Equal, up to the order of summation in floats, and ``slack`` beyond that."""
    assert found.keys() == expected.keys()
    for name, want in expected.items():
        got = found[name]
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if want.dtype.kind in "fV":
            loose = want.dtype.itemsize == 2
            np.testing.assert_allclose(
                got.astype(np.float64),
                want.astype(np.float64),
                rtol=2e-3 if loose else 2e-5,
                atol=(2e-3 if loose else 2e-5) + slack,
            )
        else:
            np.testing.assert_array_equal(got, want)


def growth_of_rounding(kernel: Kernel, feeds: Feeds, sizes: Mapping[str, int]) -> float:
    """How far steps, each of the result before it, carry roundings of float32 apart.

    A step of random weights doubles a difference or more, so that twenty turn a rounding into
    1e-3 in any order of summation. Rounded feeds round each step, as steps read their own part.
    """
    if kernel.steps is None:
        return 0.0
    rng = np.random.default_rng(0)
    exact = interpret(kernel, feeds, sizes, wide=True)
    most = 0.0
    for _ in range(4):
        moved = {
            name: array.astype(np.float64) * (1 + rng.choice([-1.0, 1.0], array.shape) * 2.0**-23)
            for name, array in feeds.items()
        }
        found = interpret(kernel, moved, sizes, wide=True)
        most = max([most, *(np.abs(found[k] - exact[k]).max(initial=0.0) for k in exact)])
    return most


def test_roundings_grow_where_steps_follow_each_other_only() -> None:
    """As far as in the interpreter itself when it rounds to float32."""
    sizes = {"m": 18, "n": 1, "k": 21}
    for name in ("recurrence", "matmul"):
        kernel = KERNELS[name]()
        feeds = feeds_for(kernel, sizes)
        growth = growth_of_rounding(kernel, feeds, sizes)
        expected = interpret(kernel, feeds, sizes, wide=True)
        close(interpret(kernel, feeds, sizes), as_float32(expected), _TIMES_GROWTH * growth)
        close(run_native(kernel, feeds, sizes), as_float32(expected), _TIMES_GROWTH * growth)
        assert (growth > 1e-4) == (name == "recurrence")


def as_float32(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def fixed(kernel: Kernel, sizes: Mapping[str, int]) -> Kernel:
    """The kernel for these sizes only."""
    dims = {name: Dim.of(size) for name, size in sizes.items()}

    def buffers(some: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        return tuple(
            replace(own, shape=tuple(dim.substitute(dims) for dim in own.shape)) for own in some
        )

    def axes(some: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(replace(axis, extent=axis.extent.substitute(dims)) for axis in some)

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, DimValue):
            return dim_value(node.dim.substitute(dims))
        if isinstance(node, Reduce):
            return reduce_axes(node.combiner, axes(node.axes), node.body)
        return None

    def stores(some: tuple[Store, ...]) -> tuple[Store, ...]:
        return tuple(store.mapped(lambda expr: transform(expr, rule)) for store in some)

    return replace(
        kernel,
        inputs=buffers(kernel.inputs),
        outputs=buffers(kernel.outputs),
        temporaries=buffers(kernel.temporaries),
        steps=None if kernel.steps is None else axes((kernel.steps,))[0],
        stages=tuple(
            Stage(
                axes(stage.axes),
                tuple(s.mapped(lambda e: transform(e, rule)) for s in stage.stores),
            )
            for stage in kernel.stages
        ),
    )


def can_run(target: CpuTarget) -> bool:
    """Whether this machine has the target's instructions."""
    return not missing_features(target.triple, target.required_features)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_legal(name: str) -> None:
    verify(KERNELS[name]())


@pytest.mark.parametrize("name", KERNELS)
def test_code_agrees_with_the_interpreter(name: str) -> None:
    """One object for all sizes, in one piece and in three."""
    kernel = KERNELS[name]()
    made = generate(kernel, host_target())
    code = compile_module(made.text, host_target())
    for sizes in SIZES.values():
        feeds = feeds_for(kernel, sizes)
        expected = interpret(kernel, feeds, sizes)
        for parts in (1, 3):
            close(call_stages(kernel, made, code, feeds, sizes, parts), expected)


@pytest.mark.parametrize("name", KERNELS)
def test_sizes_known_while_compiling_give_the_same(name: str) -> None:
    sizes = SIZES["odd"]
    kernel = fixed(KERNELS[name](), sizes)
    feeds = feeds_for(kernel, {})
    close(run_native(kernel, feeds), interpret(kernel, feeds, {}))


@pytest.mark.parametrize("name", KERNELS)
def test_avx2_agrees_with_the_interpreter(name: str) -> None:
    target = named_target("haswell")
    if not can_run(target):
        pytest.skip("this machine has no AVX2")
    kernel, sizes = KERNELS[name](), SIZES["odd"]
    feeds = feeds_for(kernel, sizes)
    expected = interpret(kernel, feeds, sizes)
    close(run_native(kernel, feeds, sizes, target=target), expected)


@pytest.mark.parametrize("processor", ["neoverse-v1", "x86-64-v2", "znver4"])
@pytest.mark.parametrize("name", [name for name in KERNELS if name != "deep_sum"])
def test_other_processors_get_code(name: str, processor: str) -> None:
    target = named_target(processor)
    made = generate(KERNELS[name](), target)
    assert compile_module(made.text, target).startswith(b"\x7fELF")


def test_bytes_are_multiplied_four_at_a_time() -> None:
    """By one instruction, and not one by one, whatever else could add up the sum."""
    target = named_target("znver4")
    kernel = fixed(KERNELS["dot_bytes"](), SIZES["odd"])
    if target.lanes(32) != host_target().lanes(32):
        pytest.skip("the kernel has the lanes of this machine")
    assert "vpdpbusd.512" in generate(kernel, target).text


def test_the_kernels_use_every_tactic() -> None:
    used = {
        stage.schedule.tactic
        for function in KERNELS.values()
        for stage in generate(function(), host_target()).stages
    }
    assert used == {tactic.__name__ for tactic in TACTICS}


# --- any schedule ---------------------------------------------------------------------------------


@st.composite
def schedules(draw: st.DrawFn, nest: Nest) -> Schedule:
    """Any schedule that is legal for a nest, sensible or not."""
    wide = st.sampled_from([1, 2, 4, 8, 16])
    if any(axis.ordered for axis in nest.axes):
        return Schedule(tactic="any", reduce_lanes=draw(wide))
    names = [axis.name for axis in nest.axes]
    vector = draw(st.sampled_from([None, *names]))
    chosen = draw(st.lists(st.sampled_from(names), unique=True, max_size=3)) if names else []
    if vector is not None and vector not in chosen:
        chosen.append(vector)
    unroll = {name: draw(st.integers(1, 4)) for name in chosen}
    rows = [name for name in chosen if name != vector]
    return Schedule(
        tactic="any",
        lanes=draw(st.sampled_from([2, 4, 8, 16])) if vector else 1,
        vector=vector,
        unroll=unroll,
        outer=tuple(draw(st.lists(st.sampled_from(rows), unique=True)) if rows else ()),
        chunk=draw(st.integers(0, 3)) if vector else 0,
        reduce_lanes=draw(wide),
    )


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_schedule_never_changes_what_is_computed(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([name for name in KERNELS if name != "deep_sum"]))
    kernel = KERNELS[name]()
    sizes = {symbol: data.draw(st.integers(0, 21), label=symbol) for symbol in "bmn"}
    sizes["k"] = data.draw(st.integers(1, 21), label="k")
    if data.draw(st.booleans(), label="sizes known while compiling"):
        kernel = fixed(kernel, sizes)
    chosen = [data.draw(schedules(prepare(kernel, stage))) for stage in kernel.stages]
    feeds = feeds_for(kernel, sizes)
    found = run_native(kernel, feeds, sizes, schedules=chosen, parts=data.draw(st.integers(1, 3)))
    slack = _TIMES_GROWTH * growth_of_rounding(kernel, feeds, sizes)
    close(found, interpret(kernel, feeds, sizes), slack)


def test_every_number_of_rows_of_an_unknown_extent_is_computed() -> None:
    """Also those whose last few rows begin among the ones before."""
    kernel = KERNELS["matmul"]()
    rows = Schedule(tactic="any", lanes=8, vector="i1", unroll={"i1": 1, "i0": 9}, reduce_lanes=16)
    made = generate(kernel, host_target(), [rows])
    code = compile_module(made.text, host_target())
    for m in range(1, 21):
        sizes = {"m": m, "n": 11, "k": 3}
        feeds = feeds_for(kernel, sizes)
        found = call_stages(kernel, made, code, feeds, sizes, parts=2)
        close(found, interpret(kernel, feeds, sizes))


def test_no_iterations_of_unknown_extents_divide_by_no_extent() -> None:
    kernel = KERNELS["convolution"]()
    made = generate(kernel, host_target())
    loaded = load_object(compile_module(made.text, host_target()), (made.calls[0].symbol,))
    stage = loaded.function(
        made.calls[0].symbol, None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
    )
    table = np.zeros(64, dtype=np.int64)
    stage(table.ctypes.data, 0, 0)
    assert not table.any()


def test_sums_over_unknown_extents_divide_before_their_loops_only() -> None:
    text = generate(KERNELS["convolution"](), host_target()).text
    ahead, loop = text.split("\nloop", 1)
    assert "urem" in ahead
    assert "urem" not in loop


# --- what is reported -----------------------------------------------------------------------------


def test_a_wrong_index_is_reported_from_any_lane() -> None:
    kernel, sizes = KERNELS["gather"](), {"m": 21, "n": 3, "k": 5}
    feeds = feeds_for(kernel, sizes)
    for position in (0, 7, 20):
        for wrong in (5, -6, 2**40):
            ids = feeds["ids"].copy()
            ids[position] = wrong
            with pytest.raises(OutOfRange):
                run_native(kernel, {**feeds, "ids": ids}, sizes)
    run_native(kernel, {**feeds, "ids": np.full(21, -5)}, sizes)


def test_nothing_is_read_before_its_guard() -> None:
    """Indices far outside, under guards that never hold, with every schedule of the tactics."""
    kernel, sizes = KERNELS["guarded_scatter"](), {"m": 3, "n": 20, "k": 9}
    feeds = feeds_for(kernel, sizes)
    feeds["ids"] = np.full(9, 2**40)
    expected = interpret(kernel, feeds, sizes)
    for stage_schedules in _every_tactic(kernel):
        close(run_native(kernel, feeds, sizes, schedules=stage_schedules), expected)


def _every_tactic(kernel: Kernel) -> Sequence[list[Schedule]]:
    found = []
    for tactic in TACTICS:
        made = [tactic(prepare(kernel, stage), host_target()) for stage in kernel.stages]
        chosen = [schedule for schedule in made if isinstance(schedule, Schedule)]
        if len(chosen) == len(made):
            found.append(chosen)
    return found


def test_iterations_and_costs_are_formulas_of_the_sizes() -> None:
    (stage,) = generate(KERNELS["matmul"](), host_target()).stages
    sizes = {"m": 64, "n": 128, "k": 32}
    assert stage.cost.evaluate(sizes) >= 2 * 64 * 128 * 32
    assert 1 <= stage.iterations.evaluate(sizes) <= 64 * 128
    assert stage.iterations.evaluate({**sizes, "m": 0}) == 0


def test_accesses_cost_more_than_operations_where_nothing_is_reused() -> None:
    x = buffer("x", 64)
    (stage,) = generate(pure(buffer("out", 64), (x,), lambda i: x[i] + 1.0), host_target()).stages
    assert stage.cost.const > 2 * 64


def test_code_is_the_same_each_time() -> None:
    for name in ("matmul", "convolution", "softmax"):
        first, second = (generate(KERNELS[name](), host_target()).text for _ in range(2))
        assert first == second
