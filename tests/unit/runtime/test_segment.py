"""Plans: argument tables, rows, memory, and what sizes cannot be."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from tilewright.core.dtypes import FLOAT32
from tilewright.core.errors import OutOfMemory, ShapeMismatch
from tilewright.core.shape import Dim
from tilewright.runtime.program import (
    Check,
    Extent,
    KernelCall,
    Segment,
    StageCall,
    TensorSpec,
)
from tilewright.runtime.segment import SegmentPlan
from tilewright.runtime.segment_layout import (
    CALL,
    END,
    HEADER_SLOTS,
    LOOP,
    MIN_PARALLEL_COST,
    SegmentLayout,
    num_rows,
    segment_symbols,
)

N, T = Dim.symbol("n"), Dim.symbol("t")
ADDRESS = {"first": 1000, "second": 2000}


def spec(name: str, *shape: Dim | int) -> TensorSpec:
    return TensorSpec(name=name, dtype=FLOAT32, shape=tuple(map(Dim.of, shape)))


def call(
    *buffers: str, dims: tuple[Dim, ...] = (), steps: Dim | None = None, cost: Dim = N
) -> KernelCall:
    names = ("first",) if steps is None else ("first", "second")
    stages = tuple(StageCall(symbol=name, iterations=N, cost=cost) for name in names)
    return KernelCall(
        kernel="k",
        name="kernel",
        sources=("node",),
        buffers=buffers,
        dims=dims,
        stages=stages,
        steps=steps,
    )


SEGMENT = Segment(
    calls=(call("x", "w", "a", dims=(N,)), call("a2", "b", steps=T), call("b", "y", dims=(N * 2,))),
    inputs=(spec("x", N), spec("w", 4)),
    outputs=(spec("y", N, 2),),
    internal=(spec("a", N), spec("b", N * 3)),
    aliases={"a2": "a1", "a1": "a"},
)


def plan(
    segment: Segment = SEGMENT,
    sizes: Mapping[str, int] = {"n": 5, "t": 3},
    **constants: np.ndarray,
) -> SegmentPlan:
    return SegmentPlan(SegmentLayout(segment, lambda _, symbol: ADDRESS[symbol], constants), sizes)


def test_symbols_are_those_of_every_formula() -> None:
    assert segment_symbols(SEGMENT) == ("n", "t")
    costly = replace(SEGMENT, calls=(call("x", "y", cost=Dim.symbol("c")),))
    assert segment_symbols(costly) == ("c", "n")


def test_the_table_holds_addresses_numbers_and_sizes() -> None:
    w = np.zeros(4, np.float32)
    made = plan(w=w)
    assert [own.name for own in made.inputs] == ["x"]
    context = made.lease()
    x, y = np.zeros(5, np.float32), np.zeros((5, 2), np.float32)
    made.bind(context, [array.ctypes.data for array in (x, y)])
    arena, status = context.base, context.status.ctypes.data
    a, b = (arena + made.offsets[name] for name in "ab")
    expected = [status, 0, 0, x.ctypes.data, w.ctypes.data, a, 5]
    expected += [status, 1, 0, a, b, status, 2, 0, b, y.ctypes.data, 10]
    assert context.table.tolist() == expected
    assert made.output_shapes == [(5, 2)]
    assert arena % 64 == 0
    assert made.arena_bytes == 128


def test_rows_call_stages_and_repeat_steps() -> None:
    context = plan().lease()
    rows = context.rows.tolist()
    base = context.table.ctypes.data
    first = base
    second = base + 8 * (HEADER_SLOTS + 4)
    third = second + 8 * (HEADER_SLOTS + 2)
    assert [row[0] for row in rows] == [CALL, LOOP, CALL, CALL, END, CALL]
    assert [row[2] for row in rows] == [first, second, second, second, second, third]
    assert [row[1] for row in rows] == [1000, 5, 1000, 2000, 2, 1000]
    assert rows[1][5:7] == rows[4][5:7] == [second + 16, 3]
    assert [num_rows(one) for one in SEGMENT.calls] == [1, 4, 1]
    assert sum(map(num_rows, SEGMENT.calls)) == len(rows)


@pytest.mark.parametrize(
    ("iterations", "cost", "grain"),
    [
        (10, 1, 10),
        (10, MIN_PARALLEL_COST, 10),
        (10, 2 * MIN_PARALLEL_COST, 5),
        (10, 10 * MIN_PARALLEL_COST, 1),
        (10, 10**15, 1),
        (10, 10**30, 1),  # of a side that is not taken, perhaps
        (10**17, 1, 10**17),
        (7, 2 * MIN_PARALLEL_COST, 4),
        (1, 10**15, 1),
        (0, 0, 0),
    ],
)
def test_stages_are_split_where_the_parts_are_worth_it(
    iterations: int, cost: int, grain: int
) -> None:
    stage = call("x", "y", cost=Dim.of(cost))
    segment = replace(SEGMENT, calls=(stage,), internal=(), aliases={})
    row = plan(segment, {"n": iterations}).lease().rows[0]
    assert row[3:5].tolist() == [iterations, grain]


@pytest.mark.parametrize(("cost", "grain"), [(10 * MIN_PARALLEL_COST, 1), (100, 10)])
def test_later_stages_are_shared_as_the_first_one_is(cost: int, grain: int) -> None:
    stages = tuple(
        StageCall(symbol=symbol, iterations=N, cost=Dim.of(own))
        for symbol, own in (("first", cost), ("second", 10))
    )
    segment = replace(
        SEGMENT, calls=(replace(call("x", "y"), stages=stages),), internal=(), aliases={}
    )
    rows = plan(segment, {"n": 10}).lease().rows
    assert rows[1][3:5].tolist() == [10, grain]


def test_a_plan_looks_into_no_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layout knows what to compute; what is left for new sizes is arithmetic on numbers."""
    check = Check(test=Extent(node="node", value="a", dim=N - 2))
    layout = SegmentLayout(replace(SEGMENT, checks=(check,)), lambda _, symbol: ADDRESS[symbol])
    looks: list[Dim] = []
    monkeypatch.setattr(Dim, "evaluate", lambda dim, _: looks.append(dim))
    length = len(layout.dims)
    plans = [SegmentPlan(layout, {"n": size, "t": 3}) for size in (5, 200)]
    assert [made.arena_bytes for made in plans] == [128, 832 + 2432]
    assert not looks
    assert len(layout.dims) == length


