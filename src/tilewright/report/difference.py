"""What differs between two engines, and what it costs.

Input -> Output: ``Difference`` -> text lines, JSON values.
Not here: comparing (runtime.explain.difference).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tilewright.core.plural import plural
from tilewright.core.record import Decision
from tilewright.report.explanation import KernelReport
from tilewright.report.explanation_text import nodes_text
from tilewright.report.units import ms_number, us_text

SCHEMA = "tilewright.difference/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedKernels:
    """Kernels that compute the same nodes in both engines, in different ways.

    Attributes:
        nodes: source nodes that they compute together.
        before, after: the kernels.
        what: what changed.
        cost_us: time after less time before; None where one was not measured.
    """

    nodes: tuple[str, ...]
    before: tuple[KernelReport, ...]
    after: tuple[KernelReport, ...]
    what: str
    cost_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDecision:
    """The first decision at which two builds part; None where one had no more decisions."""

    number: int
    before: Decision | None
    after: Decision | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Difference:
    """Two engines, the second compared with the first.

    Attributes:
        before, after: their names.
        before_us, after_us: measured time of a run.
        facts: (name, before, after) of options and versions that differ.
        kernels: changed ones, the greatest change of time first.
        num_same: kernels of equal code on equal nodes.
        decision: the first that differs; None where none does.
        before_sizes, after_sizes: of the symbolic dims of inputs, at which they were explained;
            ``assumed`` names those that nobody gave.
        disturbance: what shows that the machine was busy meanwhile; empty on a quiet one.
        targets: how what they were built for differs, which times show too; empty where it is the
            same.
        models: how the models themselves differ; empty where both are of the same nodes.
    """

    before: str
    after: str
    before_us: float | None
    after_us: float | None
    facts: tuple[tuple[str, str, str], ...]
    kernels: tuple[ChangedKernels, ...]
    num_same: int
    decision: FirstDecision | None
    before_sizes: Mapping[str, int] = field(default_factory=dict)
    after_sizes: Mapping[str, int] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    disturbance: str = ""
    targets: str = ""
    models: str = ""

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Difference: {self.after} against {self.before}>"

    def text(self, most: int = 10) -> str:
        """Lines for a terminal."""
        return difference_text(self, most)

    def json(self) -> dict[str, Any]:
        """JSON values (see docs/explain.md)."""
        return {"schema": SCHEMA, **asdict(self)}


def difference_text(difference: Difference, most: int = 10) -> str:
    """See ``Difference.text``."""
    lines = [f"{difference.after} against {difference.before}"]
    if difference.targets:
        lines.insert(0, f"warning: the engines are for {difference.targets}; times show that too")
    if difference.models:
        lines.insert(0, f"These engines are of {difference.models}.")
    if difference.before_us and difference.after_us:
        change = difference.after_us / difference.before_us - 1
        times = f"{us_text(difference.before_us)} -> {us_text(difference.after_us)}"
        lines.append(f"time {times} ({change:+.1%})")
    if difference.disturbance:
        lines.append(f"      {difference.disturbance}; the change may come from that")
    lines += _sizes(difference)
    lines += [f"{name}: {old} -> {new}" for name, old, new in difference.facts]
    changed = len(difference.kernels)
    lines.append(f"the same: {plural(difference.num_same, 'kernel')}; changed: {changed}")
    for number, item in enumerate(difference.kernels[:most], start=1):
        cost = "not timed" if item.cost_us is None else _signed(item.cost_us)
        shown = item.after or item.before
        lines.append(f"{number}. {nodes_text(shown[0])}: {cost}")
        lines.append(f"     {item.what}")
    if changed > most:
        lines.append(f"   and {changed - most} more")
    if difference.decision is not None:
        lines.append(f"first decision that differs (number {difference.decision.number}):")
        lines.append(f"  before: {_decision(difference.decision.before)}")
        lines.append(f"  after:  {_decision(difference.decision.after)}")
    elif not difference.kernels:
        lines.append("all decisions are the same")
    return "\n".join(lines)


def _sizes(difference: Difference) -> list[str]:
    both = (difference.before_sizes, difference.after_sizes)
    texts = dict.fromkeys(", ".join(f"{n}={size}" for n, size in sizes.items()) for sizes in both)
    assumed = f" (assumed: {', '.join(difference.assumed)})" if difference.assumed else ""
    text = " -> ".join(text or "none" for text in texts)
    return [f"sizes: {text}{assumed}"] if any(both) else []


def _signed(microseconds: float) -> str:
    return f"{'-' if microseconds < 0 else '+'}{ms_number(abs(microseconds))} ms"


def _decision(decision: Decision | None) -> str:
    if decision is None:
        return "none"
    rejected = "; ".join(f"{option}: {reason}" for option, reason in decision.rejected)
    end = f" (not {rejected})" if rejected else ""
    return f"[{decision.stage}] {decision.subject}: {decision.chosen}{end}"
