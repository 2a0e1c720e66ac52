"""Which nodes work on integers and which in float: the fastest choice within an accuracy budget.

Input -> Output: what each node costs in accuracy (sensitivity) and saves in time (profiles of a
float and of an int8 engine), and a budget -> ``Front`` with the chosen point.
    all on integers -> one node after the other goes to float, the one first whose noise is
    greatest for the time that it saves; a node that saves no time goes before all others
Guarantees: every point of the front was scored, not predicted, by an engine of what would be
written for it; the chosen one is the fastest of those that were measured as whole runs, uniform
int8 among them where it keeps the budget.
Not here: other precisions, scores (score), times by node (latency), choices beside the path
(moves).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.compress.calibrate import Progress
from tilewright.compress.clock import Clock, Left
from tilewright.compress.data import Feeds, num_rows
from tilewright.compress.job import Job
from tilewright.compress.latency import NodeTimes, node_times
from tilewright.compress.moves import Descent, descend
from tilewright.compress.score import Scorer, Scores
from tilewright.compress.simulator import Simulator
from tilewright.core.errors import BadOption, UserError
from tilewright.core.plural import plural
from tilewright.report.quantization import Front, FrontPoint, NodeEffect, Sensitivity
from tilewright.runtime.engine import Engine

_FRONT_POINTS = 8  # scored besides those of the search
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
    prove: bool = False,
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
        prove: measure every choice next to the chosen one, and go on from a faster one.
        threads: of the engines that are timed.
        progress: called with (stage, done, total).

    Raises:
        BudgetNotMet: no choice with a node on integers keeps it.
    """
    clock = Clock(job=job, feeds=feeds, threads=threads)
    engines = {"float": clock.in_float(), "int8": clock.engine()}
    in_float, on_integers = (
        node_times(engine, feeds, simulator.nodes) for engine in engines.values()
    )
    path = _Path(
        job=job,
        clock=clock,
        scorer=scorer,
        budget=budget,
        order=departures(found, in_float, on_integers),
        in_float=in_float,
        on_integers=on_integers,
        base=scorer(lambda feeds: simulator.run({}, feeds)),
        progress=progress,
    )
    path.walk(found)
    candidates = _candidates(path.front())
    chosen, measured_us = _fastest(candidates, clock, engines)
    descent = None
    if prove:
        descent = descend(
            clock, chosen, simulator.nodes, lambda left: path.point(left).within, progress
        )
        if descent.left != chosen:
            chosen, measured_us = _fastest({"proven": descent.left}, clock, engines)
    return _front(path, chosen, measured_us, num_rows(feeds), descent)


def _fastest(
    candidates: Mapping[str, Left], clock: Clock, engines: Mapping[str, Engine]
) -> tuple[Left, dict[str, float]]:
    """The fastest candidate by the clock, and times of the float model, of int8, and of it."""
    running = dict(engines)
    for name, left in candidates.items():
        if name not in running:
            running[name] = clock.engine(left)
    times = clock.times(running)
    best = min(candidates, key=lambda name: (times[name], len(candidates[name])))
    return candidates[best], {**{name: times[name] for name in engines}, "chosen": times[best]}


def _front(
    path: _Path,
    chosen: Left,
    measured_us: Mapping[str, float],
    samples: int,
    descent: Descent | None,
) -> Front:
    """What is told of it all."""
    path.point(chosen)
    points = path.front()
    return Front(
        budget=str(path.budget),
        points=points,
        chosen=next(n for n, one in enumerate(points) if frozenset(one.float_nodes) == chosen),
        optimal=optimal_points(points),
        measured_us=measured_us,
        samples=samples,
        moves=() if descent is None else descent.moves,
        steps=0 if descent is None else descent.steps,
    )


