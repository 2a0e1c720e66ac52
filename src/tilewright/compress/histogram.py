"""Counts of numbers in bins whose width is a power of two.

Input -> Output: arrays, one after the other -> one histogram of fixed size.
Guarantees: the counts depend on the set of numbers alone, not on its order or division into
arrays: a bin is [i, i + 1) * 2**k, and to double a width is to add neighbours; exact zeros, which
every quantiser represents, are counted apart; 4096 counts, whatever the amount of data.
Not here: thresholds (thresholds).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Counts = npt.NDArray[np.int64]

NUM_BINS = 2048
_CHUNK = 1 << 15  # numbers that stay in a cache
_LEAST_EXPONENT = -126  # whose reciprocal is a float32


def _empty() -> Counts:
    return np.zeros(NUM_BINS, np.int64)


@dataclass(slots=True)
class Histogram:
    """Magnitudes of negative and of positive numbers.

    Attributes:
        exponent: a bin is ``2**exponent`` wide; None before the first number that is not 0.
        negative, positive: [2048] counts by magnitude.
        num_zeros: of the exact zeros.
        low, high: the least and the greatest number; inf and -inf before the first.
    """

    exponent: int | None = None
    negative: Counts = field(default_factory=_empty)
    positive: Counts = field(default_factory=_empty)
    num_zeros: int = 0
    low: float = math.inf
    high: float = -math.inf

    def add(self, values: Array) -> None:
        """Counts the elements of an array, all of which are finite."""
        flat = np.asarray(values, np.float32).reshape(-1)
        if not flat.size:
            return
        self.low, self.high = min(self.low, float(flat.min())), max(self.high, float(flat.max()))
        greatest = max(-self.low, self.high)
        if greatest > 0:
            self._widen(_exponent_for(greatest))
        factor = np.float32(2.0) ** np.float32(-(self.exponent or 0))
        counts = np.zeros(2 * NUM_BINS, np.int64)
        for start in range(0, flat.size, _CHUNK):
            part = flat[start : start + _CHUNK]
            # Towards 0, so that magnitudes fall into [i, i + 1) on either side.
            index = (part * factor).astype(np.intp)
            index += NUM_BINS - 1
            index += part >= 0
            counts += np.bincount(index, minlength=2 * NUM_BINS)
        zeros = int(flat.size - np.count_nonzero(flat))
        self.num_zeros += zeros
        counts[NUM_BINS] -= zeros
        self.negative += counts[NUM_BINS - 1 :: -1]
        self.positive += counts[NUM_BINS:]

    def merge(self, other: Histogram) -> None:
        """Adds the counts of another histogram, which may be widened for it."""
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.num_zeros += other.num_zeros
        if other.exponent is None:
            return
        self._widen(other.exponent)
        other._widen(self.exponent or 0)
        self.negative += other.negative
        self.positive += other.positive

    def _widen(self, exponent: int) -> None:
        if self.exponent is None:
            self.exponent = exponent
        while self.exponent < exponent:
            self.negative, self.positive = _halved(self.negative), _halved(self.positive)
            self.exponent += 1

    # --- what it says -----------------------------------------------------------------------------

    @property
    def width(self) -> float:
        """Of a bin."""
        return 2.0 ** (self.exponent or 0)

    @property
    def count(self) -> int:
        """Numbers so far."""
        return int(self.negative.sum() + self.positive.sum()) + self.num_zeros

    @property
    def magnitudes(self) -> Counts:
        """Counts by magnitude, of either sign, without the zeros."""
        return self.negative + self.positive


def _exponent_for(greatest: float) -> int:
    """The least width with which a magnitude falls into the last bin or one before it."""
    exponent = math.frexp(greatest)[1] - int(math.log2(NUM_BINS))
    return max(exponent, _LEAST_EXPONENT)


def _halved(counts: Counts) -> Counts:
    pairs: Counts = counts.reshape(-1, 2).sum(1)
    return np.concatenate([pairs, np.zeros_like(pairs)])
