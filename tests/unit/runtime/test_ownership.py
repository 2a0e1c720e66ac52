"""Which results are handed over, and which are copied."""

from __future__ import annotations

import numpy as np

from tilewright.core.dtypes import FLOAT32
from tilewright.runtime.ownership import copied, handed_over
from tilewright.runtime.program import Program, Reshape, Segment, Step, TensorSpec
from unit.runtime.programs import op, spec


def segment(*names: str, aliases: dict[str, str] | None = None) -> Segment:
    outputs = tuple(spec(name, 2) for name in names)
    return Segment(calls=(), inputs=(), outputs=outputs, internal=(), aliases=aliases or {})


def view(source: str, target: str) -> Reshape:
    return Reshape(source=source, target=spec(target, 2, 1))


def outputs(steps: list[Step], *names: str) -> dict[str, bool]:
    found = tuple(TensorSpec(name=name, dtype=FLOAT32, shape=None) for name in names)
    program = Program(inputs=(spec("x", 2),), outputs=found, steps=tuple(steps))
    return dict(zip(names, handed_over(program), strict=True))


def test_what_segments_write_is_handed_over() -> None:
    assert outputs([segment("a", "b")], "a", "b") == {"a": True, "b": True}


def test_inputs_constants_and_their_views_are_copied() -> None:
    steps: list[Step] = [view("x", "flat"), view("w", "flat_w"), view("flat_w", "flat_w2")]
    found = outputs(steps, "x", "w", "flat", "flat_w", "flat_w2")
    assert not any(found.values())


def test_host_steps_may_give_what_they_were_given() -> None:
    assert outputs([op("Identity", "x", spec("same", 2))], "same") == {"same": False}


def test_only_one_result_gets_the_memory_that_several_share() -> None:
    steps: list[Step] = [segment("a"), view("a", "b"), view("b", "c")]
    assert outputs(steps, "a", "b", "c") == {"a": True, "b": False, "c": False}
    assert outputs(steps, "c", "a") == {"c": True, "a": False}
    program = Program(inputs=(), outputs=(spec("a", 2), spec("a", 2)), steps=tuple(steps))
    assert handed_over(program) == (True, False)


def test_copies_are_deep_enough() -> None:
    x = np.zeros(3, np.float32)
    pair = copied([x, (x, None)])
    assert isinstance(pair[1], list)
    assert not np.may_share_memory(pair[0], x)
    assert not np.may_share_memory(pair[1][0], x)
    assert pair[1][1] is None
    assert copied(None) is None
    assert not np.may_share_memory(copied({"a": x})["a"], x)
    turned = np.zeros((2, 3)).T
    assert not np.may_share_memory(copied(turned), turned)
