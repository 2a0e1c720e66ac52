"""Batches from the host through a GPU: copies in, kernels and copies out at the same time.

Input -> Output: an executor, a program of one segment, checked batches -> results in order.
    stage (host) -> copy in (stream) -> run (stream) -> copy out (stream) -> collect (host)
Guarantees: what is enqueued is what ``operations`` lists, and that schedule is proven free of races
before the first batch; memory is that of a few batches, however many there are.
Not here: programs with steps on the host between segments.
"""

from __future__ import annotations

from collections import deque
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
SLOTS = 3  # batches in flight: one of each kind of work
_STREAMS = ("in", "run", "out")
_THREADS = 4
_PART_BYTES = 1 << 20


def operations(number: int, slots: int = SLOTS) -> list[Operation]:
    """What happens for one batch, in the order in which the host does and enqueues it."""
    slot = number % slots
    host_in, host_out, there_in, there_out = (
        whole(f"{name} {slot}") for name in ("staged", "results", "inputs", "outputs")
    )
    return [
        *(collection(number - slots, slots) if number >= slots else ()),
        Work(name="stage", stream=HOST, writes=(host_in,)),
        Work(name="copy in", stream="in", reads=(host_in,), writes=(there_in,)),
        Record(event=f"in {slot}", stream="in"),
        Wait(event=f"in {slot}", stream="run"),
        Work(name="run", stream="run", reads=(there_in,), writes=(there_out, whole("arena"))),
        Record(event=f"run {slot}", stream="run"),
        Wait(event=f"run {slot}", stream="out"),
        Work(name="copy out", stream="out", reads=(there_out,), writes=(host_out,)),
        Record(event=f"out {slot}", stream="out"),
    ]


def collection(number: int, slots: int = SLOTS) -> list[Operation]:
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
    sources: list[tuple[int, int]]  # where each input is copied from: address, bytes

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
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="tilewright-stage") as helpers:
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
        require_no_races([one for number in range(2 * SLOTS + 1) for one in operations(number)])
        self.plan, self._executor, self._helpers = plan, executor, helpers
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
        self._pending: deque[int] = deque()
        self._number = 0
        self._collected: list[Array] | None = None

    def _slot(self) -> _Slot:
        executor, stream = self._executor, self._streams["in"]
        sizes = [self.plan.size_bytes(spec) for spec in self.plan.inputs]
        made = [size for _, _, _, size in self.plan.outputs]
        return _Slot(
            staged=[executor.pinned.take(size) for size in sizes],
            results=[executor.pinned.take(size) for size in made],
            inputs=[executor.blocks.take(size, stream, "an input") for size in sizes],
            outputs=[executor.blocks.take(size, stream, "an output") for size in made],
            sources=[],
        )

    def push(self, values: Mapping[str, Any]) -> list[Array] | None:
        """Enqueues a batch; the results of an earlier one, where one had to make room."""
        number, self._collected = self._number, None
        self._perform(operations(number), number, values)
        self._number += 1
        self._pending.append(number)
        if self._collected is not None:
            self._pending.popleft()
        return self._collected

    def drain(self) -> Iterator[list[Array]]:
        """The results of all batches that are still in flight."""
        while self._pending:
            number = self._pending.popleft()
            self._perform(collection(number), number, {})
            assert self._collected is not None
            yield self._collected

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
            for pinned in (*slot.staged, *slot.results):
                self._executor.pinned.give_back(pinned)
        self._slots.clear()
        for stream in self._streams.values():
            driver.cuStreamDestroy(stream)
        for event in self._events.values():
            driver.cuEventDestroy(event)

    # --- operations -------------------------------------------------------------------------------

    def _perform(self, todo: list[Operation], number: int, values: Mapping[str, Any]) -> None:
        driver = bindings()
        slot = self._slots[number % SLOTS]
        work: dict[str, Callable[[], None]] = {
            "stage": partial(self._stage, slot, values),
            "copy in": partial(self._copy_in, slot),
            "run": partial(self._run, slot),
            "copy out": partial(self._copy_out, slot),
            "collect": partial(self._collect, slot),
        }
        self._executor.device.use()
        for one in todo:
            match one:
                case Work():
                    work[one.name]()
                case Record():
                    event, stream = self._events[one.event], self._streams[one.stream]
                    check(driver.cuEventRecord(event, stream), "recording an event")
                case Wait():
                    event, stream = self._events[one.event], self._streams[one.stream]
                    check(driver.cuStreamWaitEvent(stream, event, 0), "waiting for an event")
                case Sync(event=str(name)):
                    (status,) = driver.cuEventSynchronize(self._events[name])
                    if int(status):
                        raise self._context.fault(status)
                case _:
                    raise InternalError(f"no operation of a pipeline: {one}")

    def _stage(self, slot: _Slot, values: Mapping[str, Any]) -> None:
        """Puts inputs where the GPU copies from at full speed, unless they lie there."""
        slot.sources.clear()
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
        self._collected = [found[k] for k in self._order]

    def _move(self, parts: list[tuple[Array, Array]]) -> None:
        """Copies on the host; one processor alone is slower than the bus."""
        if len(parts) <= 1:
            for to, source in parts:
                np.copyto(to, source)
            return
        for done in [self._helpers.submit(np.copyto, to, source) for to, source in parts]:
            done.result()


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
