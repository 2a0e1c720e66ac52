"""The search finds what is planted, keeps to its budget, and does not believe a busy machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from tilewright.kernel.schedule import Schedule
from tilewright.tune.rounds import Search, Turn
from tilewright.tune.store import Stage, Timing

SMALL, LARGE = Stage("small", 0), Stage("large", 0)
SCHEDULES = tuple(Schedule(tactic=name) for name in ("one", "two", "three"))
TIMES = {"one": 120.0, "two": 60.0, "three": 80.0}


@dataclass
class Fake:
    """A network of two stages on a machine whose time is counted in rounds.

    ``busy``: rounds in which everything takes twice as long.
    """

    busy: tuple[int, ...] = ()
    interrupted: int = -1
    round_s: float = 1.0
    now: float = 0.0
    rounds: list[dict[str, str]] = field(default_factory=list)
    timings: dict[Stage, dict[str, Timing]] = field(default_factory=dict)
    reports: list[tuple[float, float]] = field(default_factory=list)

    def time(self, trial: Mapping[Stage, Schedule]) -> Mapping[Stage, list[Turn]]:
        number = len(self.rounds)
        self.rounds.append({stage.kernel: schedule.tactic for stage, schedule in trial.items()})
        self.now += self.round_s
        if number == self.interrupted:
            raise KeyboardInterrupt
        slow = 2.0 if number in self.busy else 1.0
        formula = {SMALL: 0.1, LARGE: 100.0}
        return {
            stage: [
                Turn(
                    sizes="",
                    us=slow * (TIMES[trial[stage].tactic] if stage in trial else us),
                    formula_us=slow * us,
                    samples=10,
                )
            ]
            for stage, us in formula.items()
        }

    def candidates(self, stage: Stage) -> tuple[Schedule, ...]:
        return SCHEDULES if stage == LARGE else ()

    def winners(self) -> Mapping[Stage, Schedule]:
        known = self.timings.get(LARGE, {})
        if not known:
            return {}
        best = min(known.values(), key=lambda timing: timing.ratio)
        return {LARGE: next(s for s in SCHEDULES if s.text == best.schedule)}

    def keep(self, timings: Mapping[Stage, list[Timing]]) -> None:
        for stage, found in timings.items():
            self.timings.setdefault(stage, {}).update({t.schedule: t for t in found})

    def search(self, budget_s: float | None = None, known: tuple[str, ...] = ()) -> Search:
        return Search(
            bench=self,
            known={LARGE: known},
            keep=self.keep,
            report=lambda spent, total: self.reports.append((spent, total)),
            budget_s=budget_s,
            clock=lambda: self.now,
        )


def texts(fake: Fake) -> set[str]:
    return set(fake.timings.get(LARGE, {}))


def test_every_candidate_is_timed_once_and_the_winner_again() -> None:
    fake = Fake()
    fake.search().run()
    tried = [found["large"] for found in fake.rounds if found]
    assert tried[:3] == ["one", "two", "three"]
    assert set(tried[3:]) == {"two"}
    assert fake.rounds[0] == {}
    assert fake.timings[LARGE][SCHEDULES[1].text].ratio == pytest.approx(0.6)


def test_what_is_known_is_not_timed_again() -> None:
    fake = Fake()
    fake.search(known=tuple(s.text for s in SCHEDULES[:2])).run()
    assert next(found["large"] for found in fake.rounds if found) == "three"


def test_a_stage_that_takes_no_time_is_left_alone() -> None:
    fake = Fake()
    fake.search().run()
    assert all("small" not in found for found in fake.rounds)


def test_a_candidate_that_met_a_busy_machine_is_tried_again() -> None:
    fake = Fake(busy=(2,))
    search = fake.search()
    search.run()
    tried = [found["large"] for found in fake.rounds if found]
    assert tried[:4] == ["one", "two", "three", "two"]
    assert texts(fake) == {schedule.text for schedule in SCHEDULES}
    assert search.num_disturbed == 0


def test_on_a_machine_that_stays_busy_the_search_ends_without_timings() -> None:
    fake = Fake(busy=tuple(range(1, 100)))
    search = fake.search()
    search.run()
    assert texts(fake) == set()
    assert search.num_disturbed == 3


def test_a_budget_ends_the_search_with_time_left_for_the_winners() -> None:
    fake = Fake()
    fake.search(budget_s=4.5).run()
    assert texts(fake) < {schedule.text for schedule in SCHEDULES}
    assert fake.now <= 4.5 + 1.0
    assert all(total <= 4.5 for _, total in fake.reports[:2])


def test_a_budget_for_nothing_times_nothing() -> None:
    fake = Fake()
    fake.search(budget_s=0.5).run()
    assert fake.rounds == [{}]


def test_an_interrupt_keeps_what_was_timed() -> None:
    fake = Fake(interrupted=2)
    with pytest.raises(KeyboardInterrupt):
        fake.search().run()
    assert texts(fake) == {SCHEDULES[0].text}
