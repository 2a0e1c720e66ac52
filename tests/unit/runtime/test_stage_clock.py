"""Times of stages: one for each, also of kernels that run in steps."""

from __future__ import annotations

import numpy as np

from tilewright.runtime.profile import all_calls
from unit.compiler.models import compiled, feeds_of, network
from unit.compiler.test_determinism import everything


def test_every_stage_takes_time_and_they_add_up_to_less_than_the_run() -> None:
    engine = compiled(network(), verify=False)
    clock = engine.stage_clock(feeds_of())
    times = clock.run()
    stages = [len(call.stages) for call in all_calls(engine.program)]
    assert list(np.diff(clock.offsets)) == stages
    assert times.shape == (sum(stages),)
    assert (times > 0).all()
    assert times.sum() < clock.run_ns


def test_kernels_in_steps_and_loops_are_added_up() -> None:
    engine = compiled(everything(), verify=False)
    clock = engine.stage_clock({"x": np.ones((3, 8), np.float32)})
    assert any(call.steps is not None for call in clock.calls) or len(clock.calls) > 5
    assert clock.run().shape == (clock.offsets[-1],)
    assert (clock.run() >= 0).all()


def test_the_sizes_of_a_run() -> None:
    engine = compiled(network(), verify=False)
    assert engine.sizes(feeds_of(2, 6)) == {"batch": 2, "height": 6}
