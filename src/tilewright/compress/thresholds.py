"""Ranges of real numbers to quantise, from histograms.

Input -> Output: a histogram -> (low, high), with low <= 0 <= high, inside of the observed range.
    min-max     the observed range
    percentile  all but a share of the numbers, half of it at either end
    mse         the candidates with the least squared error of quantisation
    entropy     the magnitude that keeps most of the distribution in 128 levels (Kullback-Leibler)
Guarantees: each is a function of the histogram alone, so that order does not matter.
Source of the entropy search: NVIDIA, 8-bit inference with TensorRT (GTC 2017, S7310).
Not here: scales (affine).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compress.histogram import NUM_BINS, Histogram

Array = npt.NDArray[Any]
Range = tuple[float, float]

LEVELS = 128  # of the magnitudes in int8
_LEAST_BINS = 128  # of which an entropy or squared error is worth having
_NUM_CANDIDATES = 160


def min_max(found: Histogram) -> Range:
    """The observed range, widened to contain 0."""
    return min(found.low, 0.0), max(found.high, 0.0)


def percentile(found: Histogram, share: float, *, symmetric: bool = False) -> Range:
    """The range that holds ``share`` percent of the numbers, to a bin's outer edge.

    Symmetric: of the magnitudes. Otherwise, half of what is left out lies at either end.
    """
    low, high = min_max(found)
    inside = share / 100 * found.count
    if symmetric:
        edge = _edge(found.magnitudes, found.num_zeros, inside) * found.width
        return max(low, -edge), min(high, edge)
    half = (found.count - inside) / 2
    below = int(found.negative.sum()) + found.num_zeros
    above = int(found.positive.sum()) + found.num_zeros
    top = _edge(found.positive, below, found.count - half) * found.width
    bottom = _edge(found.negative, above, found.count - half) * found.width
    return max(low, -bottom), min(high, top)


def _edge(counts: Array, before: int, inside: float) -> int:
    """How many bins it takes to hold ``inside`` numbers, ``before`` of which are there already."""
    total = before + np.concatenate([[0], np.cumsum(counts)])
    return int(np.argmax(total >= inside - 1e-9 * inside))


def mean_squared_error(found: Histogram, levels: int, *, symmetric: bool = False) -> Range:
    """The range whose quantisation to ``levels`` steps has the least squared error.

    Numbers count as the centres of their bins. Candidates are 160 fractions of the observed ends
    (symmetric: of the greatest magnitude; otherwise of the upper end, then of the lower one).
    """
    low, high = min_max(found)
    values, counts = _centres(found)
    if not counts.size:
        return low, high
    fractions = np.arange(_NUM_CANDIDATES, 0, -1) / _NUM_CANDIDATES
    if symmetric:
        most = max(-low, high)
        tried = [(-most * part, most * part) for part in fractions]
        best = min(tried, key=lambda ends: squared_error(values, counts, ends, levels))
        return max(low, best[0]), min(high, best[1])
    ends = (low, high)
    for side in (1, 0, 1, 0):
        if not (low, high)[side]:
            continue
        ranges = [(ends[0], high * part) if side else (low * part, ends[1]) for part in fractions]
        ends = min(ranges, key=lambda pair: squared_error(values, counts, pair, levels))
    return ends


def squared_error(values: Array, counts: Array, ends: Range, levels: int) -> float:
    """Sum over the values of the squared error of an affine quantiser of ``levels`` steps."""
    low, high = ends
    step = (high - low) / levels
    if step <= 0:
        return float((counts * values**2).sum())
    zero = np.clip(np.rint(-low / step), 0, levels)
    restored = (np.clip(np.rint(values / step) + zero, 0, levels) - zero) * step
    return float((counts * (restored - values) ** 2).sum())


def _centres(found: Histogram) -> tuple[Array, Array]:
    """The centre and the count of each bin that is not empty."""
    signed = np.concatenate([-np.arange(NUM_BINS)[::-1] - 0.5, np.arange(NUM_BINS) + 0.5])
    counts = np.concatenate([found.negative[::-1], found.positive])
    kept = counts > 0
    return signed[kept] * found.width, counts[kept]


def entropy(found: Histogram) -> Range:
    """The range whose magnitude keeps most of the distribution of the magnitudes.

    For each number of bins from 128 on, P has the numbers beyond in its last bin; Q has 128 levels
    of the bins as they were counted, each spread over those of its bins that are not empty. The
    least divergence of P from Q wins, the least range among equals. Exact zeros take no part: they
    have no error at any scale.
    """
    low, high = min_max(found)
    counts = found.magnitudes.astype(np.float64)
    used = int(np.flatnonzero(counts).max(initial=-1)) + 1
    if used <= _LEAST_BINS:
        return low, high
    sizes = np.arange(_LEAST_BINS, used + 1)
    divergences = np.array([divergence(counts[:used], int(size)) for size in sizes])
    best = int(sizes[np.argmin(divergences)])
    if best == used:
        return low, high
    edge = (best + 0.5) * found.width
    return max(low, -edge), min(high, edge)


def divergence(counts: Array, size: int) -> float:
    """Divergence of the clipped distribution from its quantised one; may be infinite."""
    inside = counts[:size]
    outside = counts[size:].sum()
    filled = inside > 0
    if outside and not filled[-1]:
        return float("inf")  # numbers where the quantised distribution has none
    starts = np.arange(LEVELS) * size // LEVELS
    sums = np.add.reduceat(inside, starts)
    num_filled = np.add.reduceat(filled.astype(np.float64), starts)
    mean = np.divide(sums, num_filled, out=np.zeros(LEVELS), where=num_filled > 0)
    spread = np.repeat(mean, np.diff(np.append(starts, size)))[filled]
    clipped = inside[filled].copy()
    if outside:
        clipped[-1] += outside
    total, quantized = clipped.sum(), spread.sum()
    return float((clipped * np.log(clipped * quantized / (spread * total))).sum() / total)
