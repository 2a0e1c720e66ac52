"""The schedules of a stage that are worth timing, the most promising first.

Input -> Output: a prepared stage, a target, sizes -> schedules.
Guarantees: the formula's schedule, which everything is timed against, is not among them; the order
depends on nothing else.
Not here: legality (codegen.cpu.space), predictions (tune.cost), timing (tune.rounds).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tilewright.codegen.cpu.space import space
from tilewright.codegen.cpu.target import CpuTarget
from tilewright.kernel.nest import Nest
from tilewright.kernel.schedule import Schedule
from tilewright.tune.cost import predict_us

_MAX_RATIO = 1.6  # of the best prediction: the model is rough
_MAX_CANDIDATES = 24


def candidates(
    nest: Nest,
    target: CpuTarget,
    disabled: Collection[str] = (),
    sizes: Mapping[str, int] | None = None,
) -> tuple[Schedule, ...]:
    """Enumerates, predicts and prunes."""
    formula, *others = space(nest, target, disabled)
    predicted = {one.text: predict_us(nest, one, target, sizes) for one in (formula, *others)}
    limit = _MAX_RATIO * min(predicted.values())
    ranked = sorted(others, key=lambda one: (predicted[one.text], one.text))
    return tuple(one for one in ranked if predicted[one.text] <= limit)[:_MAX_CANDIDATES]
