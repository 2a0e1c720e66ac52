"""Dims come back from a table as they were; whatever else a table holds, it is refused at once."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.core import dim_table
from tilewright.core.dim_table import DimTable, dim_of, read_dims
from tilewright.core.shape import Dim

N, H = Dim.symbol("n"), Dim.symbol("an odd `name`")

DIMS = st.recursive(
    st.sampled_from([N, H, Dim.symbol(""), Dim.of(0), Dim.of(-3), Dim.of(2**70)]),
    lambda inner: st.builds(
        lambda apply, left, right: apply(left, right),
        st.sampled_from(
            [
                Dim.__add__,
                Dim.__sub__,
                Dim.__mul__,
                Dim.__floordiv__,
                Dim.__mod__,
                Dim.max,
                Dim.min,
            ]
        ),
        inner,
        inner,
    ),
    max_leaves=8,
)


@given(dims=st.lists(DIMS, max_size=5))
def test_dims_come_back(dims: list[Dim]) -> None:
    table = DimTable()
    numbers = [table.number(dim) for dim in dims]
    found = read_dims(json.loads(json.dumps(table.entries)))
    for number, dim in zip(numbers, dims, strict=True):
        read = dim_of(number, found)
        assert (read.text, read.depth, read.terms) == (dim.text, dim.depth, dim.terms)


def test_what_dims_share_stands_once() -> None:
    table, dim = DimTable(), N
    for _ in range(20):
        dim = (dim + 1) // 2
        table.number(dim * H)
        table.number(dim)
    numbers = [table.number(dim), table.number(dim)]
    assert numbers[0] == numbers[1]
    assert len(table.entries) < 100
    assert len(json.dumps(table.entries)) < 3000


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (None, "no list"),
        ([3], "a size is '3'"),
        (["n", [[1, 1]]], "no size before it is .1"),
        (["n", [[1, -1]]], "no size before it is .-1"),
        (["n", [[1, False]]], "no size before it is .False"),
        (["n", [[1, "n"]]], "no size before it is 'n'"),
        (["n", [[1, 0]], [[1, 1]]], "'n' is in the wrong place"),
        (["n", ["max", 0, 0]], "'n' is in the wrong place"),
        (["n", [[1, 0]], ["system", 1, 1]], "no function 'system'"),
        (["n", [[1, 0]], ["max", 1]], "unreadable size|not enough values"),
        (["n", [[1.5, 0]]], "a factor is '1.5'"),
        (["n", [[True, 0]]], "a factor is 'True'"),
        (["n", [[]]], "not enough values"),
        (["n", [3]], "unreadable size"),
        (["n", [[1] + [0] * 65]], "65 factors"),
        (["n", [[2**300, 0]]], "301 bits"),
        (["n" * 20_000, [[1, 0]]], "more than 16384 characters"),
        (["n" * 5_000, [[1, 0]] * 10_000], "more than 16384 characters"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_other_entries_are_refused(entries: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_dims(entries)


def test_functions_too_deep_are_refused() -> None:
    entries: list[Any] = ["n", [[1, 0]]]
    for _ in range(120):
        entries += [["floordiv", len(entries) - 1, 1], [[1, len(entries)]]]
    with pytest.raises(ValueError, match="levels"):
        read_dims(entries)


def test_entries_that_repeat_long_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dim_table, "_MAX_CHARACTERS", 100_000)
    with pytest.raises(ValueError, match="more than 100000 characters"):
        read_dims(["n" * 10_000, *[[[1, 0]]] * 100])
