"""Indices through views: where they can be translated they lead to the same element."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.core.shape import Dim
from tilewright.kernel.affine import access
from tilewright.kernel.ir import Expr, axis_var
from tilewright.lower.reindex import Refusal, through_view

B, S, H = map(Dim.symbol, ("b", "s", "h"))
ONE = Dim.of(1)


def dims(*sizes: Dim | int) -> tuple[Dim, ...]:
    return tuple(map(Dim.of, sizes))


def index(rank: int) -> tuple[Expr, ...]:
    return tuple(axis_var(f"i{k}") for k in range(rank))


def same_element(view: tuple[Dim, ...], source: tuple[Dim, ...]) -> bool | str:
    """Whether the translated index is the same linear index; the reason where there is none."""
    found = through_view(index(len(view)), view, source)
    if isinstance(found, Refusal):
        return found.reason
    ours, theirs = access(index(len(view)), view), access(found, source)
    # The index on an axis of one element is always 0.
    single = {f"i{k}" for k, size in enumerate(view) if size == ONE}
    left = {k: v for k, v in ours.terms.items() if k not in single}
    right = {k: v for k, v in theirs.terms.items() if k not in single}
    return left == right and ours.offset == theirs.offset and not theirs.rest


@pytest.mark.parametrize(
    ("view", "source"),
    [
        (dims(B, S, 12, 64), dims(B, S, 768)),
        (dims(B, S, 12, 64), dims(B * S, 768)),
        (dims(B, 1, S), dims(B, S)),
        (dims(B, S), dims(1, B, 1, S, 1)),
        (dims(B, H, S), dims(B * H * S)),
        (dims(), dims(1, 1)),
        (dims(1), dims()),
        (dims(2, 3, 4), dims(24)),
        (dims(B, S), dims(B, S)),
    ],
)
def test_joined_dims_need_no_division(view: tuple[Dim, ...], source: tuple[Dim, ...]) -> None:
    assert same_element(view, source) is True


@pytest.mark.parametrize(
    ("view", "source", "reason"),
    [
        (dims(24), dims(2, 12), "splits a dim"),
        (dims(B, 768), dims(B, 12, 64), "splits a dim"),
        (dims(4, 6), dims(6, 4), "splits a dim"),
        (dims(B * S), dims(B, S), "splits a dim"),
        (dims(B, S), dims(S, B), "splits a dim"),
        (dims(B, 4), dims(B), "splits a dim"),
        (dims(B), dims(B, 4), "splits a dim"),
        (dims(B, 0, 3), dims(B, 0), "splits a dim"),
    ],
)
def test_what_needs_a_division_is_refused(
    view: tuple[Dim, ...], source: tuple[Dim, ...], reason: str
) -> None:
    assert reason in str(same_element(view, source))


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), max_size=5),
    cuts=st.lists(st.booleans(), min_size=5, max_size=5),
    ones=st.lists(st.integers(0, 5), max_size=2),
)
def test_any_grouping_of_dims_leads_to_the_same_element(
    sizes: list[int], cuts: list[bool], ones: list[int]
) -> None:
    source = [1]
    for size, cut in zip(sizes, cuts, strict=False):
        source[-1:] = [source[-1], size] if cut else [source[-1] * size]
    for place in ones:
        source.insert(min(place, len(source)), 1)
    view = dims(*sizes)
    found = through_view(index(len(view)), view, dims(*source))
    assert not isinstance(found, Refusal)
    form = access(found, dims(*source))
    for position, point in enumerate(itertools.product(*(range(size) for size in sizes))):
        values = {f"i{k}": value for k, value in enumerate(point)}
        linear = form.offset.const + sum(
            factor.const * values[axis] for axis, factor in form.terms.items()
        )
        assert linear == position
    assert math.prod(sizes) == math.prod(source)
