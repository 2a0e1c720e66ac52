"""Each threshold equals its definition: closed forms, and searches written as plain loops."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.compress import thresholds
from tilewright.compress.histogram import Histogram
from tilewright.compress.observers import METHODS, MovingAverage, make_observer
from tilewright.core.errors import BadOption


def _of(*batches: object) -> Histogram:
    found = Histogram()
    for batch in batches:
        found.add(np.asarray(batch, np.float32))
    return found


def _quantiles(count: int) -> np.ndarray:
    """A normal distribution as evenly spaced quantiles."""
    return np.array([NormalDist().inv_cdf((i + 0.5) / count) for i in range(count)])


def test_min_max_is_the_range_and_contains_0() -> None:
    assert thresholds.min_max(_of([1, 5], [3])) == (0, 5)
    assert thresholds.min_max(_of([-4, -1])) == (-4, 0)


def test_percentile_of_a_uniform_distribution() -> None:
    numbers = (np.arange(100_000) + 0.5) / 100_000
    low, high = thresholds.percentile(_of(numbers), 99)
    assert low == 0
    assert high == pytest.approx(0.995, abs=1 / 1024)  # half of 1 % at the upper end
    _, high = thresholds.percentile(_of(numbers), 90, symmetric=True)
    assert high == pytest.approx(0.9, abs=1 / 1024)


def test_percentile_of_a_normal_distribution_cuts_both_ends() -> None:
    low, high = thresholds.percentile(_of(_quantiles(20_000)), 98)
    assert -low == pytest.approx(NormalDist().inv_cdf(0.99), abs=0.01)
    assert high == pytest.approx(NormalDist().inv_cdf(0.99), abs=0.01)


@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=60),
    st.floats(50, 100),
)
@settings(max_examples=60)
def test_percentile_holds_its_share(numbers: list[float], share: float) -> None:
    array = np.asarray(numbers, np.float32)
    low, high = thresholds.percentile(_of(array), share)
    inside = ((array >= low) & (array <= high)).sum()
    assert inside >= math.floor(share / 100 * len(array) - 1e-6)


def _loop_error(
    values: np.ndarray, counts: np.ndarray, low: float, high: float, levels: int = 255
) -> float:
    step = (high - low) / levels
    zero = min(max(round(-low / step), 0), levels)
    total = 0.0
    for value, count in zip(values, counts, strict=True):
        whole = min(max(round(value / step) + zero, 0), levels)
        total += count * ((whole - zero) * step - value) ** 2
    return total


@pytest.mark.parametrize("seed", range(3))
def test_squared_error_is_that_of_a_plain_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, counts = rng.standard_normal(50), rng.integers(1, 9, 50)
    for ends in ((-1.0, 2.0), (0.0, 0.7), (-3.0, 0.0)):
        expected = _loop_error(values, counts, *ends)
        assert thresholds.squared_error(values, counts, ends, 255) == pytest.approx(expected)


def test_the_least_squared_error_wins_among_all_candidates() -> None:
    numbers = np.append(_quantiles(4000), 30.0)
    found = _of(np.abs(numbers))
    low, high = thresholds.mean_squared_error(found, 15)
    filled = np.flatnonzero(found.positive)
    values, counts = (filled + 0.5) * found.width, found.positive[filled]
    ends = [found.high * k / 160 for k in range(1, 161)]
    best = min((_loop_error(values, counts, 0, end, 15), end) for end in ends)
    assert low == 0
    assert high == pytest.approx(best[1])
    assert high < 30 / 2


def _loop_divergence(counts: list[float], size: int) -> float:
    inside, outside = counts[:size], sum(counts[size:])
    clipped = list(inside)
    clipped[-1] += outside
    quantized = [0.0] * size
    for level in range(128):
        members = range(level * size // 128, (level + 1) * size // 128)
        filled = [index for index in members if inside[index]]
        for index in filled:
            quantized[index] = sum(inside[k] for k in members) / len(filled)
    total_p, total_q = sum(clipped), sum(quantized)
    found = 0.0
    for p, q in zip(clipped, quantized, strict=True):
        if p and not q:
            return math.inf
        if p:
            found += p / total_p * math.log((p / total_p) / (q / total_q))
    return found


def test_entropy_is_the_least_divergence_of_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    found = _of(rng.standard_normal(3000), rng.standard_normal(20) * 6)
    counts = [float(count) for count in found.magnitudes]
    used = max(index for index, count in enumerate(counts) if count) + 1
    every = {size: _loop_divergence(counts[:used], size) for size in range(128, used + 1)}
    for size in range(128, used + 1, 97):
        got = thresholds.divergence(np.asarray(counts[:used]), size)
        assert got == pytest.approx(every[size])
    best = min(every, key=lambda size: (every[size], size))
    limit = (best + 0.5) * found.width if best < used else math.inf
    low, high = thresholds.entropy(found)
    assert (low, high) == (max(found.low, -limit), min(found.high, limit))


def test_entropy_of_a_normal_distribution_with_an_outlier_cuts_the_outlier() -> None:
    """Where a search over 128 bins can only give the whole range."""
    _, high = thresholds.entropy(_of(_quantiles(200_000), [30.0]))
    assert 3 < high < 8


def test_zeros_of_a_relu_do_not_move_entropy() -> None:
    numbers = np.maximum(_quantiles(100_000), 0)
    with_zeros = thresholds.entropy(_of(numbers))
    assert with_zeros == thresholds.entropy(_of(numbers[numbers > 0]))
    assert with_zeros[1] > 3


def test_a_moving_average_starts_from_the_first_batch() -> None:
    observer = MovingAverage()
    observer.add(np.array([-1.0, 10.0]))
    assert observer.range(symmetric=False) == (-1, 10)
    observer.add(np.array([-2.0, 20.0]))
    low, high = observer.range(symmetric=False)
    assert low == pytest.approx(-1.05)
    assert high == pytest.approx(10.5)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "moving-average"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_ranges_do_not_depend_on_the_order_of_batches(method: str, symmetric: bool) -> None:
    rng = np.random.default_rng(5)
    batches = [rng.standard_normal(500).astype(np.float32) * scale for scale in (1, 30, 0.01, 3)]
    ranges = set()
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 3, 2)):
        observer = make_observer(method)
        for index in order:
            observer.add(batches[index])
        ranges.add(observer.range(symmetric=symmetric))
    assert len(ranges) == 1
    ((low, high),) = ranges
    assert low <= 0 <= high


def test_unknown_methods_are_refused() -> None:
    with pytest.raises(BadOption, match="unknown calibration 'kl'"):
        make_observer("kl")
    with pytest.raises(BadOption, match="percentile is 12"):
        make_observer("percentile", 12)
