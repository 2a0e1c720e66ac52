"""Affine forms equal the expressions that they stand for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.core.dtypes import INT64
from tilewright.core.shape import Dim
from tilewright.kernel.affine import Affine, access, affine, row_major
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Expr,
    Kernel,
    Stage,
    Store,
    axis_var,
    call,
    constant,
    dim_value,
    select,
)

N, M = Dim.symbol("n"), Dim.symbol("m")
I, J = axis_var("i"), axis_var("j")
TABLE = Buffer("table", INT64, (Dim.of(8),))

LEAVES = st.sampled_from([I, J, dim_value(N), dim_value(M + 1)]) | st.integers(-3, 3).map(
    lambda number: constant(number, INT64)
)
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(
            lambda op, left, right: call(op, left, right),
            st.sampled_from(["add", "sub", "mul", "div", "mod", "max"]),
            inner,
            inner,
        ),
        inner.map(lambda one: call("neg", one)),
        inner.map(lambda one: select(dim_value(N).eq(1), 0, one)),
        inner.map(lambda one: TABLE[call("mod", one, constant(8, INT64))]),
    ),
    max_leaves=8,
)


def values(expr: Expr, sizes: Mapping[str, int]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """The expression for i < 3, j < 4."""
    axes = (Axis("i", Dim.of(3)), Axis("j", Dim.of(4)))
    out = Buffer("out", INT64, (Dim.of(3), Dim.of(4)))
    stage = Stage(axes, (Store("out", (I, J), expr + I * 0),))
    kernel = Kernel(name="k", inputs=(TABLE,), outputs=(out,), stages=(stage,))
    return interpret(kernel, {"table": np.arange(8)[::-1] - 3}, sizes)["out"]


def rebuilt(form: Affine) -> Expr:
    """The form as an expression again."""
    total = dim_value(form.offset)
    for axis, factor in form.terms.items():
        total = total + axis_var(axis) * dim_value(factor)
    for part, factor in form.rest:
        total = total + part * dim_value(factor)
    return total


@settings(max_examples=150, deadline=None)
@given(expr=EXPRESSIONS, n=st.integers(1, 4), m=st.integers(0, 4))
def test_forms_equal_their_expressions(expr: Expr, n: int, m: int) -> None:
    """n is a dim that may be broadcast; one of size 0 is never indexed."""
    sizes = {"n": n, "m": m}
    np.testing.assert_array_equal(values(rebuilt(affine(expr)), sizes), values(expr, sizes))


@pytest.mark.parametrize(
    ("expr", "terms", "offset"),
    [
        (I * 2 + J * dim_value(N) - 3, {"i": "2", "j": "n"}, "-3"),
        ((I + 1) * dim_value(N), {"i": "n"}, "n"),
        (dim_value(N) - 1 - I, {"i": "-1"}, "n-1"),
        (I - I, {}, "0"),
        (select(dim_value(N).eq(1), 0, I), {"i": "min(1, n-1)"}, "0"),
        (select(constant(1, INT64).eq(dim_value(N)), 0, I), {"i": "min(1, n-1)"}, "0"),
    ],
)
def test_sums_of_axes_are_affine(expr: Expr, terms: dict[str, str], offset: str) -> None:
    form = affine(expr)
    assert {axis: str(factor) for axis, factor in form.terms.items()} == terms
    assert str(form.offset) == offset
    assert not form.rest


@pytest.mark.parametrize(
    "expr",
    [I * I, call("div", I, 2), call("mod", I, 2), TABLE[I], select(I.eq(1), 0, I), I.max(J)],
    ids=["square", "div", "mod", "load", "select", "max"],
)
def test_what_is_not_affine_is_kept_whole(expr: Expr) -> None:
    form = affine(expr * 3 + J)
    assert form.rest == ((expr, Dim.of(3)),)
    assert form.stride("i") is None
    assert form.stride("other") == Dim.of(0)


def test_strides_of_an_access() -> None:
    form = access((I * 2 + 1, J), (N, M))
    assert (str(form.stride("i")), str(form.stride("j")), str(form.offset)) == ("2*m", "1", "m")
    assert access((), ()) == Affine()


def test_rows_are_dense() -> None:
    assert [str(stride) for stride in row_major((N, M, Dim.of(4)))] == ["4*m", "4", "1"]
    assert row_major(()) == []


def test_parts_that_are_not_affine_are_added_up() -> None:
    p = axis_var("p")
    line = p / constant(7, INT64)
    assert affine(line * 7 + (p - line * 7)) == affine(p)
    assert affine(line * 9 + (p - line * 7)).rest == ((line, Dim.of(2)),)
