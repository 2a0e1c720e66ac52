"""What another precision would be worth, as a record and as lines for a terminal.

Input -> Output: floors and times of kernels as they are and as they would be -> text.
Not here: computing them (runtime.explain.what_if).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.core.plural import plural
from tilewright.report.units import us_text

_MOST_STAYING = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWhatIf:
    """One kernel now and then, in microseconds of a run.

    Attributes:
        reason: why it stays as it is; empty where it changes.
        floor_us, then_floor_us: least times.
        time_us: measured; None without a measurement.
        then_us: if it stays as far above its floor as it is now; None without a measurement.
    """

    index: int
    name: str
    reason: str
    floor_us: float
    then_floor_us: float
    time_us: float | None
    then_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """All kernels with a floor, and what was left out (``num_unknown``)."""

    precision: str
    kernels: Sequence[KernelWhatIf]
    num_unknown: int

    @property
    def floor_us(self) -> float:
        """The sum of the floors now."""
        return sum(one.floor_us for one in self.kernels)

    @property
    def then_floor_us(self) -> float:
        """The sum of the floors then."""
        return sum(one.then_floor_us for one in self.kernels)

    @property
    def time_us(self) -> float | None:
        """Measured time of all kernels; None where one was not measured."""
        return _sum([one.time_us for one in self.kernels])

    @property
    def then_us(self) -> float | None:
        """What they would take at today's distance from the floor."""
        return _sum([one.then_us for one in self.kernels])

    @property
    def text(self) -> list[str]:
        """The answer: would it be faster, by how much, and what stands in the way."""
        changing = [one for one in self.kernels if not one.reason]
        answer = (
            f"What if {self.precision}: {len(changing)} of {plural(len(self.kernels), 'kernel')} "
            f"would change; floor {us_text(self.floor_us)} -> {us_text(self.then_floor_us)} "
            f"({self.floor_us / max(self.then_floor_us, 1e-9):.2f} times as fast at most)"
        )
        lines = [answer]
        now, then = self.time_us, self.then_us
        if now is not None and then is not None:
            lines.append(
                f"  at today's distance from each kernel's floor: {us_text(now)} -> "
                f"{us_text(then)} ({now / max(then, 1e-9):.2f} times as fast)"
            )
        lines += self._staying()
        if self.num_unknown:
            lines.append(f"  {plural(self.num_unknown, 'kernel')} of unknown cost left out")
        lines.append("  not counted: conversions where precisions meet, and accuracy")
        return lines

    def _staying(self) -> list[str]:
        staying = [one for one in self.kernels if one.reason]
        staying.sort(key=lambda one: -(one.time_us or one.floor_us))
        return [
            f"  stays: {one.name} ({us_text(one.time_us or one.floor_us)}): {one.reason}"
            for one in staying[:_MOST_STAYING]
        ]


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
