"""Counts depend on the numbers alone: any order, any division into batches, any scale."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.compress.histogram import NUM_BINS, Histogram

NUMBERS = st.lists(
    st.floats(-(2.0**100), 2.0**100, width=32, allow_nan=False), min_size=1, max_size=40
)


def _of(*batches: object) -> Histogram:
    found = Histogram()
    for batch in batches:
        found.add(np.asarray(batch, np.float32))
    return found


def _same(left: Histogram, right: Histogram) -> None:
    assert (left.exponent, left.num_zeros) == (right.exponent, right.num_zeros)
    assert (left.low, left.high) == (right.low, right.high)
    np.testing.assert_array_equal(left.negative, right.negative)
    np.testing.assert_array_equal(left.positive, right.positive)


@given(NUMBERS, st.randoms(use_true_random=False), st.integers(1, 5))
def test_order_and_division_do_not_matter(numbers: list[float], random: object, parts: int) -> None:
    shuffled = list(numbers)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    batches = [part for part in np.array_split(np.asarray(shuffled), parts) if part.size]
    _same(_of(numbers), _of(*batches))


@given(NUMBERS, NUMBERS)
def test_merging_is_adding(left: list[float], right: list[float]) -> None:
    merged = _of(left)
    merged.merge(_of(right))
    _same(merged, _of(left, right))


@given(NUMBERS)
def test_each_number_is_counted_in_its_bin(numbers: list[float]) -> None:
    found = _of(numbers)
    values = np.asarray(numbers, np.float32).astype(np.float64)
    assert found.count == len(numbers)
    assert found.num_zeros == int((values == 0).sum())
    for sign, counts in ((-1, found.negative), (1, found.positive)):
        own = np.abs(values[np.sign(values) == sign])
        expected = np.bincount(np.floor(own / found.width).astype(int), minlength=NUM_BINS)
        np.testing.assert_array_equal(counts, expected)


def test_a_tiny_first_batch_leaves_the_memory_as_it_is() -> None:
    found = _of([1e-30], [1e30])
    assert found.positive.size == NUM_BINS
    assert found.positive.sum() == 2


@pytest.mark.parametrize("amount", [1.0, 1023.5, 3e-7, 2.0**-140])
def test_half_of_the_bins_are_used_at_least(amount: float) -> None:
    used = np.flatnonzero(_of([amount]).positive)
    assert used[0] >= NUM_BINS // 2 or amount < 2.0**-115
