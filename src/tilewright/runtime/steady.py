"""The short way of a run: what does not change between runs of the same sizes is kept.

Input -> Output: a program of one segment, plain arrays by name -> arrays by output name.
Guarantees: only sizes that the long way has accepted are run, and results are those of the long
way; None for feeds that it has more to do with than to look at them; safe from several threads at
once (each run leases a context).
Why: kernels leave nothing of the interpreter in a processor's caches, so that a line of Python
between two runs takes ten times as long as in a loop of its own, and the long way up to 0.2 ms.
Not here: the checks of other feeds (runtime.feeds), programs of several parts (runtime.executor).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.core.dtypes import STRING
from tilewright.runtime.checks import shape_of
from tilewright.runtime.cpu.allocator import address_of, alignment_of, refused
from tilewright.runtime.executor import MAX_PLANS, Executor
from tilewright.runtime.ownership import handed_over
from tilewright.runtime.program import Bind, Program, Segment, TensorArg, TensorSpec
from tilewright.runtime.segment import SegmentPlan

_PLAIN = 0x1 | 0x100  # NumPy's flags of arrays that are row-major, and aligned

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Result:
    """Memory of an output: ``room`` bytes, so that an aligned array fits."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    number: int  # of its address
    alignment: int
    room: int


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What runs of the same shapes need."""

    plan: SegmentPlan
    results: tuple[_Result, ...]


def only_segment(program: Program) -> Segment | None:
    """The segment of a program that does nothing else, but for sizes that follow from sizes."""
    *before, last = program.steps or (None,)
    if not isinstance(last, Segment) or not all(handed_over(program)):
        return None
    plain = all(
        spec.container == "tensor" and spec.dtype is not STRING and spec.shape is not None
        for spec in program.inputs
    )
    from_sizes = all(
        isinstance(step, Bind) and not any(isinstance(arg, TensorArg) for arg in step.args)
        for step in before
    )
    return last if plain and from_sizes else None


class SteadyRuns:
    """Runs of a program, of shapes that were run before.

    Args:
        executor: of the engine.
        program: inputs and outputs of the engine.
        segment: the program's ``only_segment``.
    """

    def __init__(self, executor: Executor, program: Program, segment: Segment) -> None:
        self._executor, self._segment = executor, segment
        self._run = executor.native.run
        self._specs, self._outputs = program.inputs, program.outputs
        read = [spec.name for spec in segment.inputs if spec.name not in executor.constants]
        bound = [*read, *(spec.name for spec in segment.outputs)]
        self._numbers = {name: number for number, name in enumerate(bound)}
        # An input that nothing reads is looked at as well; its address goes to a place of its own.
        self._inputs = [
            (spec.name, spec.dtype.numpy, self._numbers.get(spec.name, len(bound)))
            for spec in program.inputs
        ]
        self._no_addresses = [0] * (len(bound) + 1)
        self._known: dict[Shapes, _Sizes] = {}

    def learn(self, symbols: Mapping[str, int]) -> None:
        """Keeps what a run needs that went the long way.

        Args:
            symbols: all sizes of that run.
        """
        shapes = tuple(shape_of(spec, symbols) for spec in self._specs)
        if shapes in self._known:
            return
        plan = self._executor.plan(self._segment, symbols)
        if not plan.depends_on_sizes:
            plan.keep_memory()
        if len(self._known) >= MAX_PLANS:
            self._known.clear()
        results = tuple(self._result(spec, symbols) for spec in self._outputs)
        self._known[shapes] = _Sizes(plan, results)

    def _result(self, spec: TensorSpec, symbols: Mapping[str, int]) -> _Result:
        shape, dtype = shape_of(spec, symbols), spec.dtype.numpy
        num_bytes = math.prod(shape) * dtype.itemsize
        alignment = alignment_of(num_bytes)
        number = self._numbers[spec.name]
        return _Result(spec.name, dtype, shape, number, alignment, num_bytes + alignment)

    def __call__(self, feeds: dict[str, Any]) -> dict[str, Any] | None:
        """Arrays by output name; None where feeds are not plain arrays of known shapes.

        Raises:
            OutOfMemory: a result, or the arena, does not fit into this machine.
            OutOfRange: an index in the data lies outside of its tensor.
            ShapeMismatch: a size of the model can never fit.
        """
        if len(feeds) != len(self._inputs):
            return None
        # The caller's dict may change meanwhile: ``arrays`` holds what kernels read.
        addresses, arrays, shapes = self._no_addresses.copy(), [], []
        for name, dtype, number in self._inputs:
            array = feeds.get(name)
            if (
                type(array) is not np.ndarray
                # An array that was pickled has a dtype object of its own.
                or (array.dtype is not dtype and array.dtype != dtype)
                or array.flags.num & _PLAIN != _PLAIN
            ):
                return None
            arrays.append(array)
            shapes.append(array.shape)
            addresses[number] = address_of(array)
        known = self._known.get(tuple(shapes))
        if known is None:
            return None
        results: dict[str, Any] = {}
        for result in known.results:
            try:
                block = np.empty(result.room, np.uint8)
            except MemoryError as error:
                raise refused(error, f"the value {result.name}") from error
            address = address_of(block)
            start = -address % result.alignment
            results[result.name] = np.ndarray(result.shape, result.dtype, block, start)
            addresses[result.number] = address + start
        self._launch(known.plan, addresses)
        return results

    def _launch(self, plan: SegmentPlan, addresses: list[int]) -> None:
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
