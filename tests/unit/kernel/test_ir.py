"""Expressions: one object for equal ones, exact simplification, safe substitution."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.core.dtypes import BOOL, FLOAT32, INT8, INT32, INT64, UINT8, DType
from tilewright.core.errors import InternalError
from tilewright.core.shape import Dim
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Const,
    Expr,
    Kernel,
    Reduce,
    Stage,
    Store,
    axis_var,
    call,
    cast,
    constant,
    dim_value,
    identity_of,
    load,
    loaded,
    reduce_axes,
    reduce_over,
    select,
    substitute,
    transform,
    walk,
)
from tilewright.kernel.schedule import Schedule
from tilewright.kernel.text import print_expr

N, M = Dim.symbol("n"), Dim.symbol("m")
X = Buffer("x", FLOAT32, (N, M))
I, J = axis_var("i"), axis_var("j")
R = Axis("r", M)


# --- one object -----------------------------------------------------------------------------------


def test_equal_expressions_are_one_object() -> None:
    assert X[I, J] + 1.0 is X[I, J] + 1.0
    assert constant(1, INT64) is constant(1, INT64)
    assert constant(1, INT64) is not constant(1, INT32)
    assert cast(X[I, J], INT32) is X[I, J].cast(INT32)
    assert cast(X[I, J], INT32, saturate=False) is not X[I, J].cast(INT32)
    assert reduce_axes("sum", (R,), X[I, R.var]) is reduce_axes("sum", (R,), X[I, R.var])
    assert dim_value(N + 0) is dim_value(N)
    assert dim_value(3) is constant(3, INT64)


def test_floats_keep_their_bits() -> None:
    assert constant(0.0, FLOAT32) is not constant(-0.0, FLOAT32)
    assert constant(math.nan, FLOAT32) is constant(math.nan, FLOAT32)
    assert constant(True, BOOL) is constant(1, BOOL)


def test_threads_get_one_object() -> None:
    """Purity is decided by ``is``; two objects for one index would lose a fusion."""
    barrier = threading.Barrier(4)

    def build(_: int) -> list[int]:
        barrier.wait()
        return [id(axis_var(f"thread{k}") * 2 + k) for k in range(400)]

    kept = [axis_var(f"thread{k}") * 2 + k for k in range(400)]
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(build, range(4)):
            assert found == [id(expr) for expr in kept]


def test_free_axes_exclude_bound_ones() -> None:
    total = reduce_axes("sum", (R,), X[I, R.var])
    assert total.free_axes == {"i"}
    assert (total + X[I, J]).free_axes == {"i", "j"}
    assert constant(1.0, FLOAT32).free_axes == frozenset()


def test_expressions_may_be_deeper_than_pythons_stack() -> None:
    value = X[I, J]
    for _ in range(20_000):
        value = call("sqrt", value)
    assert value.height == 20_002
    assert len(walk(value)) == 20_003
    assert substitute(value, {"i": J}).free_axes == {"j"}
    assert transform(value, lambda _: None) is value
    del value


# --- what is refused ------------------------------------------------------------------------------


def test_illegal_expressions_are_refused() -> None:
    with pytest.raises(InternalError, match="add takes 2 operands"):
        call("add", I)
    with pytest.raises(InternalError, match="operands of types"):
        call("add", I, X[I, J])
    with pytest.raises(InternalError, match="needs a typed operand"):
        call("add", 1, 2)
    with pytest.raises(InternalError, match="no combiner"):
        reduce_axes("mean", (R,), X[I, R.var])
    with pytest.raises(InternalError, match="x has rank 2, index 1"):
        X[I]


# --- simplification -------------------------------------------------------------------------------


Recipe = tuple[Any, ...]
RECIPES: st.SearchStrategy[Recipe] = st.recursive(
    st.integers(-4, 4).map(lambda number: ("constant", number))
    | st.sampled_from([("axis", "i"), ("axis", "j")]),
    lambda inner: (
        st.tuples(st.sampled_from(["add", "sub", "mul", "div", "mod", "min", "max"]), inner, inner)
        | st.tuples(st.sampled_from(["lt", "le", "eq", "ne", "gt", "ge"]), inner, inner, inner)
    ),
    max_leaves=8,
)
TABLE = Buffer("t", INT64, (Dim.of(9),))


def made(recipe: Recipe, number: Callable[[int], Expr]) -> Expr:
    """An expression; comparisons choose between their first operand and a third."""
    kind, *parts = recipe
    if kind == "constant":
        return number(parts[0])
    if kind == "axis":
        return axis_var(parts[0])
    first, second, *third = (made(part, number) for part in parts)
    applied = call(kind, first, second)
    return select(applied, first, third[0]) if third else applied


@settings(max_examples=200, deadline=None)
@given(recipe=RECIPES)
def test_simplification_is_exact(recipe: Recipe) -> None:
    """What is folded is what the interpreter computes from numbers that it loads."""
    axes = (Axis("i", Dim.of(3)), Axis("j", Dim.of(3)))
    out = Buffer("out", INT64, (Dim.of(3), Dim.of(3)))

    def values(what: Expr) -> list[int]:
        stage = Stage(axes, (Store("out", (I, J), what),))
        kernel = Kernel(name="k", inputs=(TABLE,), outputs=(out,), stages=(stage,))
        return interpret(kernel, {"t": np.arange(-4, 5)}, {})["out"].reshape(-1).tolist()

    simple = made(recipe, lambda number: constant(number, INT64))
    assert values(simple) == values(made(recipe, lambda number: TABLE[number + 4]))


@pytest.mark.parametrize(
    ("expr", "simple"),
    [
        (I + 0, I),
        (0 + I, I),
        (I * 1, I),
        (I * 0, constant(0, INT64)),
        (call("div", I, 1), I),
        (call("mod", I, 1), constant(0, INT64)),
        (constant(2, INT64) * 3 + 4, constant(10, INT64)),
        (select(constant(2, INT64).lt(3), I, J), I),
        (select(constant(3, INT64).lt(3), I, J), J),
        (I.lt(3) & constant(True, BOOL), I.lt(3)),
        (I.lt(3) & constant(False, BOOL), constant(False, BOOL)),
        (X[I, J].cast(FLOAT32), X[I, J]),
        (constant(3, INT8).cast(INT64), constant(3, INT64)),
    ],
)
def test_what_is_simplified(expr: Expr, simple: Expr) -> None:
    assert expr is simple


def test_floats_and_overflows_are_left_alone() -> None:
    assert len(walk(X[I, J] * 0.0 + 0.0)) > len(walk(X[I, J]))
    assert not isinstance(constant(2**61, INT64) * 4, Const)


# --- rewriting ------------------------------------------------------------------------------------


def test_substitution_does_not_capture() -> None:
    """i -> r under a reduction over r: the bound r is renamed."""
    total = reduce_axes("sum", (R,), X[I, R.var])
    found = substitute(total, {"i": R.var})
    assert found.free_axes == {"r"}
    assert isinstance(found, Reduce)
    assert found.axes[0].name != "r"


def test_substitution_of_an_axis_by_itself_changes_nothing() -> None:
    value = reduce_axes("sum", (R,), X[I, R.var]) + X[I, J]
    assert substitute(value, {"i": I, "j": J}) is value


def test_substitution_goes_through_nested_reductions() -> None:
    inner = reduce_over("max", [M], lambda k: X[I, k])
    outer = reduce_over("sum", [N], lambda n: X[n, J] * inner)
    found = substitute(outer, {"i": J + 1, "j": I})
    assert found.free_axes == {"i", "j"}
    assert "x[j + 1" in print_expr(found)


def test_loads_are_named_in_order() -> None:
    y = Buffer("y", FLOAT32, (N,))
    assert loaded(y[I] + X[I, J], y[J]) == ["y", "x"]
    assert load("x", FLOAT32, (I, 0)) is X[I, 0]


@pytest.mark.parametrize(
    ("combiner", "dtype", "value"),
    [
        ("sum", FLOAT32, 0),
        ("prod", INT32, 1),
        ("max", FLOAT32, -math.inf),
        ("min", FLOAT32, math.inf),
        ("max", INT8, -128),
        ("min", INT8, 127),
        ("max", UINT8, 0),
        ("min", UINT8, 255),
        ("max", BOOL, False),
        ("min", BOOL, True),
        ("and", BOOL, 1),
        ("or", BOOL, 0),
    ],
)
def test_neutral_elements(combiner: str, dtype: DType, value: float) -> None:
    assert identity_of(combiner, dtype) == value


# --- kernels --------------------------------------------------------------------------------------


def test_what_is_pure() -> None:
    out = Buffer("out", FLOAT32, (N, M))
    i, j = Axis("i", N), Axis("j", M)
    store = Store("out", (I, J), X[I, J])

    def kernel(*stages: Stage, **more: object) -> Kernel:
        return Kernel(name="k", inputs=(X,), outputs=(out,), stages=stages, **more)  # type: ignore[arg-type]

    assert kernel(Stage((i, j), (store,))).is_pure
    ordered = Axis("j", M, ordered=True)
    impure = [
        kernel(Stage((i, j), (store,)), Stage((i, j), (store,))),
        kernel(Stage((i, j), (store,)), steps=Axis("t", N, ordered=True)),
        kernel(Stage((i, j), (store,)), temporaries=(X,)),
        kernel(Stage((i, j), (store, store))),
        kernel(Stage((i, j), (Store("out", (I, J), X[I, J], I.lt(2)),))),
        kernel(Stage((i, j), (Store("out", (I, J + 0 * J), X[I, J]),))),
        kernel(Stage((j, i), (store,))),
        kernel(Stage((i, ordered), (store,))),
        kernel(Stage((i, Axis("j", M + 1)), (store,))),
    ]
    assert [one.is_pure for one in impure] == [False] * 5 + [True] + [False] * 3


def test_roots_and_mapping_reach_every_expression() -> None:
    store = Store("out", (I, J), X[I, J], I.lt(2))
    stage = Stage((Axis("i", N), Axis("j", M)), (store, Store("out", (J,), I)))
    assert stage.roots == [I, J, X[I, J], I.lt(2), J, I]
    mapped = store.mapped(lambda expr: substitute(expr, {"i": J}))
    assert mapped == Store("out", (J, J), X[J, J], J.lt(2))


def test_a_schedule_says_everything_in_one_line() -> None:
    schedule = Schedule(
        tactic="t", lanes=8, vector="j", unroll={"j": 2, "i": 3}, outer=("i",), chunk=4
    )
    assert schedule.copies("i") == 3
    assert schedule.copies("k") == 1
    assert schedule.text.startswith("t(lanes=8, vector=j, unroll=[jx2,ix3], outer=[i], chunk=4")
