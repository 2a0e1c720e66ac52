"""Nests: as few axes as possible, and the same elements at the same points."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.core.dtypes import FLOAT32, INT64
from tilewright.core.shape import Dim, product
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    Store,
    constant,
    dim_value,
    reduce_axes,
    walk,
)
from tilewright.kernel.nest import Nest, prepare

A, B, C = map(Dim.symbol, "abc")
R, Q = Axis("r", B), Axis("q", C)


def buffer(name: str, *shape: Dim | int) -> Buffer:
    return Buffer(name, FLOAT32, tuple(map(Dim.of, shape)))


def nest_of(
    out: Buffer, inputs: tuple[Buffer, ...], body: Callable[..., Expr], **ordered: bool
) -> Nest:
    axes = tuple(Axis(f"i{k}", dim, ordered.get(f"i{k}", False)) for k, dim in enumerate(out.shape))
    index = tuple(axis.var for axis in axes)
    stage = Stage(axes, (Store(out.name, index, body(*index)),))
    kernel = Kernel(name="test", inputs=inputs, outputs=(out,), stages=(stage,))
    return prepare(kernel, stage)


def axes(nest: Nest) -> list[str]:
    return [f"{axis.name} < {axis.extent}" for axis in nest.axes]


X = buffer("x", A, B, C)
OUT = buffer("out", A, B, C)


def test_contiguous_axes_become_one() -> None:
    nest = nest_of(OUT, (X,), lambda *i: X[i] + 1.0)
    assert axes(nest) == ["i2 < a*b*c"]
    assert nest.merged == {"i0": "i2", "i1": "i2"}
    (form,) = nest.loads.values()
    assert form.stride("i2") == Dim.of(1)


def test_a_broadcast_operand_keeps_its_axes_apart() -> None:
    bias = buffer("bias", B)
    nest = nest_of(OUT, (X, bias), lambda a, b, c: X[a, b, c] + bias[b])
    assert axes(nest) == ["i0 < a", "i1 < b", "i2 < c"]
    row = buffer("row", C)
    assert axes(nest_of(OUT, (X, row), lambda a, b, c: X[a, b, c] + row[c])) == [
        "i1 < a*b",
        "i2 < c",
    ]


def test_transposed_axes_stay_apart() -> None:
    x = buffer("x", B, A)
    assert axes(nest_of(buffer("out", A, B), (x,), lambda a, b: x[b, a])) == ["i0 < a", "i1 < b"]


def test_an_axis_used_by_itself_stays() -> None:
    nest = nest_of(
        Buffer("out", INT64, (A, B)), (), lambda a, b: a * dim_value(B) * 2 + b + a * b * 0
    )
    assert axes(nest) == ["i0 < a", "i1 < b"]


def test_ordered_axes_stay() -> None:
    nest = nest_of(OUT, (X,), lambda *i: X[i] + 1.0, i1=True)
    assert axes(nest) == ["i0 < a", "i1 < b", "i2 < c"]


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, A, 1), (A, 1, 1), (1, 1, A), (A, 1, B), (1, A, B)]
)
def test_axes_of_one_element_vanish(shape: tuple[Dim | int, ...]) -> None:
    x, out = buffer("x", *shape), buffer("out", *shape)
    nest = nest_of(out, (x,), lambda *i: x[i])
    assert len(nest.axes) == 1
    assert nest.axes[0].extent == product(shape)
    known = {nest.axes[0].name}
    assert all(nest.merged.get(f"i{k}", f"i{k}") in known for k in range(3))


def test_axes_of_one_element_vanish_beside_others_that_stay() -> None:
    """Whatever an axis was merged into may be merged itself: names lead to the last."""
    x, bias = buffer("x", A, 1, 1, B), buffer("bias", A)
    nest = nest_of(buffer("out", A, 1, 1, B), (x, bias), lambda a, p, q, b: x[a, p, q, b] + bias[a])
    names = {axis.name for axis in nest.axes}
    assert len(names) == 2
    assert {nest.merged.get(f"i{k}", f"i{k}") for k in range(4)} <= names


def test_axes_of_reductions_become_one() -> None:
    nest = nest_of(buffer("out", A), (X,), lambda a: reduce_axes("sum", (R, Q), X[a, R.var, Q.var]))
    ((axis,),) = nest.reduce_axes.values()
    assert (axis.name, axis.extent) == ("q", B * C)


def test_reductions_over_the_same_axes_are_merged_together() -> None:
    y = buffer("y", A, B, C)

    def body(a: Expr) -> Expr:
        index = (a, R.var, Q.var)
        return reduce_axes("sum", (R, Q), X[index]) + reduce_axes("max", (R, Q), y[index])

    nest = nest_of(buffer("out", A), (X, y), body)
    assert [len(own) for own in nest.reduce_axes.values()] == [1, 1]
    assert all(form.stride("q") == Dim.of(1) for form in nest.loads.values())


def test_dependence_is_stated_in_merged_axes() -> None:
    nest = nest_of(OUT, (X,), lambda *i: X[i] + 1.0)
    value = nest.stage.stores[0].value
    assert nest.depends(value) == {"i2"}
    assert nest.depends(constant(1.0, FLOAT32)) == frozenset()


# --- the same elements ----------------------------------------------------------------------------


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[int], list[list[int]]]:
    """Extents of a nest, and the axes (in order) of each operand: broadcasts and transposes."""
    extents = draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=4))
    rank = len(extents)
    operands = draw(
        st.lists(
            st.permutations(range(rank)).flatmap(
                lambda order: st.integers(0, rank).map(lambda size: list(order[:size]))
            )
            | st.just(list(range(rank))),
            min_size=1,
            max_size=3,
        )
    )
    return extents, operands


@settings(max_examples=150, deadline=None)
@given(layout=layouts(), split=st.integers(0, 4))
def test_points_reach_the_same_elements(
    layout: tuple[list[int], list[list[int]]], split: int
) -> None:
    """Axes from ``split`` on are those of a reduction."""
    extents, operands = layout
    split = min(split, len(extents))
    inputs = tuple(
        buffer(f"x{number}", *(extents[axis] for axis in used))
        for number, used in enumerate(operands)
    )
    inner = tuple(Axis(f"i{k}", Dim.of(extents[k])) for k in range(split, len(extents)))

    def body(*outer: Expr) -> Expr:
        every = (*outer, *(axis.var for axis in inner))
        value = constant(0.0, FLOAT32)
        for own, used in zip(inputs, operands, strict=True):
            value = value + own[tuple(every[axis] for axis in used)]
        return reduce_axes("sum", inner, value)

    nest = nest_of(buffer("out", *extents[:split]), inputs, body)
    loads = [n for n in walk(*nest.stage.roots) if isinstance(n, Load)]
    merged = list(nest.axes)
    for node in walk(*nest.stage.roots):
        if isinstance(node, Reduce):
            merged += nest.reduce_axes[id(node)]
    originals = [Axis(f"i{k}", Dim.of(size)) for k, size in enumerate(extents)]
    for load in loads:
        used = operands[int(load.buffer[1:])]
        shape = [extents[axis] for axis in used]
        before = [
            _linear([point[f"i{axis}"] for axis in used], shape) for point in _points(originals)
        ]
        form = nest.loads[id(load)]
        after = [
            form.offset.const + sum(f.const * point[a] for a, f in form.terms.items())
            for point in _points(merged)
        ]
        assert after == before


def _points(some: list[Axis]) -> list[Mapping[str, int]]:
    ranges = [range(axis.extent.const) for axis in some]
    names = [axis.name for axis in some]
    return [dict(zip(names, point, strict=True)) for point in itertools.product(*ranges)]


def _linear(index: list[int], shape: list[int]) -> int:
    total = 0
    for part, size in zip(index, shape, strict=True):
        total = total * size + part
    return total