def test_plans_do_not_change_their_layout() -> None:
    layout = SegmentLayout(SEGMENT, lambda _, symbol: ADDRESS[symbol])
    first = SegmentPlan(layout, {"n": 5, "t": 3}).lease()
    SegmentPlan(layout, {"n": 10 * MIN_PARALLEL_COST, "t": 7}).lease()
    again = SegmentPlan(layout, {"n": 5, "t": 3}).lease()
    assert first.rows[:, 3:].tolist()[0] == again.rows[:, 3:].tolist()[0]
    assert first.table[6] == again.table[6] == 5


def test_contexts_are_leased_to_one_run_at_a_time_and_used_again() -> None:
    made = plan()
    one, other = made.lease(), made.lease()
    assert one is not other
    assert one.base != other.base
    made.release(one)
    assert made.lease() is one


def test_no_two_threads_get_one_context() -> None:
    made, used, twice = plan(), set[int](), list[int]()

    def work(_: int) -> None:
        for _ in range(200):
            context = made.lease()
            own = context.base
            if own in used:
                twice.append(own)
            used.add(own)
            used.discard(own)
            made.release(context)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert not twice


def test_the_memory_of_contexts_ends_with_their_plan() -> None:
    made = plan()
    context = made.lease()
    assert context.block is not None
    block = weakref.ref(context.block.memory)
    made.release(context)
    del context
    assert block() is not None
    del made
    gc.collect()
    assert block() is None


def test_memory_is_shared_by_buffers_that_live_at_different_times() -> None:
    calls = tuple(call(f"b{k}", f"b{k + 1}") for k in range(20))
    internal = tuple(spec(f"b{k}", N) for k in range(21))
    chain = Segment(calls=calls, inputs=(), outputs=(), internal=internal)
    assert plan(chain, {"n": 16}).arena_bytes == 2 * 64


def test_internal_buffers_that_nobody_uses_take_no_memory() -> None:
    more = replace(SEGMENT, internal=(*SEGMENT.internal, spec("unused", 10**9)))
    assert plan(more).arena_bytes == plan().arena_bytes


def test_sizes_below_zero_name_the_formula() -> None:
    segment = replace(SEGMENT, outputs=(spec("y", N - 7, 2),))
    with pytest.raises(ShapeMismatch, match=r"y would have the size n-7 = -2 with n = 5"):
        plan(segment)
    inside = replace(SEGMENT, internal=(spec("a", N - 7), spec("b", N)))
    with pytest.raises(ShapeMismatch, match="a would have the size"):
        plan(inside)


def test_sizes_beyond_64_bits_are_refused() -> None:
    huge = replace(SEGMENT, calls=(call("x", "y", dims=(product_of(N, 5),)),), aliases={})
    with pytest.raises(OutOfMemory, match="64 bits"):
        plan(huge, {"n": 2**40})


def product_of(dim: Dim, times: int) -> Dim:
    made = Dim.of(1)
    for _ in range(times):
        made = made * dim
    return made


def test_thousands_of_calls_are_planned_quickly() -> None:
    """Each looks up its buffers once; a search through all would take minutes."""
    count = 3000
    calls = tuple(call(f"w{k}", f"b{k}", f"b{k + 1}") for k in range(count))
    many = Segment(
        calls=calls,
        inputs=tuple(spec(f"w{k}", 4) for k in range(count)),
        outputs=(),
        internal=tuple(spec(f"b{k}", N) for k in range(count + 1)),
    )
    assert plan(many, {"n": 16}).arena_bytes == 128
