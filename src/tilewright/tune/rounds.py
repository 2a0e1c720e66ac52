"""Times schedules in rounds: in each one every stage of a network tries its next candidate.

Input -> Output: a ``Bench`` that runs the network with given schedules, a budget -> timings, handed
on after each round.
Method: a round costs one build and some runs of the whole network, however many stages it tries; so
each stage is timed in its place, with the caches and weights of a real run.  The formula's engine
runs in turns with every trial: it is the canary.  Where a stage of it took longer than it has
before, other programs were at work, and the candidate is tried again.  At the end the winners run
together and are timed once more.
Guarantees: what has been timed is handed on even when a later round is interrupted.
Not here: building and running (compiler.tuning), which candidate wins (tune.choice).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from tilewright.kernel.schedule import Schedule
from tilewright.tune.store import Stage, Timing

_DISTURBED = 1.08  # of the formula's least time
_TRIES = 3
_LEAST_SHARE = 0.002  # of a run's time, below which a stage is not worth a trial
_CONFIRMATIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A stage in one round: microseconds as tried and with the formula's schedule."""

    sizes: str
    us: float
    formula_us: float
    samples: int


class Bench(Protocol):
    """Runs the network."""

    def time(self, trial: Mapping[Stage, Schedule]) -> Mapping[Stage, list[Turn]]:
        """Times all stages, those in ``trial`` with other schedules than the formula's."""

    def candidates(self, stage: Stage) -> tuple[Schedule, ...]:
        """What a stage may try, the most promising first."""

    def winners(self) -> Mapping[Stage, Schedule]:
        """The schedules that are best by the timings so far, where they are not the formula's."""


Report = Callable[[float, float], None]  # seconds that have passed, and that it takes in all
Keep = Callable[[Mapping[Stage, list[Timing]]], None]


@dataclass(slots=True)
class Search:
    """One search.

    Attributes:
        known: schedules (texts) that need no timing, by stage.
        keep: is given new timings after each round.
        budget_s: seconds to spend, from ``begun_s`` by the clock (by default: from ``run``); None:
            until every candidate was timed.
        num_rounds, num_timed, num_disturbed: rounds, timings, and candidates that were given up
            because other programs disturbed every try.
    """

    bench: Bench
    known: Mapping[Stage, Collection[str]]
    keep: Keep
    report: Report
    budget_s: float | None = None
    clock: Callable[[], float] = perf_counter
    begun_s: float | None = None
    num_timed: int = 0
    num_rounds: int = 0
    num_disturbed: int = 0
    _best_us: dict[tuple[Stage, str], float] = field(default_factory=dict)
    _tries: dict[tuple[Stage, str], int] = field(default_factory=dict)
    _round_s: float = 0.0

    def run(self) -> None:
        """Tries candidates until none is left or the time is over, then the winners together."""
        start = self.clock() if self.begun_s is None else self.begun_s
        queues = self._queues()
        self._round_s = self.clock() - start  # the formula's engine was built and timed
        while any(queues.values()):
            rounds = max(map(len, queues.values())) + _CONFIRMATIONS
            spent = self.clock() - start
            total = spent + rounds * self._round_s
            if self.budget_s is not None:
                total = min(total, self.budget_s)
                if spent + 2 * self._round_s > self.budget_s:  # one more, and the winners
                    break
            self.report(spent, total)
            self._round(queues)
        self._confirm(start)

    def _queues(self) -> dict[Stage, list[Schedule]]:
        """What is to be tried, for stages that take a part of the time worth mentioning."""
        first = self.bench.time({})
        for stage, turns in first.items():
            for turn in turns:
                self._is_quiet(stage, turn)  # what later rounds are compared with
        took = {stage: sum(turn.formula_us for turn in turns) for stage, turns in first.items()}
        least = _LEAST_SHARE * sum(took.values())
        return {
            stage: [
                schedule
                for schedule in self.bench.candidates(stage)
                if schedule.text not in self.known.get(stage, ())
            ]
            for stage, us in took.items()
            if us >= least
        }

    def _round(self, queues: Mapping[Stage, list[Schedule]]) -> None:
        trial = {stage: queue[0] for stage, queue in queues.items() if queue}
        for stage, settled in self._measure(trial).items():
            schedule = trial[stage].text
            self._tries[stage, schedule] = tries = self._tries.get((stage, schedule), 0) + 1
            if settled or tries == _TRIES:
                queues[stage].pop(0)
                self.num_disturbed += not settled
            else:
                queues[stage].append(queues[stage].pop(0))

    def _confirm(self, start: float) -> None:
        """Winners were lucky more often than losers, so they run again, all together."""
        for _ in range(_CONFIRMATIONS):
            winners = self.bench.winners()
            spent = self.clock() - start
            if not winners or (self.budget_s is not None and spent > self.budget_s):
                return
            self.report(spent, spent + self._round_s)
            self._measure(winners)

    def _measure(self, trial: Mapping[Stage, Schedule]) -> dict[Stage, bool]:
        """Times a trial and hands on what nothing disturbed; which stages that was."""
        begin = self.clock()
        turns = self.bench.time(trial)
        settled: dict[Stage, bool] = {}
        timings: dict[Stage, list[Timing]] = {}
        for stage, schedule in trial.items():
            found = turns.get(stage, [])
            quiet = [self._is_quiet(stage, turn) for turn in found]
            settled[stage] = all(quiet)
            if settled[stage]:
                timings[stage] = [
                    Timing(
                        sizes=turn.sizes,
                        schedule=schedule.text,
                        us=turn.us,
                        formula_us=turn.formula_us,
                        samples=turn.samples,
                    )
                    for turn in found
                ]
        self.num_timed += len(timings)
        self.num_rounds += 1
        self.keep(timings)
        self._round_s = self.clock() - begin
        return settled

    def _is_quiet(self, stage: Stage, turn: Turn) -> bool:
        key = (stage, turn.sizes)
        best = min(turn.formula_us, self._best_us.get(key, turn.formula_us))
        self._best_us[key] = best
        return turn.formula_us <= _DISTURBED * best
