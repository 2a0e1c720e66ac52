"""Batches from the host through a GPU: copies in, kernels and copies out at the same time.

Input -> Output: an executor, a program of one segment, checked batches -> results in order.
    copy in (stream) -> run (stream) -> copy out (stream) -> collect (host)
Guarantees: what is enqueued is what ``operations`` lists, and that schedule is proven free of races
before the first batch; memory is that of a few batches, however many there are.
Not here: programs with steps on the host between segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.errors import InternalError
from tilewright.runtime.cuda.arrays import Guard
from tilewright.runtime.cuda.driver import bindings, check
from tilewright.runtime.cuda.executor import CudaExecutor
from tilewright.runtime.cuda.graph import new_event
from tilewright.runtime.cuda.memory import Block, Pinned
from tilewright.runtime.cuda.plan import CudaPlan
from tilewright.runtime.hazards import (
    HOST,
    Operation,
    Record,
    Sync,
    Wait,
    Work,
    require_no_races,
    whole,
)
from tilewright.runtime.program import Bind, Program, Segment

Array = npt.NDArray[Any]
Checked = tuple[dict[str, Any], dict[str, int]]  # values by name, sizes
SLOTS = 4  # batches in flight: each kind of work, and one that waits
_IN, _RUN, _OUT = _STREAMS = ("in", "run", "out")
_THREADS = 4
_PART_BYTES = 1 << 20


def operations(number: int, slots: int = SLOTS) -> list[Operation]:
    """What the host does when a batch comes: each kind of work for another one.

    A batch is copied when it comes, and run with the next one: so its copy has most often ended
    before its kernels are enqueued, and nothing on the GPU has to wait.
    """
    return [
        *(collected(number - slots, slots) if number >= slots else ()),
        *copied(number, slots),
        *(launched(number - 1, slots) if number >= 1 else ()),
    ]


def rest(count: int, slots: int = SLOTS) -> list[list[Operation]]:
    """What is left when all batches have come, in parts of which each ends with a result."""
    first, *others = (collected(number, slots) for number in range(max(0, count - slots), count))
    return [[*launched(count - 1, slots), *first], *others]


def copied(number: int, slots: int) -> list[Operation]:
    """The GPU copies inputs; from memory that is not page-locked the driver does it in parts."""
    slot = number % slots
    return [
        Work(name="copy in", stream=_IN, writes=(whole(f"inputs {slot}"),)),
        Record(event=f"in {slot}", stream=_IN),
    ]


def launched(number: int, slots: int) -> list[Operation]:
    """Kernels, and the copy of what they made."""
    slot = number % slots
    inputs, outputs = whole(f"inputs {slot}"), whole(f"outputs {slot}")
    return [
        Wait(event=f"in {slot}", stream=_RUN),
        Work(name="run", stream=_RUN, reads=(inputs,), writes=(outputs, whole("arena"))),
        Record(event=f"run {slot}", stream=_RUN),
        Wait(event=f"run {slot}", stream=_OUT),
        Work(name="copy out", stream=_OUT, reads=(outputs,), writes=(whole(f"results {slot}"),)),
        Record(event=f"out {slot}", stream=_OUT),
    ]


def collected(number: int, slots: int) -> list[Operation]:
    """How the results of a batch get to the caller; its slot is free then."""
    slot = number % slots
    return [
        Sync(event=f"out {slot}"),
        Work(name="collect", stream=HOST, reads=(whole(f"results {slot}"),)),
    ]


@dataclass(slots=True)
class _Slot:
    """The memory of one batch in flight."""

    results: list[Pinned]
    inputs: list[Block]
    outputs: list[Block]
    values: list[Array]  # of the batch, until it has been collected

    @property
    def buffers(self) -> tuple[int, ...]:
        """For the launch, without the word for reports."""
        return tuple(block.address for block in (*self.inputs, *self.outputs))


def can_stream(program: Program) -> bool:
    """Whether a program is one segment, with nothing that reads data on the host."""
    segments = [step for step in program.steps if isinstance(step, Segment)]
    others = [step for step in program.steps if not isinstance(step, Segment | Bind)]
    made = {spec.name for segment in segments for spec in segment.outputs}
    return len(segments) == 1 and not others and all(spec.name in made for spec in program.outputs)


def stream_batches(
    executor: CudaExecutor, program: Program, batches: Iterable[Checked]
) -> Iterator[list[Array]]:
    """Results of each batch in order; see the module's docstring.

    Raises:
        UserError: see ``Engine.run``.
    """
    pipeline: Pipeline | None = None
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="tilewright-collect") as helpers:
        try:
            for values, symbols in batches:
                segment, sizes = executor.sizes_of(program, values, symbols)
                plan = executor.plan(segment, sizes)
                if pipeline is None or pipeline.plan is not plan:
                    if pipeline is not None:
                        yield from pipeline.drain()
                        pipeline.close()
                    pipeline = Pipeline(executor, plan, program, helpers)
                result = pipeline.push(values)
                if result is not None:
                    yield result
            if pipeline is not None:
                yield from pipeline.drain()
        finally:
            if pipeline is not None:
                pipeline.close()


class Pipeline:
    """Batches of one set of sizes.

    Attributes:
        plan: of these sizes.
    """

    def __init__(
        self,
        executor: CudaExecutor,
        plan: CudaPlan,
        program: Program,
        helpers: ThreadPoolExecutor,
    ) -> None:
        require_no_races(schedule(2 * SLOTS + 1))
        self.plan, self._executor, self._helpers = plan, executor, helpers
        executor.device.use()
        self._order = [
            next(k for k, made in enumerate(plan.outputs) if made[0] == spec.name)
            for spec in program.outputs
        ]
        self._streams = {name: executor.take_stream() for name in _STREAMS}
        self._events = {f"{name} {slot}": new_event() for name in _STREAMS for slot in range(SLOTS)}
        self._names = [spec.name for spec in plan.inputs]
        self._sizes = [plan.size_bytes(spec) for spec in plan.segment.outputs]
        self._context = executor.take_context(plan)
        self._context.use_on(self._streams["run"])
        self._slots = [self._slot() for _ in range(SLOTS)]
        self._actions = [self._actions_of(number) for number in range(2 * SLOTS)]
        self._number = 0
        self._result: list[Array] | None = None

    def _slot(self) -> _Slot:
        executor, stream = self._executor, self._streams["in"]
        sizes = [self.plan.size_bytes(spec) for spec in self.plan.inputs]
        made = [size for _, _, _, size in self.plan.outputs]
        return _Slot(
            results=[executor.pinned.take(size) for size in made],
            inputs=[executor.blocks.take(size, stream, "an input") for size in sizes],
            outputs=[executor.blocks.take(size, stream, "an output") for size in made],
            values=[],
        )

    def push(self, values: Mapping[str, Any]) -> list[Array] | None:
        """Takes a batch; gives the results of an earlier one, where one had to make room."""
        number, self._result = self._number, None
        self._number += 1
        slot = self._slots[number % SLOTS]
        slot.values = [np.ascontiguousarray(np.asarray(values[name])) for name in self._names]
        self._executor.device.use()
        # All batches after the first ones do the same, slot by slot.
        again = number if number < 2 * SLOTS else SLOTS + number % SLOTS
        for action in self._actions[again]:
            action()
        return self._result

    def drain(self) -> Iterator[list[Array]]:
        """The results of all batches that are still in flight."""
        count, self._number = self._number, 0
        for part in rest(count) if count else ():
            self._executor.device.use()
            for one in part:
                self._action(one)()
            assert self._result is not None
            yield self._result

    def close(self) -> None:
        """Waits, and gives everything back."""
        driver = bindings()
        for stream in self._streams.values():
            driver.cuStreamSynchronize(stream)
        self._context.used_on = None
        self._executor.release_contexts([self._context])
        for slot in self._slots:
            for block in (*slot.inputs, *slot.outputs):
                block.stream = None
            for pinned in slot.results:
                self._executor.pinned.give_back(pinned)
        self._slots.clear()
        self._executor.release_streams(self._streams.values())
        for event in self._events.values():
            driver.cuEventDestroy(event)

    # --- operations -------------------------------------------------------------------------------

    def _actions_of(self, number: int) -> list[Callable[[], None]]:
        return [self._action(one) for one in operations(number)]

    def _action(self, one: Operation) -> Callable[[], None]:
        """How an operation is done."""
        match one:
            case Work():
                touched = (*one.writes, *one.reads)
                slot = self._slots[int(touched[0].buffer.split()[-1])]
                work = {
                    "copy in": self._copy_in,
                    "run": self._run,
                    "copy out": self._copy_out,
                    "collect": self._collect,
                }
                return partial(work[one.name], slot)
            case Record():
                return partial(_record, self._events[one.event], self._streams[one.stream])
            case Wait():
                return partial(_wait, self._events[one.event], self._streams[one.stream])
            case Sync(event=str(event)):
                return partial(self._await, self._events[event])
        raise InternalError(f"no operation of a pipeline: {one}")

    def _await(self, event: Any) -> None:
        (status,) = bindings().cuEventSynchronize(event)
        if int(status):
            raise self._context.fault(status)

    def _copy_in(self, slot: _Slot) -> None:
        copy, stream = bindings().cuMemcpyHtoDAsync, self._streams["in"]
        for array, block in zip(slot.values, slot.inputs, strict=True):
            if array.nbytes:
                address = array.ctypes.data
                check(copy(block.address, address, array.nbytes, stream), "copying an input")

    def _run(self, slot: _Slot) -> None:
        buffers, stream = slot.buffers, self._streams["run"]
        if self.plan.can_fail:
            buffers += (slot.outputs[-1].report(stream).address,)
        self._context.launch(buffers, stream)

    def _copy_out(self, slot: _Slot) -> None:
        copy, stream = bindings().cuMemcpyDtoHAsync, self._streams["out"]
        for size, block, pinned in zip(self._sizes, slot.outputs, slot.results, strict=True):
            if size:
                check(copy(pinned.address, block.address, size, stream), "copying an output")

    def _collect(self, slot: _Slot) -> None:
        word = slot.outputs[-1].word
        if self.plan.can_fail and word is not None:
            failure = Guard(word, self.plan.segment, slot.outputs[-1]).failure()
            if failure is not None:
                raise failure
        found: list[Array] = []
        parts: list[tuple[Array, Array]] = []
        for (_, shape, dtype, _), pinned in zip(self.plan.outputs, slot.results, strict=True):
            made = np.empty(shape, dtype)
            parts += _parts(made.reshape(-1).view(np.uint8), pinned.bytes[: made.nbytes])
            found.append(made)
        self._move(parts)
        self._result = [found[k] for k in self._order]

    def _move(self, parts: list[tuple[Array, Array]]) -> None:
        """Copies on the host; one processor alone is slower than the bus."""
        if len(parts) <= 1:
            for to, source in parts:
                np.copyto(to, source)
            return
        for done in [self._helpers.submit(np.copyto, to, source) for to, source in parts]:
            done.result()


def schedule(count: int, slots: int = SLOTS) -> list[Operation]:
    """Everything that happens for so many batches."""
    coming = [one for number in range(count) for one in operations(number, slots)]
    return [*coming, *(one for part in rest(count, slots) for one in part)]


def _record(event: Any, stream: int) -> None:
    check(bindings().cuEventRecord(event, stream), "recording an event")


def _wait(event: Any, stream: int) -> None:
    """Nothing where the host sees that it has happened: waits on the GPU cost it time."""
    driver = bindings()
    if int(driver.cuEventQuery(event)[0]):
        check(driver.cuStreamWaitEvent(stream, event, 0), "waiting for an event")


def _parts(to: Array, source: Array) -> list[tuple[Array, Array]]:
    size = max(_PART_BYTES, -(-len(source) // _THREADS))
    cuts = range(0, len(source), size)
    return [(to[start : start + size], source[start : start + size]) for start in cuts]
