"""Memory plans: buffers that live at the same time never share a byte."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.runtime.arena import ALIGNMENT, Lifetime, plan


@st.composite
def lifetimes(draw: st.DrawFn) -> list[Lifetime]:
    found = []
    for number in range(draw(st.integers(0, 25))):
        first = draw(st.integers(0, 12))
        size = draw(st.integers(0, 300) | st.sampled_from([2**40, 2**62, 2**70]))
        found.append(Lifetime(f"b{number}", size, first, first + draw(st.integers(0, 6))))
    return found


@settings(max_examples=200, deadline=None)
@given(buffers=lifetimes())
def test_plans_are_sound(buffers: list[Lifetime]) -> None:
    offsets, total = plan(buffers)
    assert offsets.keys() == {buffer.name for buffer in buffers}
    assert all(offset >= 0 and offset % ALIGNMENT == 0 for offset in offsets.values())
    ends = {buffer.name: offsets[buffer.name] + buffer.size for buffer in buffers}
    for one, other in itertools.combinations(buffers, 2):
        if one.first <= other.last and other.first <= one.last and one.size and other.size:
            apart = ends[one.name] <= offsets[other.name] or ends[other.name] <= offsets[one.name]
            assert apart
    assert all(end <= total for end in ends.values())
    rounded = [-(-buffer.size // ALIGNMENT) * ALIGNMENT for buffer in buffers]
    alive = [
        sum(
            size
            for buffer, size in zip(buffers, rounded, strict=True)
            if buffer.first <= t <= buffer.last
        )
        for t in range(20)
    ]
    assert max(alive, default=0) <= total <= sum(rounded)


def test_a_chain_needs_the_memory_of_two_buffers() -> None:
    chain = [Lifetime(f"b{k}", 1000, k, k + 1) for k in range(50)]
    assert plan(chain)[1] == 2 * 1024


def test_a_gap_in_the_middle_is_used() -> None:
    buffers = [
        Lifetime("low", 64 * 4, 0, 9),
        Lifetime("gap", 64 * 3, 0, 1),
        Lifetime("high", 64 * 2, 0, 9),
        Lifetime("late", 64, 5, 6),
    ]
    offsets, total = plan(buffers)
    assert offsets["late"] == offsets["gap"] == 64 * 4
    assert total == 64 * 9


def test_the_order_of_the_buffers_does_not_matter() -> None:
    buffers = [Lifetime(f"b{k % 7}{k}", 100 * (k % 5), k % 4, k % 4 + k % 3) for k in range(30)]
    assert plan(buffers) == plan(buffers[::-1])


def test_nothing_needs_nothing() -> None:
    assert plan([]) == ({}, 0)
    assert plan([Lifetime("empty", 0, 0, 3)]) == ({"empty": 0}, 0)
