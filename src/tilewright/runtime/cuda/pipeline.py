"""Batches from the host through a GPU: copies in, kernels and copies out at the same time.

Input -> Output: an executor, a program of one segment, checked batches -> results in order.
    stage (helper) -> copy in (stream) -> run (stream) -> copy out (stream) -> collect (host)
Guarantees: what is enqueued is what ``operations`` lists, and that schedule is proven free of races
before the first batch; memory is that of a few batches, however many there are.
Not here: programs with steps on the host between segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.errors import InternalError
from tilewright.runtime.cuda.arrays import Guard
from tilewright.runtime.cuda.driver import bindings, check
from tilewright.runtime.cuda.executor import CudaExecutor
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
SLOTS = 5  # batches in flight: each kind of work, and one that waits
_HELPER, _IN, _RUN, _OUT = "helper", "in", "run", "out"
_STREAMS = (_IN, _RUN, _OUT)
_THREADS = 4
_PART_BYTES = 1 << 20


def operations(number: int, slots: int = SLOTS) -> list[Operation]:
    """What the host does when a batch comes: each kind of work for another one.

    A batch is staged by a helper when it comes, copied with the next, and run with the one after:
    so its copy has most often ended before its kernels are enqueued.
    """
    return [
        *(collected(number - slots, slots) if number >= slots else ()),
        *staged(number, slots),
        *(copied(number - 1, slots) if number >= 1 else ()),
        *(launched(number - 2, slots) if number >= 2 else ()),
    ]


def rest(count: int, slots: int = SLOTS) -> list[list[Operation]]:
    """What is left when all batches have come, in parts of which each ends with a result."""
    todo = [*copied(count - 1, slots), *(launched(count - 2, slots) if count >= 2 else ())]
    todo += launched(count - 1, slots)
    first, *others = (collected(number, slots) for number in range(max(0, count - slots), count))
    return [[*todo, *first], *others]


def staged(number: int, slots: int) -> list[Operation]:
    """A helper puts inputs where the GPU copies from."""
    slot = number % slots
    return [
        Work(name="stage", stream=_HELPER, writes=(whole(f"staged {slot}"),)),
        Record(event=f"staged {slot}", stream=_HELPER),
    ]


def copied(number: int, slots: int) -> list[Operation]:
    """The GPU copies them."""
    slot = number % slots
    reads, writes = (whole(f"staged {slot}"),), (whole(f"inputs {slot}"),)
    return [
        Sync(event=f"staged {slot}"),
        Work(name="copy in", stream=_IN, reads=reads, writes=writes),
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

    staged: list[Pinned]
    results: list[Pinned]
    inputs: list[Block]
    outputs: list[Block]
    values: Mapping[str, Any]
    sources: list[tuple[int, int]]  # where each input is copied from: address, bytes
    staging: Future[None] | None = None

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
    with (
        ThreadPoolExecutor(1, thread_name_prefix="tilewright-stage") as stager,
        ThreadPoolExecutor(_THREADS, thread_name_prefix="tilewright-move") as movers,
    ):
        try:
            for values, symbols in batches:
                segment, sizes = executor.sizes_of(program, values, symbols)
                plan = executor.plan(segment, sizes)
                if pipeline is None or pipeline.plan is not plan:
                    if pipeline is not None:
                        yield from pipeline.drain()
                        pipeline.close()
                    pipeline = Pipeline(executor, plan, program, (stager, movers))
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
        helpers: tuple[ThreadPoolExecutor, ThreadPoolExecutor],
    ) -> None:
        require_no_races(schedule(2 * SLOTS + 1))
        self.plan, self._executor, (self._helpers, self._movers) = plan, executor, helpers
        executor.device.use()
        self._order = [
            next(k for k, made in enumerate(plan.outputs) if made[0] == spec.name)
            for spec in program.outputs
        ]
        driver = bindings()
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self._streams = {
            name: int(check(driver.cuStreamCreate(flags), "making a stream")) for name in _STREAMS
        }
        timing_off = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        self._events = {
            f"{name} {slot}": check(driver.cuEventCreate(timing_off), "making an event")
            for name in _STREAMS
            for slot in range(SLOTS)
        }
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
            staged=[executor.pinned.take(size) for size in sizes],
            results=[executor.pinned.take(size) for size in made],
            inputs=[executor.blocks.take(size, stream, "an input") for size in sizes],
            outputs=[executor.blocks.take(size, stream, "an output") for size in made],
            values={},
            sources=[],
        )

    def push(self, values: Mapping[str, Any]) -> list[Array] | None:
        """Takes a batch; gives the results of an earlier one, where one had to make room."""
        number, self._result = self._number, None
        self._number += 1
        self._slots[number % SLOTS].values = values
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
        for slot in self._slots:
            if slot.staging is not None:
                wait([slot.staging])
        for stream in self._streams.values():
            driver.cuStreamSynchronize(stream)
        self._context.used_on = None
        self._executor.release_contexts([self._context])
        for slot in self._slots:
            for block in (*slot.inputs, *slot.outputs):
                block.stream = None
            for pinned in (*slot.staged, *slot.results):
                self._executor.pinned.give_back(pinned)
        self._slots.clear()
        for stream in self._streams.values():
            driver.cuStreamDestroy(stream)
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
                    "stage": self._submit,
                    "copy in": self._copy_in,
                    "run": self._run,
                    "copy out": self._copy_out,
                    "collect": self._collect,
                }
                return partial(work[one.name], slot)
            case Record(event=event, stream=stream) if stream == _HELPER:
                return _nothing  # the future of its work is the event
            case Sync(event=str(event)) if event.startswith("staged"):
                return partial(self._await_stage, self._slots[int(event.split()[-1])])
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

    def _await_stage(self, slot: _Slot) -> None:
        if slot.staging is not None:
            slot.staging.result()

    def _submit(self, slot: _Slot) -> None:
        slot.staging = self._helpers.submit(self._stage, slot)

    def _stage(self, slot: _Slot) -> None:
        """Puts inputs where the GPU copies from at full speed, unless they lie there."""
        values = slot.values
        slot.sources.clear()
        self._executor.device.use()
        parts: list[tuple[Array, Array]] = []
        for spec, pinned in zip(self.plan.inputs, slot.staged, strict=True):
            rows = np.ascontiguousarray(np.asarray(values[spec.name]))
            if is_pinned(rows):
                slot.sources.append((rows.ctypes.data, rows.nbytes))
                continue
            slot.sources.append((pinned.address, rows.nbytes))
            source, place = rows.reshape(-1).view(np.uint8), pinned.bytes[: rows.nbytes]
            parts += _parts(place, source)
        self._move(parts)

    def _copy_in(self, slot: _Slot) -> None:
        for (address, size), block in zip(slot.sources, slot.inputs, strict=True):
            if size:
                check(
                    bindings().cuMemcpyHtoDAsync(block.address, address, size, self._streams["in"]),
                    "copying an input to the GPU",
                )

    def _run(self, slot: _Slot) -> None:
        buffers, stream = slot.buffers, self._streams["run"]
        if self.plan.can_fail:
            buffers += (slot.outputs[-1].report(stream).address,)
        self._context.launch(buffers, stream)

    def _copy_out(self, slot: _Slot) -> None:
        for (_, shape, dtype, _), block, pinned in zip(
            self.plan.outputs, slot.outputs, slot.results, strict=True
        ):
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            if size:
                check(
                    bindings().cuMemcpyDtoHAsync(
                        pinned.address, block.address, size, self._streams["out"]
                    ),
                    "copying an output from the GPU",
                )

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
        for done in [self._movers.submit(np.copyto, to, source) for to, source in parts]:
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


def _nothing() -> None:
    """Done by something else."""


def _parts(to: Array, source: Array) -> list[tuple[Array, Array]]:
    size = max(_PART_BYTES, -(-len(source) // _THREADS))
    cuts = range(0, len(source), size)
    return [(to[start : start + size], source[start : start + size]) for start in cuts]


def is_pinned(array: Array) -> bool:
    """Whether an array lies in page-locked memory, by the driver's own knowledge."""
    driver = bindings()
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    status, kind = driver.cuPointerGetAttribute(attribute, array.ctypes.data)
    return not int(status) and int(kind) == int(driver.CUmemorytype.CU_MEMORYTYPE_HOST)
