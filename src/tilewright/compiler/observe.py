"""Every value that an engine writes, not only its outputs: for finding faults.

Input -> Output: an engine and inputs -> values by name, as the engine's own kernels computed them.
Guarantees: the same machine code runs in the same order; only the memory plan differs, since each
value gets memory of its own.
Not here: values inside of loops and branches, and those that fusion keeps in registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.runtime.engine import Engine
from tilewright.runtime.program import (
    Blocked,
    Branch,
    Interpret,
    Program,
    Repeat,
    Reshape,
    Segment,
    Step,
    Sweep,
    TensorSpec,
)


def observe(engine: Engine, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Runs once and returns inputs, outputs and everything that was written in between.

    Raises:
        UserError: as ``Engine.run``.
    """
    program = expose(engine.program)
    stored = {spec.name: spec.stored for spec in program.outputs}
    values = engine.with_program(program).run(feeds)
    return {**feeds, **{name: unblocked(value, stored[name]) for name, value in values.items()}}


def unblocked(value: Any, stored: Blocked | None) -> Any:
    """A value row by row, whatever its layout in memory."""
    if stored is None:
        return value
    blocks = np.moveaxis(value, -1, stored.dim + 1)
    sizes = list(value.shape[:-1])
    sizes[stored.dim] *= stored.block
    part = [slice(None)] * len(sizes)
    part[stored.dim] = slice(stored.size)
    for dim, before, after in stored.border:
        part[dim] = slice(before, sizes[dim] - after)
    return np.ascontiguousarray(blocks.reshape(sizes)[tuple(part)])


def expose(program: Program) -> Program:
    """The program with every value of its outermost steps among the outputs."""
    steps = tuple(_open(step) for step in program.steps)
    wanted = {spec.name: spec for spec in program.outputs}
    for step in steps:
        wanted.update((spec.name, spec) for spec in _written(step) if spec.name not in wanted)
    return Program(inputs=program.inputs, outputs=tuple(wanted.values()), steps=steps)


def _open(step: Step) -> Step:
    if not isinstance(step, Segment):
        return step
    used = {name for call in step.calls if not call.guards for name in call.buffers}
    inner = tuple(spec for spec in step.internal if spec.name in used)
    rest = tuple(spec for spec in step.internal if spec.name not in used)
    return replace(step, outputs=(*step.outputs, *inner), internal=rest)


def _written(step: Step) -> tuple[TensorSpec, ...]:
    match step:
        case Segment():
            return step.outputs
        case Interpret() | Branch() | Repeat() | Sweep():
            return tuple(spec for spec in step.outputs if spec is not None)
        case Reshape():
            return (step.target,)
    return ()
