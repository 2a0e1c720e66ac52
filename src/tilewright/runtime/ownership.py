"""Whose memory a result is.

Input -> Output: a ``Program`` -> for each of its outputs, whether the value may be handed to the
caller as it is; all others are copied.
Guarantees: what is handed over is new in each run and shares no memory with inputs, constants or
other results.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.runtime.program import Program, Reshape, Segment


def handed_over(program: Program) -> tuple[bool, ...]:
    """Of each output in order: True for memory that a segment fills for this output alone.

    Values of other steps may be inputs, constants or views of them; they are not handed over.
    """
    memory: dict[str, str] = {}
    for step in program.steps:
        if isinstance(step, Segment):
            memory.update((spec.name, spec.name) for spec in step.outputs)
        elif isinstance(step, Reshape) and step.source in memory:
            memory[step.target.name] = memory[step.source]
    given: set[str] = set()
    result: list[bool] = []
    for spec in program.outputs:
        own = memory.get(spec.name)
        result.append(own is not None and own not in given)
        given.update(() if own is None else (own,))
    return tuple(result)


def copied(value: Any) -> Any:
    """The value with memory of its own: an array, a list or map of such, or nothing."""
    if isinstance(value, list | tuple):
        return [copied(part) for part in value]
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    return value.copy() if isinstance(value, np.ndarray) else value
