"""Symbolic dims against Python's integers."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.core.errors import InternalError, InvalidModel
from tilewright.core.parse_dim import parse
from tilewright.core.shape import Dim, product, shape_text

N, M, K = map(Dim.symbol, ("n", "m", "k"))
NAMES = ("n", "m", "batch size", "a`b")


@dataclass(frozen=True)
class Both:
    """A dim, and the same computation on integers; None where it divided by zero."""

    dim: Dim
    value: Callable[[dict[str, int]], int | None]


def _lift(
    symbolic: Callable[[Dim, Dim], Dim], plain: Callable[[int, int], int]
) -> Callable[[Both, Both], Both]:
    def combine(left: Both, right: Both) -> Both:
        def value(sizes: dict[str, int]) -> int | None:
            one, other = left.value(sizes), right.value(sizes)
            if one is None or other is None:
                return None
            try:
                return plain(one, other)
            except ZeroDivisionError:
                return None

        return Both(symbolic(left.dim, right.dim), value)

    return combine


OPERATIONS = [
    _lift(lambda a, b: a + b, lambda a, b: a + b),
    _lift(lambda a, b: a - b, lambda a, b: a - b),
    _lift(lambda a, b: a * b, lambda a, b: a * b),
    _lift(lambda a, b: a // b, lambda a, b: a // b),
    _lift(lambda a, b: a % b, lambda a, b: a % b),
    _lift(Dim.ceildiv, lambda a, b: -(-a // b)),
    _lift(Dim.max, max),
    _lift(Dim.min, min),
]


def _constant(number: int) -> Both:
    return Both(Dim.of(number), lambda _: number)


def _symbol(name: str) -> Both:
    return Both(Dim.symbol(name), lambda sizes: sizes[name])


LEAVES = st.integers(-7, 7).map(_constant) | st.sampled_from(NAMES).map(_symbol)
DIMS = st.recursive(
    LEAVES,
    lambda inner: st.builds(
        lambda combine, left, right: combine(left, right),
        st.sampled_from(OPERATIONS),
        inner,
        inner,
    ),
    max_leaves=8,
)
SIZES = st.fixed_dictionaries({name: st.integers(-3, 40) for name in NAMES})


@settings(max_examples=150, deadline=None)
@given(both=DIMS, sizes=SIZES)
def test_arithmetic_is_that_of_integers(both: Both, sizes: dict[str, int]) -> None:
    expected = both.value(sizes)
    if expected is not None:
        assert both.dim.evaluate(sizes) == expected
    else:  # a division by zero was cancelled or gives 0: there is a value, and it is total
        assert isinstance(both.dim.evaluate(sizes), int)


@settings(max_examples=150, deadline=None)
@given(both=DIMS)
def test_text_is_read_back(both: Both) -> None:
    again = parse(str(both.dim))
    assert again == both.dim
    assert again.terms == both.dim.terms
    assert hash(again) == hash(both.dim)


@settings(max_examples=80, deadline=None)
@given(both=DIMS, by=DIMS, sizes=SIZES)
def test_substitution_is_evaluation_in_two_steps(
    both: Both, by: Both, sizes: dict[str, int]
) -> None:
    inner = by.value(sizes)
    if inner is None:
        return
    expected = both.value({**sizes, "n": inner})
    if expected is not None:
        assert both.dim.substitute({"n": by.dim}).evaluate(sizes) == expected


@given(left=DIMS, right=DIMS)
@settings(max_examples=80, deadline=None)
def test_order_of_operands_does_not_matter(left: Both, right: Both) -> None:
    a, b = left.dim, right.dim
    assert (a + b, a * b, a.max(b), a.min(b)) == (b + a, b * a, b.max(a), b.min(a))


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (N * 2 + M - 3, "m+2*n-3"),
        (N - N, "0"),
        (-N, "-n"),
        ((N + 1) * (N - 1), "n*n-1"),
        (N * M // M, "n"),
        ((4 * N + 6) // 4, "n+1"),
        ((4 * N + 7) // 4, "n+1"),
        ((4 * N + M + 7) // 4, "floor((m+3)/4)+n+1"),
        ((N + 1) // 2 % M, "mod(floor((n+1)/2), m)"),
        ((8 * N + 5) % 4, "1"),
        ((N * 5) % 4, "mod(n, 4)"),
        (N.ceildiv(2), "-floor(-n/2)"),
        (N.max(M).min(K), "min(k, max(m, n))"),
        ((N + 1).max(N), "n+1"),
        (N // 0, "0"),
        (N % 0, "0"),
        (Dim.symbol("batch size") + 1, "`batch size`+1"),
        (Dim.symbol("a`b"), "`a``b`"),
        (Dim.symbol(""), "``"),
        (Dim.symbol("max") * 2, "2*max"),
    ],
)
def test_canonical_text(dim: Dim, text: str) -> None:
    assert str(dim) == text
    assert parse(text) == dim


def test_a_division_by_zero_gives_zero_unless_it_cancels() -> None:
    assert (M // N).evaluate({"n": 0, "m": 5}) == 0
    assert (M % N).evaluate({"n": 0, "m": 5}) == 0
    assert (M * N // N).evaluate({"n": 0, "m": 5}) == 5


def test_questions() -> None:
    assert (N + 1).symbols == {"n"}
    assert (N.max(M) // (K + 1)).symbols == {"n", "m", "k"}
    assert N.as_symbol() == "n"
    assert (2 * N).as_symbol() is None
    assert N.max(M).as_symbol() is None
    assert Dim.of(3).const == 3
    assert Dim.of(0).is_const
    with pytest.raises(InternalError, match="n is symbolic"):
        _ = N.const
    with pytest.raises(KeyError):
        N.evaluate({})
    with pytest.raises(TypeError):
        Dim.of(2.5)  # type: ignore[arg-type]
    assert shape_text((N, Dim.of(3))) == "[n, 3]"
    assert product((N, 2, M)) == 2 * N * M
    assert product(()) == Dim.of(1)


# --- nothing blows up -----------------------------------------------------------------------------


def test_doubling_expressions_are_refused_before_they_cost_time() -> None:
    """Each step copies the expression twice, so a model of 60 nodes could ask for 2**60 terms."""
    dim = N
    with pytest.raises(InvalidModel, match="symbolic size has"):
        for _ in range(60):
            dim = dim + dim // 2 * dim


def test_a_product_of_many_sums_is_refused() -> None:
    with pytest.raises(InvalidModel, match="symbolic size has"):
        product(Dim.symbol(f"a{k}") + Dim.symbol(f"b{k}") for k in range(40))


def test_deep_and_huge_expressions_are_refused() -> None:
    dim, number = N, Dim.of(2)
    with pytest.raises(InvalidModel, match="101 levels"):
        for _ in range(200):
            dim = (dim + 1) // 2
    with pytest.raises(InvalidModel, match="bits"):
        for _ in range(20):
            number = number * number


def test_the_deepest_dim_can_be_used() -> None:
    dim = N
    for _ in range(99):
        dim = (dim + 1) // 2
    assert parse(str(dim)) == dim
    assert dim.evaluate({"n": 2**30}) == 1
    assert dim.substitute({"n": Dim.of(2**30)}) == Dim.of(1)


def test_chains_of_windows_stay_small() -> None:
    """The dims of a deep convolutional network: linear text, no matter how many layers."""
    height = N
    for _ in range(40):
        height = (height + 2 - 3) + 1
    assert str(height) == "n"
    for _ in range(12):
        height = (height + 2 - 3) // 2 + 1
    assert len(str(height)) < 200


def test_dims_are_values() -> None:
    assert len({N, Dim.symbol("n"), N + 0, M}) == 2
    with pytest.raises(AttributeError):
        N.terms = ()  # type: ignore[misc]
    assert repr(N + 1) == "Dim(n+1)"
    assert (N == "n") is False