def _candidates(points: Sequence[FrontPoint]) -> dict[str, Left]:
    """Choices within the budget that are worth a measurement, by the name of their engine.

    Sums of nodes do not know what a node in float costs those around it on integers: so the point
    with the fewest nodes in float is among them.
    """
    within = [point for point in points if point.within and point.num_int8]
    fastest = sorted(within, key=lambda point: point.predicted_us)[:_MEASURED]
    lefts = dict.fromkeys(frozenset(point.float_nodes) for point in (within[0], *fastest))
    return {f"{len(left)}" if left else "int8": left for left in lefts}


def departures(found: Sensitivity, in_float: NodeTimes, on_integers: NodeTimes) -> tuple[str, ...]:
    """Nodes in the order in which they go to float."""

    def rank(one: NodeEffect) -> tuple[bool, float]:
        saved_us = in_float.by_node[one.node] - on_integers.by_node[one.node]
        return saved_us > 0, -one.noise / saved_us if saved_us > 0 else -one.noise

    return tuple(one.node for one in sorted(found.nodes, key=rank))


@dataclass(slots=True, kw_only=True)
class _Path:
    """Points on the way from integers to float, and beside it; each is scored once."""

    job: Job
    clock: Clock
    scorer: Scorer
    budget: Budget
    order: Sequence[str]
    in_float: NodeTimes
    on_integers: NodeTimes
    base: Scores
    progress: Progress | None
    points: dict[Left, FrontPoint] = field(default_factory=dict)

    def walk(self, found: Sensitivity) -> None:
        """Looks for the fewest nodes in float, and at points from one end to the other.

        Raises:
            BudgetNotMet: only float keeps it.
        """
        most = len(self.order)
        least = self.least_within()
        if least == most:
            raise _not_met(self, found)
        times = (self.in_float.by_node, self.on_integers.by_node)
        slower = sum(times[1][node] >= times[0][node] for node in self.order)
        self.after(max(least, slower))  # the fastest, if what was measured adds up
        for count in range(0, most + 1, max(1, most // _FRONT_POINTS)):
            self.after(count)
        self.after(most)

    def after(self, count: int) -> FrontPoint:
        """With the first ``count`` nodes of the order in float."""
        return self.point(frozenset(self.order[:count]))

    def point(self, left: Left) -> FrontPoint:
        """With some nodes in float."""
        if left not in self.points:
            if self.progress is not None:
                self.progress("search", len(self.points), 0)
            self.points[left] = self._scored(tuple(n for n in self.order if n in left))
        return self.points[left]

    def front(self) -> tuple[FrontPoint, ...]:
        """From all on integers to all in float."""
        points = self.points.values()
        return tuple(sorted(points, key=lambda one: (len(one.float_nodes), one.float_nodes)))

    def least_within(self) -> int:
        """The fewest nodes in float that keep the budget, if more never do worse."""
        low, high = 0, len(self.order)
        while low < high:
            middle = (low + high) // 2
            if self.after(middle).within:
                high = middle
            else:
                low = middle + 1
        return low

    def _scored(self, left: tuple[str, ...]) -> FrontPoint:
        scores = self.scorer(self.clock.engine(frozenset(left)).run)
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


def _not_met(path: _Path, found: Sensitivity) -> BudgetNotMet:
    """What came closest, and the nodes in the way."""
    tried = [point for point in path.points.values() if point.num_int8]
    closest = max(tried, key=lambda point: (point.metric or 0.0, point.sqnr_db))
    reached = f"{closest.sqnr_db:.1f} dB"
    if closest.metric is not None and path.base.metric is not None:
        reached = f"a drop of {path.base.metric - closest.metric:g}, {reached}"
    loudest = sorted(found.nodes, key=lambda one: -one.noise)
    limiting = ", ".join(one.node for one in loudest[:3])
    return BudgetNotMet(
        f"nothing can work on integers with a {path.budget}: the closest point has "
        f"{plural(closest.num_int8, 'node')} on integers and {reached}; "
        f"most noise is of {limiting}",
        remedy="allow more, give more calibration data, or try calibration='mse'",
    )
