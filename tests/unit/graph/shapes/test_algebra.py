"""What is proven of dims: it must hold for every size, and refuse what does not."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.core.parse_dim import parse
from tilewright.core.shape import Dim, product
from tilewright.graph.shapes.algebra import (
    Facts,
    divide_sizes,
    exact_quotient,
    never_one,
    same_count,
)
from tilewright.graph.shapes.broadcast import Relation, relation
from unit.graph.shapes.builder import dims

_SIZES = [dict(zip("abc", sizes, strict=True)) for sizes in itertools.product(range(5), repeat=3)]


def _expressions() -> st.SearchStrategy[Dim]:
    leaves = st.one_of(st.integers(-3, 6).map(Dim.of), st.sampled_from("abc").map(Dim.symbol))

    def grow(inner: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
        pair = st.tuples(inner, inner)
        divisor = st.integers(1, 4)
        return st.one_of(
            pair.map(lambda p: p[0] + p[1]),
            pair.map(lambda p: p[0] - p[1]),
            pair.map(lambda p: p[0] * p[1]),
            pair.map(lambda p: p[0].max(p[1])),
            pair.map(lambda p: p[0].min(p[1])),
            st.tuples(inner, divisor).map(lambda p: p[0] // p[1]),
            st.tuples(inner, divisor).map(lambda p: p[0].ceildiv(p[1])),
            st.tuples(inner, divisor).map(lambda p: p[0] % p[1]),
        )

    return st.recursive(leaves, grow, max_leaves=6)


@given(_expressions(), _expressions())
def test_proofs_hold_for_all_sizes(left: Dim, right: Dim) -> None:
    facts = Facts()
    bound = facts.lower_bound(left)
    at_most, different = facts.at_most(left, right), facts.different(left, right)
    smaller, larger = facts.smaller(left, right), facts.larger(left, right)
    for sizes in _SIZES:
        one, other = left.evaluate(sizes), right.evaluate(sizes)
        assert bound is None or one >= bound
        assert not at_most or one <= other
        assert not different or one != other
        assert smaller.evaluate(sizes) == min(one, other)
        assert larger.evaluate(sizes) == max(one, other)
        assert not never_one(left) or one != 1


@given(st.lists(_expressions(), max_size=3), st.lists(_expressions(), max_size=2))
def test_quotients_are_exact_where_they_say_so(extra: list[Dim], parts: list[Dim]) -> None:
    whole = [*parts, *extra]
    quotient, exact = divide_sizes(whole, parts)
    for sizes in _SIZES:
        divisor = product(parts).evaluate(sizes)
        if exact and divisor:
            assert quotient.evaluate(sizes) * divisor == product(whole).evaluate(sizes)


@pytest.mark.parametrize(
    ("text", "bound"),
    [("a", 0), ("a+3", 3), ("2*a*b+1", 1), ("max(a-5, 2)", 2), ("floor(a/2)+1", 1), ("-a", None),
     ("a-b", None), ("-floor((-a)/2)", 0), ("min(a, 7)", 0), ("mod(a, 4)", 0)],
)  # fmt: skip
def test_lower_bounds(text: str, bound: int | None) -> None:
    assert Facts().lower_bound(parse(text)) == bound


def test_promised_minimum_raises_bounds() -> None:
    assert Facts(minimum={"a": 4}).lower_bound(parse("2*a-3")) == 5


def test_sizes_are_not_negative_until_they_are_forgotten() -> None:
    facts = Facts()
    mark = facts.mark()
    facts.learn(dims("h-2"))
    assert facts.non_negative(parse("h-2"))
    assert facts.non_negative(parse("h-1"))
    facts.forget(mark)
    assert not facts.non_negative(parse("h-2"))


def test_polynomials_divide() -> None:
    assert exact_quotient(parse("a*b+a+b+1"), parse("a+1")) == parse("b+1")
    assert exact_quotient(parse("a*b+a"), parse("b+2")) is None
    assert exact_quotient(parse("a"), Dim.of(0)) is None


def test_counts_are_compared_as_polynomials() -> None:
    assert same_count(dims("a", "b+1", 4), dims("2*b+2", "a", 2))
    assert not same_count(dims("a", "b"), dims("a", "c"))


@pytest.mark.parametrize(
    ("operand", "output", "expected"),
    [
        ("a", "a", Relation.SAME),
        ("1", "a", Relation.ONE),
        ("5", "a", Relation.SAME),
        ("2*a", "b", Relation.SAME),
        ("a", "b", Relation.UNKNOWN),
        ("a", "7", Relation.UNKNOWN),
        ("min(512, a)", "a", Relation.SAME),
        ("min(1, a)", "a", Relation.UNKNOWN),
        ("max(0, a-1)", "a-1", Relation.SAME),
        ("2*a+1", "b", Relation.UNKNOWN),
        ("1", "1", Relation.SAME),
    ],
)
def test_relations(operand: str, output: str, expected: Relation) -> None:
    assert relation(parse(operand), parse(output)) is expected
