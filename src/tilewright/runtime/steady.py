"""The short way of a run: what does not change between runs of the same sizes is kept.

Input -> Output: a program of one segment whose sizes are fixed, plain arrays by name -> arrays by
output name.
Guarantees: results are those of the long way; None for feeds that the long way has more to do
with than to look at them; safe from several threads at once (each run leases a context).
Why: kernels leave nothing of the interpreter in a processor's caches, so that a line of Python
between two runs takes ten times as long as in a loop of its own, and the long way up to 0.2 ms.
Not here: the checks of other feeds (runtime.feeds), programs of several steps (runtime.executor).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.core.dtypes import STRING
from tilewright.runtime.checks import shape_of
from tilewright.runtime.cpu.allocator import address_of, alignment_of, refused
from tilewright.runtime.executor import Executor
from tilewright.runtime.ownership import handed_over
from tilewright.runtime.program import Program, Segment, TensorSpec
from tilewright.runtime.segment_layout import segment_symbols

_PLAIN = 0x1 | 0x100  # NumPy's flags of arrays that are row-major, and aligned


@dataclass(frozen=True, slots=True)
class _Value:
    """A tensor of the caller.

    Attributes:
        number: of its address in what a plan binds.
        alignment, room: of the memory of a result, in bytes.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    number: int
    alignment: int
    room: int


def fixed_segment(program: Program) -> Segment | None:
    """The segment that all runs are, on arrays of the same sizes; None for other programs."""
    match program.steps:
        case (Segment() as segment,):
            fixed = all(map(_is_fixed, program.inputs)) and not segment_symbols(segment)
            return segment if fixed and all(handed_over(program)) else None
    return None


def _is_fixed(spec: TensorSpec) -> bool:
    if spec.container != "tensor" or spec.dtype is STRING or spec.shape is None:
        return False
    return all(dim.is_const for dim in spec.shape)


class SteadyRun:
    """Runs of a program.

    Args:
        executor: of the engine.
        program: inputs and outputs of the engine.
        segment: the program's ``fixed_segment``.

    Raises:
        UserError: as a run that the executor makes.
    """

    def __init__(self, executor: Executor, program: Program, segment: Segment) -> None:
        self._plan = plan = executor.plan(segment, {})
        plan.keep_memory()
        self._run = executor.native.run
        bound = [spec.name for spec in (*plan.inputs, *segment.outputs)]
        numbers = {name: number for number, name in enumerate(bound)}
        self._count = len(bound)
        # An input that nothing reads is looked at as well; its address goes to a place of its own.
        self._inputs = [_value(spec, numbers.get(spec.name, len(bound))) for spec in program.inputs]
        self._outputs = [_value(spec, numbers[spec.name]) for spec in program.outputs]

    def __call__(self, feeds: dict[str, Any]) -> dict[str, Any] | None:
        """Arrays by output name; None where the feeds are not plain arrays as they are declared.

        Raises:
            OutOfMemory: a result does not fit into this machine.
            OutOfRange: an index in the data lies outside of its tensor.
            ShapeMismatch: a size of the model can never fit.
        """
        if len(feeds) != len(self._inputs):
            return None
        addresses = [0] * (self._count + 1)
        for value in self._inputs:
            array = feeds.get(value.name)
            if (
                type(array) is not np.ndarray
                or array.dtype is not value.dtype
                or array.shape != value.shape
                or array.flags.num & _PLAIN != _PLAIN
            ):
                return None
            addresses[value.number] = address_of(array)
        results: dict[str, Any] = {}
        for value in self._outputs:
            try:
                block = np.empty(value.room, np.uint8)
            except MemoryError as error:
                raise refused(error, f"the value {value.name}") from error
            address = address_of(block)
            start = -address % value.alignment
            results[value.name] = np.ndarray(value.shape, value.dtype, block, start)
            addresses[value.number] = address + start
        plan = self._plan
        context = plan.lease()
        try:
            plan.bind(context, addresses)
            context.status[0] = 0
            self._run(context)
            failed = context.status.item(0)
        finally:
            plan.release(context)
        if failed:
            raise plan.error(failed)
        return results


def _value(spec: TensorSpec, number: int) -> _Value:
    shape, dtype = shape_of(spec, {}), spec.dtype.numpy
    num_bytes = math.prod(shape) * dtype.itemsize
    alignment = alignment_of(num_bytes)
    return _Value(spec.name, dtype, shape, number, alignment, num_bytes + alignment)
