"""Which nodes work on integers and which in float: the fastest choice within an accuracy budget.

Input -> Output: what each node costs in accuracy (sensitivity) and saves in time (profiles of a
float and of an int8 engine), and a budget -> ``Front`` with the chosen point.
    all on integers -> one node after the other goes to float, the one first whose noise is
    greatest for the time that it saves; a node that saves no time goes before all others
Guarantees: every point of the front was scored, not predicted; the chosen one is the fastest of
those that were measured as whole runs, uniform int8 among them where it keeps the budget.
Not here: other precisions, scores (score), times by node (latency).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from tilewright.compiler.build import compile as compile_model
from tilewright.compress.calibrate import Progress
from tilewright.compress.data import Feeds, num_rows
from tilewright.compress.job import Job
from tilewright.compress.latency import NodeTimes, node_times
from tilewright.compress.score import Scorer, Scores
from tilewright.compress.simulator import Simulator, settings_of
from tilewright.core.errors import BadOption, UserError
from tilewright.core.plural import plural
from tilewright.report.quantization import Front, FrontPoint, NodeEffect, Sensitivity
from tilewright.runtime.engine import Engine

_FRONT_POINTS = 8  # scored besides those of the search
_RUNS = 7
_MEASURED = 3  # of the points that should be fastest


class BudgetNotMet(UserError):
    """No choice with a node on integers keeps the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What may be lost.

    Attributes:
        max_drop: of the metric, from the float model's.
        min_sqnr_db: of the outputs.
    """

    max_drop: float | None = None
    min_sqnr_db: float | None = None

    def allows(self, base: Scores, found: Scores) -> bool:
        """Whether scores are within."""
        if self.min_sqnr_db is not None and found.sqnr_db < self.min_sqnr_db:
            return False
        if self.max_drop is None:
            return True
        if base.metric is None or found.metric is None:
            raise BadOption(
                "max_drop is of a metric, and there is none",
                remedy="give labels (--labels) or a metric, or use min_sqnr (--min-sqnr)",
            )
        return base.metric - found.metric <= self.max_drop + 1e-12

    def __str__(self) -> str:
        parts = []
        if self.max_drop is not None:
            parts.append(f"metric drops by {self.max_drop:g} at most")
        if self.min_sqnr_db is not None:
            parts.append(f"signal to noise of {self.min_sqnr_db:g} dB at least")
        return ", ".join(parts)


def search(
    job: Job,
    simulator: Simulator,
    scorer: Scorer,
    found: Sensitivity,
    budget: Budget,
    feeds: Feeds,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Front:
    """The front and its fastest point within the budget.

    Args:
        job: the quantisation.
        simulator, scorer: of its model.
        found: the noise of each node.
        budget: what may be lost.
        feeds: of a run to time.
        threads: of the engines that are timed.
        progress: called with (stage, done, total).

    Raises:
        BudgetNotMet: no choice with a node on integers keeps it.
    """
    engines = {
        "float": compile_model(job.model.model(), threads=threads, verify=False),
        "int8": compile_model(job.emit(), threads=threads, verify=False),
    }
    in_float, on_integers = (
        node_times(engine, feeds, simulator.nodes) for engine in engines.values()
    )
    path = _Path(
        job=job,
        simulator=simulator,
        scorer=scorer,
        budget=budget,
        order=departures(found, in_float, on_integers),
        in_float=in_float,
        on_integers=on_integers,
        base=scorer(lambda feeds: simulator.run({}, feeds)),
        progress=progress,
    )
    most = len(path.order)
    least = path.least_within()
    if least == most:
        raise _not_met(path, found, budget)
    slower = sum(on_integers.by_node[node] >= in_float.by_node[node] for node in path.order)
    path.point(max(least, slower))  # the fastest, if what was measured adds up
    for count in range(0, most + 1, max(1, most // _FRONT_POINTS)):
        path.point(count)
    counts = sorted(path.points)
    points = tuple(path.points[count] for count in counts)
    names = _candidates(points)
    for index, name in names.items():
        if name not in engines:
            model = job.emit(points[index].float_nodes)
            engines[name] = compile_model(model, threads=threads, verify=False)
    times = _timed(engines, feeds)
    chosen = min(names, key=lambda index: (times[names[index]], index))
    return Front(
        budget=str(budget),
        points=points,
        chosen=chosen,
        optimal=optimal_points(points),
        measured_us={
            "float": times["float"],
            "int8": times["int8"],
            "chosen": times[names[chosen]],
        },
        samples=num_rows(feeds),
    )


def _candidates(points: Sequence[FrontPoint]) -> dict[int, str]:
    """Points within the budget that are worth a measurement, by index, with names of engines.

    Sums of nodes do not know what a node in float costs those around it on integers: so the point
    with the fewest nodes in float is among them.
    """
    within = [index for index, point in enumerate(points) if point.within and point.num_int8]
    fastest = sorted(within, key=lambda index: points[index].predicted_us)[:_MEASURED]
    chosen = dict.fromkeys([within[0], *fastest])
    return {index: f"{index}" if points[index].float_nodes else "int8" for index in sorted(chosen)}


def departures(found: Sensitivity, in_float: NodeTimes, on_integers: NodeTimes) -> tuple[str, ...]:
    """Nodes in the order in which they go to float."""

    def rank(one: NodeEffect) -> tuple[bool, float]:
        saved_us = in_float.by_node[one.node] - on_integers.by_node[one.node]
        return saved_us > 0, -one.noise / saved_us if saved_us > 0 else -one.noise

    return tuple(one.node for one in sorted(found.nodes, key=rank))


@dataclass(slots=True, kw_only=True)
class _Path:
    """Points on the way from integers to float; each is scored once."""

    job: Job
    simulator: Simulator
    scorer: Scorer
    budget: Budget
    order: Sequence[str]
    in_float: NodeTimes
    on_integers: NodeTimes
    base: Scores
    progress: Progress | None
    points: dict[int, FrontPoint] = field(default_factory=dict)

    def point(self, count: int) -> FrontPoint:
        """With the first ``count`` nodes of the order in float."""
        if count not in self.points:
            if self.progress is not None:
                self.progress("search", len(self.points), 0)
            self.points[count] = self._scored(tuple(self.order[:count]))
        return self.points[count]

    def least_within(self) -> int:
        """The fewest nodes in float that keep the budget, if more never do worse."""
        low, high = 0, len(self.order)
        while low < high:
            middle = (low + high) // 2
            if self.point(middle).within:
                high = middle
            else:
                low = middle + 1
        return low

    def _scored(self, left: tuple[str, ...]) -> FrontPoint:
        settings = settings_of(self.job.plan, self.job.recipe(left))
        scores = self.scorer(lambda feeds: self.simulator.run(settings, feeds))
        saved = self.in_float.by_node
        kept = set(self.order) - set(left)
        gain_us = sum(saved[node] - self.on_integers.by_node[node] for node in kept)
        return FrontPoint(
            num_int8=len(kept),
            float_nodes=left,
            sqnr_db=scores.sqnr_db,
            metric=scores.metric,
            predicted_us=self.in_float.total_us - gain_us,
            size_bytes=_weight_bytes(self.job, kept),
            within=self.budget.allows(self.base, scores),
        )


def _weight_bytes(job: Job, on_integers: set[str]) -> int:
    return sum(
        layer.weights.size * (1 if layer.node in on_integers else layer.weights.itemsize)
        for layer in job.plan.layers
    )


def optimal_points(points: Sequence[FrontPoint]) -> tuple[int, ...]:
    """Indices of points that no other beats: at least as good in all, better in one."""

    def goods(point: FrontPoint) -> tuple[float, float, float]:
        accuracy = point.sqnr_db if point.metric is None else point.metric
        return accuracy, -point.predicted_us, -point.size_bytes

    def beats(one: FrontPoint, other: FrontPoint) -> bool:
        pairs = list(zip(goods(one), goods(other), strict=True))
        return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)

    return tuple(
        index
        for index, point in enumerate(points)
        if not any(beats(other, point) for other in points)
    )


def _not_met(path: _Path, found: Sensitivity, budget: Budget) -> BudgetNotMet:
    """What came closest, and the nodes in the way."""
    tried = [point for point in path.points.values() if point.num_int8]
    closest = max(tried, key=lambda point: (point.metric or 0.0, point.sqnr_db))
    reached = f"{closest.sqnr_db:.1f} dB"
    if closest.metric is not None and path.base.metric is not None:
        reached = f"a drop of {path.base.metric - closest.metric:g}, {reached}"
    limiting = ", ".join(one.node for one in found.nodes[:3])
    return BudgetNotMet(
        f"nothing can work on integers with a {budget}: the closest point has "
        f"{plural(closest.num_int8, 'node')} on integers and {reached}; "
        f"most noise is of {limiting}",
        remedy="allow more, give more calibration data, or try calibration='mse'",
    )


def _timed(engines: Mapping[str, Engine], feeds: Feeds) -> dict[str, float]:
    """The least time of whole runs, in turns."""
    best: dict[str, float] = {}
    runs: list[tuple[str, Callable[[Any], Any]]] = [
        (name, engine.run) for name, engine in engines.items()
    ]
    for number in range(_RUNS + 1):
        for name, run in runs:
            start = perf_counter()
            run(feeds)
            spent_us = (perf_counter() - start) * 1e6
            if number:  # the first warms up
                best[name] = min(best.get(name, spent_us), spent_us)
    return best
