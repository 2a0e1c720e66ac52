"""A segment on a GPU for one set of sizes: where its buffers lie and what is launched.

Input -> Output: a ``Segment``, sizes -> offsets in the arena, launches, the schedule that the
hazard check sees.
Guarantees: offsets are multiples of 256 bytes; what is launched with an empty grid is left out; the
schedule is free of races.
Not here: memory and launching (context), machine code (modules).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from tilewright.core.errors import InternalError
from tilewright.runtime.arena import Lifetime, plan
from tilewright.runtime.checks import failing, shape_of
from tilewright.runtime.cuda.memory import size_class
from tilewright.runtime.hazards import Operation, Span, Work, require_no_races, whole
from tilewright.runtime.program import KernelCall, Launch, Segment, TensorSpec

Array = npt.NDArray[Any]
ALIGNMENT = 256
STREAM = "compute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One launch: function, shape, the buffers (by root name) and numbers that it gets."""

    call: KernelCall
    number: int
    launch: Launch
    grid: tuple[int, int, int]
    buffers: tuple[str, ...]
    dims: tuple[int, ...]
    step: int

    @property
    def text(self) -> str:
        """For errors."""
        x, y, z = self.grid
        blocks = f"{x} x {y} x {z} blocks of {self.launch.threads} threads"
        return f"{self.launch.symbol} of {self.call.name} ({blocks}, sizes {list(self.dims)})"


class CudaPlan:
    """A segment for fixed sizes.

    Attributes:
        sizes: of all symbols.
        inputs: what each run gives; constants are on the GPU already.
        outputs: what each run makes, in memory of its own: name, shape, type, size of its block.
        shapes: of both.
        offsets: of values inside, in a context's arena of ``arena_bytes``.
        steps: launches in order.
        can_fail: whether a kernel checks indices that it reads.
    """

    def __init__(
        self, segment: Segment, sizes: Mapping[str, int], constants: Mapping[str, Array]
    ) -> None:
        if failing(segment.checks, sizes) or any(call.guards for call in segment.calls):
            raise InternalError("calls of a GPU have no guards")
        self.segment, self.sizes = segment, sizes
        self.inputs = [spec for spec in segment.inputs if spec.name not in constants]
        self.shapes = {s.name: shape_of(s, sizes) for s in (*self.inputs, *segment.outputs)}
        self.outputs = [
            (s.name, self.shapes[s.name], s.dtype.numpy, size_class(self.size_bytes(s)))
            for s in segment.outputs
        ]
        self.offsets, arena_bytes = plan(self._lifetimes())
        self.arena_bytes = _aligned(arena_bytes)
        self.steps = [
            step
            for number, call in enumerate(segment.calls)
            for step in self.steps_of(call, number)
        ]
        self.can_fail = any(step.launch.checked for step in self.steps)
        require_no_races(self.schedule())

    def size_bytes(self, spec: TensorSpec) -> int:
        """Bytes of a buffer."""
        return math.prod(self.shape_of(spec)) * spec.dtype.storage_bytes

    def shape_of(self, spec: TensorSpec) -> tuple[int, ...]:
        """The shape of a buffer."""
        return shape_of(spec, self.sizes)

    def root(self, name: str) -> str:
        """The buffer whose memory a name stands for."""
        while name in self.segment.aliases:
            name = self.segment.aliases[name]
        return name

    def spans(self) -> dict[str, Span]:
        """Where each value lies, for the hazard check; constants are left out."""
        spans = {spec.name: whole(spec.name) for spec in (*self.inputs, *self.segment.outputs)}
        for spec in self.segment.internal:
            if spec.name in self.offsets:
                start = self.offsets[spec.name]
                stop = start + max(1, self.size_bytes(spec))
                spans[spec.name] = Span(buffer="arena", start=start, stop=stop)
        return spans

    def schedule(self) -> list[Operation]:
        """What a run enqueues, for the hazard check."""
        spans = self.spans()
        operations: list[Operation] = [
            Work(name=f"copy {spec.name} in", stream=STREAM, writes=(spans[spec.name],))
            for spec in self.inputs
        ]
        for step in self.steps:
            touched = tuple(spans[name] for name in step.buffers if name in spans)
            name = f"{step.launch.symbol} of {step.call.name}"
            operations.append(Work(name=name, stream=STREAM, reads=touched, writes=touched))
        operations += [
            Work(name=f"copy {spec.name} out", stream=STREAM, reads=(spans[spec.name],))
            for spec in self.segment.outputs
        ]
        return operations

    def _lifetimes(self) -> list[Lifetime]:
        """As on the CPU; sizes are rounded up so that every offset is aligned for a GPU."""
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for number, call in enumerate(self.segment.calls):
            for name in map(self.root, call.buffers):
                first.setdefault(name, number)
                last[name] = number
        return [
            Lifetime(spec.name, _aligned(self.size_bytes(spec)), first[spec.name], last[spec.name])
            for spec in self.segment.internal
            if spec.name in first
        ]

    def steps_of(self, call: KernelCall, number: int) -> list[Step]:
        """The launches of a call, which need not be the segment's own."""
        buffers = tuple(map(self.root, call.buffers))
        dims = tuple(dim.evaluate(self.sizes) for dim in call.dims)
        count = 1 if call.steps is None else call.steps.evaluate(self.sizes)
        found = []
        for step in range(count):
            for stage in call.stages:
                if not isinstance(stage, Launch):
                    raise InternalError("the segment was not compiled for a GPU")
                x, y, z = (max(0, dim.evaluate(self.sizes)) for dim in stage.grid)
                if x and y and z:
                    found.append(
                        Step(
                            call=call,
                            number=number,
                            launch=stage,
                            grid=(x, y, z),
                            buffers=buffers,
                            dims=dims,
                            step=step,
                        )
                    )
        return found


def _aligned(size: int) -> int:
    return -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
