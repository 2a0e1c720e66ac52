"""Which schedule wins, and why the others did not."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.codegen.cpu.space import space
from tilewright.codegen.cpu.target import named_target
from tilewright.kernel.nest import prepare
from tilewright.tune.choice import Choice, choose_schedule
from tilewright.tune.store import Timing
from unit.codegen.cpu.kernels import KERNELS

TARGET = named_target("znver4")
KERNEL = KERNELS["matmul"]()
NEST = prepare(KERNEL, KERNEL.stages[0])
FORMULA, ONE, TWO, *_ = (schedule.text for schedule in space(NEST, TARGET))


def timing(schedule: str, us: float, formula_us: float = 10.0, sizes: str = "m=8") -> Timing:
    return Timing(sizes=sizes, schedule=schedule, us=us, formula_us=formula_us, samples=9)


def chosen(timings: Sequence[Timing]) -> Choice:
    return choose_schedule(NEST, TARGET, timings)


def test_the_fastest_wins_and_the_others_have_reasons() -> None:
    found = chosen([timing(ONE, 8.0), timing(TWO, 6.0)])
    assert found.schedule.text == TWO
    assert found.measured_us == 6.0
    assert found.predicted_us is not None
    reasons = dict(found.rejected)
    assert reasons[ONE] == "took 8.0 us, 1.33 x the chosen one's time"
    assert reasons[FORMULA] == "1.67 x the chosen one's time"
    assert list(reasons)[-1].endswith("other schedules")


def test_a_gain_that_may_be_chance_does_not_count() -> None:
    found = chosen([timing(ONE, 9.9), timing(TWO, 12.0)])
    assert found.schedule.text == FORMULA
    assert found.measured_us == 10.0
    assert dict(found.rejected)[ONE].startswith("took 9.9 us, 0.99 x")


def test_times_count_relative_to_the_formula_s_in_the_same_turns() -> None:
    busy = timing(ONE, 15.0, formula_us=30.0)
    assert chosen([busy, timing(TWO, 9.0)]).schedule.text == ONE


def test_all_sizes_that_were_timed_count() -> None:
    small = timing(ONE, 5.0)
    assert chosen([small]).schedule.text == ONE
    assert chosen([small, timing(ONE, 30.0, sizes="m=800")]).schedule.text == FORMULA


def test_a_schedule_that_the_space_does_not_have_is_never_chosen() -> None:
    found = chosen([timing("contraction(lanes=512)", 0.001), timing(ONE, 9.0)])
    assert found.schedule.text == ONE
    assert found.unknown == 1
    assert "contraction(lanes=512)" not in dict(found.rejected)


def test_equal_times_are_decided_by_name() -> None:
    both = [timing(ONE, 5.0), timing(TWO, 5.0)]
    assert chosen(both) == chosen(both[::-1])
    assert chosen(both).schedule.text == min(ONE, TWO)
