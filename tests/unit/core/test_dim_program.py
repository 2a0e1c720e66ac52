"""Programs of dims against the dims themselves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.core.dim_program import DimProgram
from tilewright.core.shape import Dim

N, M = map(Dim.symbol, ("n", "m"))


def _grown(inner: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
    operations = (
        Dim.__add__,
        Dim.__sub__,
        Dim.__mul__,
        Dim.__floordiv__,
        Dim.__mod__,
        Dim.max,
        Dim.min,
    )
    return st.builds(
        lambda operation, left, right: operation(left, right),
        st.sampled_from(operations),
        inner,
        inner,
    )


DIMS = st.recursive(st.sampled_from([N, M]) | st.integers(-9, 9).map(Dim.of), _grown, max_leaves=12)
SIZES = st.integers(0, 50) | st.sampled_from([2**31, 2**70])


@settings(max_examples=300, deadline=None)
@given(dims=st.lists(DIMS, max_size=8), n=SIZES, m=SIZES)
def test_values_are_those_of_the_dims(dims: list[Dim], n: int, m: int) -> None:
    program = DimProgram()
    slots = [program.slot(dim) for dim in dims]
    sizes = {"n": n, "m": m}
    for _ in range(2):
        values = program.evaluate(sizes)
        assert [values[slot] for slot in slots] == [dim.evaluate(sizes) for dim in dims]


def test_what_dims_share_is_computed_once() -> None:
    """Sizes of a deep network contain those before them."""
    program, size, dims = DimProgram(), N, []
    for _ in range(20):
        size = (size + 1) // 2
        dims += [size, size * M, size * M * 3]
    for dim in [*dims, *dims]:
        program.slot(dim)
    assert len(program) == 4 * 20
    assert set(program.names) == {"n", "m"}


def test_operations_on_slots() -> None:
    program = DimProgram()
    n, three = program.slot(N), program.constant(3)
    names = ("add", "mul", "floordiv", "mod", "max", "min")
    slots = [program.apply(name, n, three) for name in names]
    assert slots == [program.apply(name, n, three) for name in names]
    assert [program.evaluate({"n": 7})[slot] for slot in slots] == [10, 21, 2, 1, 7, 3]
    zero = [program.apply(name, n, program.constant(0)) for name in ("floordiv", "mod")]
    assert [program.evaluate({"n": 7})[slot] for slot in zero] == [0, 0]
    with pytest.raises(KeyError):
        program.evaluate({"m": 1})
