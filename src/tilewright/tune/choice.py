"""The schedule of a stage by what was timed.

Input -> Output: a stage, its timings -> ``Choice`` with the reasons against the other schedules.
Method: of each schedule the geometric mean, over all sizes that were timed, of its time relative
to the formula's in the same turns.  The least wins if it saves at least 2 %.
Guarantees: the same stage and timings give the same choice; a schedule that is not in the stage's
space is never chosen, whatever a store says.
Not here: which schedules are timed, and how (tune.rounds).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tilewright.codegen.cpu.space import space
from tilewright.codegen.cpu.target import CpuTarget
from tilewright.core.plural import plural
from tilewright.kernel.nest import Nest
from tilewright.kernel.schedule import Schedule
from tilewright.tune.cost import predict_us
from tilewright.tune.store import Timing, parse_sizes

_LEAST_GAIN = 0.02  # of the formula's time; less may be chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The schedule of a stage.

    Attributes:
        predicted_us, measured_us: of one run, at the sizes that were timed, on average.
        rejected: other schedules with reasons, the fastest first.
        unknown: timings of schedules that the space does not have.
    """

    schedule: Schedule
    predicted_us: float | None = None
    measured_us: float | None = None
    rejected: tuple[tuple[str, str], ...] = ()
    unknown: int = 0


def choose_schedule(
    nest: Nest, target: CpuTarget, timings: Sequence[Timing], disabled: Collection[str] = ()
) -> Choice:
    """Decides between the schedules of a stage."""
    legal = {schedule.text: schedule for schedule in space(nest, target, disabled)}
    formula = next(iter(legal))
    known = [timing for timing in timings if timing.schedule in legal]
    by_text: dict[str, list[Timing]] = {}
    for timing in known:
        by_text.setdefault(timing.schedule, []).append(timing)
    ratios = {
        text: math.exp(sum(math.log(t.ratio) for t in found) / len(found))
        for text, found in by_text.items()
    } | {formula: 1.0}
    best = min(ratios, key=lambda text: (ratios[text], text))
    chosen = best if ratios[best] <= 1 - _LEAST_GAIN else formula
    return Choice(
        schedule=legal[chosen],
        predicted_us=_mean(
            [predict_us(nest, legal[chosen], target, parse_sizes(t.sizes)) for t in known]
        ),
        measured_us=_mean([t.us for t in by_text[chosen]])
        if chosen in by_text
        else _mean([t.formula_us for t in known]),
        rejected=_rejected(ratios, chosen, by_text, len(legal)),
        unknown=len(timings) - len(known),
    )


def _rejected(
    ratios: dict[str, float], chosen: str, by_text: dict[str, list[Timing]], num_legal: int
) -> tuple[tuple[str, str], ...]:
    result: list[tuple[str, str]] = []
    for text, ratio in sorted(ratios.items(), key=lambda item: (item[1], item[0])):
        if text != chosen:
            took = _mean([t.us for t in by_text.get(text, ())])
            time = "" if took is None else f"took {took:.1f} us, "
            result.append((text, f"{time}{ratio / ratios[chosen]:.2f} x the chosen one's time"))
    if others := num_legal - len(ratios):
        result.append((plural(others, "other schedule"), "predicted to be slower, not timed"))
    return tuple(result)


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None
