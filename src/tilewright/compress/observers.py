"""What an activation was seen to be, and the range that is made of it.

Input -> Output: arrays of a value, batch by batch -> (low, high).
Guarantees: fixed memory; all but the moving average give the same range in any order of batches.
Not here: the ranges' definitions (thresholds), where the arrays come from (calibrate).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy.typing as npt

from tilewright.compress import thresholds
from tilewright.compress.histogram import Histogram
from tilewright.compress.thresholds import Range
from tilewright.core.errors import BadOption

Array = npt.NDArray[Any]

METHODS = ("minmax", "moving-average", "percentile", "mse", "entropy")
KEPT_OF_AVERAGE = 0.95
SHARE = 99.99


class Observer(Protocol):
    """Sees batches of one value."""

    def add(self, values: Array) -> None:
        """Takes a batch; its elements are finite."""

    def merge(self, other: Any) -> None:
        """Takes what another observer of the same kind saw."""

    def range(self, *, symmetric: bool) -> Range:
        """The range to quantise; it contains 0."""


@dataclass(slots=True)
class MovingAverage:
    """Ends of the range: 0.95 of what they were and 0.05 of the batch's, from the first on."""

    low: float | None = None
    high: float = 0.0

    def add(self, values: Array) -> None:
        self._follow(float(values.min(initial=0.0)), float(values.max(initial=0.0)))

    def merge(self, other: MovingAverage) -> None:
        """The wider of the two, at each end."""
        if other.low is not None:
            low = other.low if self.low is None else min(self.low, other.low)
            self.low, self.high = low, max(self.high, other.high)

    def _follow(self, low: float, high: float) -> None:
        if self.low is None:
            self.low, self.high = low, high
            return
        new = 1 - KEPT_OF_AVERAGE
        self.low = KEPT_OF_AVERAGE * self.low + new * low
        self.high = KEPT_OF_AVERAGE * self.high + new * high

    def range(self, *, symmetric: bool) -> Range:
        del symmetric  # the caller makes it so
        return min(self.low or 0.0, 0.0), max(self.high, 0.0)


@dataclass(slots=True)
class Counting:
    """A histogram, of which one of the definitions in ``thresholds`` makes a range."""

    method: str
    share: float = SHARE
    levels: int = 255
    seen: Histogram = field(default_factory=Histogram)

    def add(self, values: Array) -> None:
        self.seen.add(values)

    def merge(self, other: Counting) -> None:
        self.seen.merge(other.seen)

    def range(self, *, symmetric: bool) -> Range:
        match self.method:
            case "percentile":
                return thresholds.percentile(self.seen, self.share, symmetric=symmetric)
            case "mse":
                return thresholds.mean_squared_error(self.seen, self.levels, symmetric=symmetric)
            case "entropy":
                return thresholds.entropy(self.seen)
        return thresholds.min_max(self.seen)


def make_observer(method: str, share: float = SHARE) -> Observer:
    """An observer that has seen nothing.

    Raises:
        BadOption: unknown method, or a share outside of 50 .. 100 percent.
    """
    if method not in METHODS:
        raise BadOption(f"unknown calibration {method!r}", remedy=f"use {', '.join(METHODS)}")
    if not 50 <= share <= 100:
        raise BadOption(f"percentile is {share:g}", remedy="use a share of 50 .. 100, as 99.99")
    return MovingAverage() if method == "moving-average" else Counting(method, share)
