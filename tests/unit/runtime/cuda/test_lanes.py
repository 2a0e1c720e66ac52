"""Kernels that do not need each other on several streams, by a schedule without races."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tilewright.runtime.cuda.lanes import accesses, lanes_of, operations
from tilewright.runtime.cuda.plan import CudaPlan
from tilewright.runtime.engine import Engine
from tilewright.runtime.hazards import Wait, find_races
from tilewright.runtime.program import KernelCall, Program, Segment
from unit.runtime.cuda.test_executor import N, _call, _engine, _spec, fake  # noqa: F401

pytestmark = pytest.mark.usefixtures("fake")


def _segment(*calls: KernelCall, outputs: tuple[str, ...] = ("y",)) -> Segment:
    names = dict.fromkeys(name for call in calls for name in call.buffers)
    internal = [name for name in names if name not in ("x", *outputs)]
    return Segment(
        calls=calls,
        inputs=(_spec("x", N),),
        outputs=tuple(_spec(name, N) for name in outputs),
        internal=tuple(_spec(name, N) for name in internal),
    )


FORK = (
    _call("double", "x", "a"),
    _call("double", "a", "b"),
    _call("double", "a", "c"),
    _call("double", "b", "d"),
    _call("double", "c", "e"),
    _call("join", "d", "e", "y"),
)


def test_branches_run_beside_each_other_and_meet() -> None:
    lanes = lanes_of(CudaPlan(_segment(*FORK), {"n": 5}, {}), 2)
    assert lanes.of == (0, 0, 1, 0, 1, 1)  # d lies where a was, which c has read
    assert lanes.waits == ((), (), (0,), (2,), (3,), ())
    assert lanes.count == 2


def test_a_chain_stays_on_one_stream() -> None:
    calls = [_call("double", a, b) for a, b in zip("xabc", "abcy", strict=True)]
    lanes = lanes_of(CudaPlan(_segment(*calls), {"n": 5}, {}), 3)
    assert lanes.count == 1
    assert not any(lanes.waits)


def test_bytes_that_two_values_share_are_waited_for() -> None:
    """``b`` and ``d`` may lie where ``a`` was: then they wait for what read it."""
    calls = (
        _call("double", "x", "a"),
        _call("double", "a", "y"),
        _call("double", "x", "b"),
        _call("double", "b", "z"),
    )
    plan = CudaPlan(_segment(*calls, outputs=("y", "z")), {"n": 5}, {})
    assert plan.offsets["a"] == plan.offsets["b"]
    lanes = lanes_of(plan, 2)
    assert find_races(operations(plan.steps, accesses(plan), lanes)) == []
    assert lanes.of[2] == lanes.of[1] or 1 in lanes.waits[2]


@pytest.mark.parametrize("seed", range(30))
def test_random_networks_have_no_race_and_every_wait_counts(seed: int) -> None:
    rng = random.Random(seed)
    values = ["x"]
    calls = []
    for number in range(14):
        sources = rng.sample(values, k=min(len(values), rng.randint(1, 3)))
        calls.append(_call("any", *sources, f"v{number}"))
        values.append(f"v{number}")
    plan = CudaPlan(_segment(*calls, outputs=("v13",)), {"n": 5}, {})
    lanes = lanes_of(plan, rng.randint(2, 4))
    todo = operations(plan.steps, accesses(plan), lanes)
    assert find_races(todo) == []
    for wait in [one for one in todo if isinstance(one, Wait)]:
        assert find_races([one for one in todo if one is not wait])


def test_an_engine_with_streams_gives_the_same() -> None:
    engine = _engine()
    parts = engine.parts
    calls = tuple(call for call in FORK if call.name != "kernel_join")
    program = Program(
        inputs=(_spec("x", N),),
        outputs=(_spec("d", N), _spec("e", N)),
        steps=(_segment(*calls, outputs=("d", "e")),),
    )
    wide = Engine(_with(parts, program, 2))
    x = np.arange(5, dtype=np.float32)
    for _ in range(3):
        found = wide.run({"x": x})
        np.testing.assert_array_equal(found["d"], 8 * x)
        np.testing.assert_array_equal(found["e"], 8 * x)


def _with(parts: Any, program: Program, streams: int) -> Any:
    from dataclasses import replace

    return replace(parts, program=program, info={**parts.info, "streams": streams})
