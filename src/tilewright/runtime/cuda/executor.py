"""Runs a program whose segments are kernels of a GPU.

Input -> Output: as the executor that it extends; segments run on the GPU, other steps on the host.
Guarantees: safe from several threads (each run has contexts and a stream of its own, or the stream
that its caller named); weights are on the GPU once; values stay on the GPU until a step of the host
reads them; contexts are kept for a bounded number of sizes.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.errors import DeviceFault, OutOfMemory
from tilewright.runtime.cuda.arrays import DeviceArray, Guard, adopt
from tilewright.runtime.cuda.context import CudaContext
from tilewright.runtime.cuda.driver import Device, bindings, check
from tilewright.runtime.cuda.graph import new_stream
from tilewright.runtime.cuda.memory import LEGACY, Block, BlockPool, Pinned, PinnedPool, order
from tilewright.runtime.cuda.modules import Modules
from tilewright.runtime.cuda.plan import CudaPlan
from tilewright.runtime.cuda.weights import Weights
from tilewright.runtime.executor import Executor, Run, Watch
from tilewright.runtime.program import Program, Reshape, Segment, TensorSpec

Array = npt.NDArray[Any]
MAX_CONTEXTS = 16
_VECTOR_BYTES = 16  # kernels read as many at once


@dataclass(slots=True)
class Launched:
    """What a segment of a run was launched with, kept for timing.

    Attributes:
        buffers: addresses of inputs and outputs, which ``arrays`` keep.
        calls: how often the run launched it for the same sizes.
    """

    context: CudaContext
    buffers: tuple[int, ...]
    arrays: tuple[DeviceArray, ...]
    calls: int = 1


@dataclass(slots=True)
class CudaRun(Run):
    """A run on a stream.

    Attributes:
        stream: its handle.
        is_busy: whether something was enqueued that nobody has waited for.
        contexts: what its segments use until they have ended.
        pinned: memory that copies may still be reading.
        guards: reports that nobody has looked at.
    """

    stream: int = LEGACY
    is_busy: bool = False
    contexts: list[CudaContext] = field(default_factory=list)
    pinned: list[Pinned] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)


class CudaExecutor(Executor):
    """Executes the steps of an engine for a GPU.

    Args:
        constants: arrays by name.
        code: machine code by file name.
        device: the GPU.
        lanes: streams that the kernels of one segment may use.
    """

    def __init__(
        self,
        constants: Mapping[str, Array],
        code: Mapping[str, bytes],
        device: Device,
        lanes: int = 1,
    ) -> None:
        super().__init__(constants, None)
        self.lanes = lanes
        device.use()
        self.device = device
        self.modules = Modules(code, device)
        self.blocks, self.pinned = BlockPool(device), PinnedPool()
        self._weights = Weights(self.constants, device)
        self._idle: list[CudaContext] = []
        self._streams: deque[int] = deque()
        self._record: list[Launched] | None = None
        self._guard = Lock()
        weakref.finalize(
            self,
            _free,
            device,
            self._idle,
            self._streams,
            (self._weights, self.modules, self.blocks, self.pinned),
        )

    def watched(self, watch: Watch) -> CudaExecutor:
        """An executor that a profiler watches: it waits for each segment before the next step."""
        other = copy.copy(self)
        other._watch = watch
        return other

    def recorded(self, record: list[Launched]) -> CudaExecutor:
        """An executor that notes what it launches; give each back when it was looked at."""
        other = copy.copy(self)
        other._record = record
        return other

    def give_back(self, launched: Launched) -> None:
        """Lets other runs use the context of a launch that was recorded."""
        self.release_contexts([launched.context])

    def sizes_of(
        self, program: Program, values: dict[str, Any], symbols: dict[str, int]
    ) -> tuple[Segment, dict[str, int]]:
        """The one segment of a program that ``can_stream``, and all sizes of a run."""
        run = CudaRun(values, symbols)
        found: list[Segment] = []
        for step in program.steps:
            if isinstance(step, Segment):
                found.append(step)
            else:
                self._host_step(step, run)
        return found[0], run.symbols

    def make_plan(self, segment: Segment, sizes: Mapping[str, int]) -> CudaPlan:
        """A plan for new sizes."""
        return CudaPlan(segment, dict(sizes), self.constants)

    # --- whole runs -------------------------------------------------------------------------------

    def run(
        self, program: Program, values: dict[str, Any], symbols: dict[str, int]
    ) -> tuple[list[Any], dict[str, int]]:
        """The outputs, on the host, and all sizes."""
        with self._stream() as stream:
            run = CudaRun(values, symbols, stream=stream)
            with self._ended(run):
                self.execute(program, run)
                return self.outputs(program, run), run.symbols

    def run_on_device(
        self,
        program: Program,
        values: dict[str, Any],
        symbols: dict[str, int],
        stream: int | None,
        ours: Sequence[bool],
    ) -> list[DeviceArray]:
        """The outputs, on the GPU.

        Args:
            stream: where everything is enqueued; None has it done when this returns.
            ours: of each output, whether it is in memory that only this run uses.
        """
        if stream is None:
            with self._stream() as own:
                run = CudaRun(values, symbols, stream=own)
                with self._ended(run):
                    self.execute(program, run)
                    found = self._outputs_there(program, run, ours)
            for array in found:
                array.stream = array.owner.stream = None
            return found
        self.device.use()
        run = CudaRun(values, symbols, stream=stream)
        try:
            self.execute(program, run)
            found = self._outputs_there(program, run, ours)
        except BaseException:
            self._settle(run)
            raise
        if run.pinned:
            self._settle(run)
            return found
        self.release_contexts(run.contexts)
        if run.guards:
            for array in found:
                array.guards = tuple(run.guards)
        return found

    def adopt(self, feeds: Mapping[str, Any], stream: int | None = None) -> dict[str, Any]:
        """Feeds, with the arrays of other libraries on this GPU as ours.

        Raises:
            ShapeMismatch: one is on another GPU, or cannot be shared.
        """
        found = dict(feeds)
        waits = False
        for name, value in feeds.items():
            kind = type(value)
            if kind is DeviceArray or kind is np.ndarray:
                continue
            array = adopt(value, self.device, stream, name)
            if array is not None:
                found[name], waits = array, True
        if waits and stream is None:
            self.device.use()
            check(bindings().cuStreamSynchronize(LEGACY), "waiting for the inputs")
        return found

    def to_device(self, array: Array, name: str = "an array") -> DeviceArray:
        """A copy on the GPU, complete when this returns."""
        self.device.use()
        block = self.blocks.take(array.nbytes, None, name)
        rows = np.ascontiguousarray(array)
        if rows.nbytes:
            check(
                bindings().cuMemcpyHtoD(block.address, rows.ctypes.data, rows.nbytes),
                f"copying {name} to the GPU",
            )
            check(bindings().cuStreamSynchronize(LEGACY), f"copying {name} to the GPU")
        return DeviceArray(block.address, array.shape, array.dtype, self.device, None, block)

    def duplicate(self, address: int, num_bytes: int, stream: int) -> Block:
        """A copy of bytes of the GPU, ready on a stream."""
        block = self.blocks.take(num_bytes, stream, "a copy")
        if num_bytes:
            check(
                bindings().cuMemcpyDtoDAsync(block.address, address, num_bytes, stream),
                "copying on the GPU",
            )
        return block

    def outputs(self, program: Program, run: Run) -> list[Any]:
        """Values of a program's outputs, on the host, copied all at once."""
        assert isinstance(run, CudaRun)
        found = [Executor.value(self, run, spec.name) for spec in program.outputs]
        there = [value for value in found if type(value) is DeviceArray]
        here = iter(self._to_host(there, run))
        return [next(here) if type(value) is DeviceArray else value for value in found]

    def value(self, run: Run, name: str) -> Any:
        """A value that exists by now, on the host."""
        found = super().value(run, name)
        if type(found) is DeviceArray:
            assert isinstance(run, CudaRun)
            (found,) = self._to_host([found], run)
        return found

    # --- contexts and streams ---------------------------------------------------------------------

    def take_context(self, plan: CudaPlan) -> CudaContext:
        """A context of a plan, for one run."""
        with self._guard:
            for place in range(len(self._idle) - 1, -1, -1):
                if self._idle[place].plan is plan:
                    return self._idle.pop(place)
        names = [spec.name for spec in plan.segment.inputs if spec.name in self.constants]
        try:
            return self._new_context(plan, names)
        except OutOfMemory:
            self.release()  # what runs of other sizes have left
            return self._new_context(plan, names)

    def _new_context(self, plan: CudaPlan, names: list[str]) -> CudaContext:
        weights = self._weights.addresses(names)
        return CudaContext(plan, self.device, self.modules, weights, self.lanes)

    def release(self) -> None:
        """Frees the memory of all contexts that are idle, and idle blocks."""
        with self._guard:
            idle = list(self._idle)
            self._idle.clear()
        for context in idle:
            context.close()
        self.blocks.free_idle()

    def release_contexts(self, contexts: list[CudaContext]) -> None:
        """Gives contexts back, which empties the list."""
        with self._guard:
            self._idle.extend(contexts)
            over = len(self._idle) - MAX_CONTEXTS
            dropped = self._idle[:over] if over > 0 else ()
            del self._idle[: len(dropped)]
        contexts.clear()
        for old in dropped:
            old.close()

    @contextmanager
    def _stream(self) -> Iterator[int]:
        """A stream for one run; the GPU is that of the thread."""
        self.device.use()
        stream = self.take_stream()
        yield stream  # after a fault the GPU cannot be used any more, and nothing is given back
        self._streams.append(stream)

    def take_stream(self) -> int:
        """A stream that has nothing to do."""
        try:
            return self._streams.pop()
        except IndexError:
            return int(new_stream())

    def release_streams(self, streams: Iterable[int]) -> None:
        """Gives streams back that have nothing to do."""
        self._streams.extend(streams)

    @contextmanager
    def _ended(self, run: CudaRun) -> Iterator[None]:
        """Waits for a run, also for one that stops half-way."""
        try:
            yield
        except DeviceFault:
            raise
        except BaseException:
            self._settle(run)
            raise
        self._settle(run)

    def _settle(self, run: CudaRun, *, keep: bool = False) -> None:
        """Waits for what was enqueued, and gives back what it used.

        Args:
            keep: leave contexts to whoever has recorded them.

        Raises:
            DeviceFault: a kernel failed.
            OutOfRange: an index in the data lies outside of its tensor.
        """
        if not run.is_busy:
            return
        (status,) = bindings().cuStreamSynchronize(run.stream)
        if int(status):
            if run.contexts:
                raise run.contexts[-1].fault(status)
            check((status,), "copying")
        failures = [guard.failure() for guard in run.guards]
        run.guards.clear()
        for context in run.contexts:
            context.used_on = None
        if keep:
            run.contexts.clear()
        self.release_contexts(run.contexts)
        for pinned in run.pinned:
            self.pinned.give_back(pinned)
        run.pinned.clear()
        run.is_busy = False
        for failure in failures:
            if failure is not None:
                raise failure

    # --- steps ------------------------------------------------------------------------------------

    def _segment(self, segment: Segment, run: Run) -> None:
        assert isinstance(run, CudaRun)
        plan = self.plan(segment, run.symbols)
        context = self.take_context(plan)
        run.contexts.append(context)
        stream, run.is_busy = run.stream, True
        context.use_on(stream)
        arrays = [self._input_there(run, spec) for spec in plan.inputs]
        # Results of the run before were dropped in their order and the last block is handed out
        # first: so each output gets the block it had, and the launches stay as they are.
        blocks = [self.blocks.take_size(o[3], stream, o[0]) for o in reversed(plan.outputs)]
        for name, shape, dtype, _ in plan.outputs:
            block = blocks.pop()
            array = DeviceArray(block.address, shape, dtype, self.device, stream, block)
            run.values[name] = array
            arrays.append(array)
        buffers = tuple([array.address for array in arrays])
        if plan.can_fail:
            word = block.report(stream)
            run.guards.append(Guard(word, segment, block))
            buffers += (word.address,)
        context.launch(buffers, stream)
        if self._record is not None:
            known = next((one for one in self._record if one.context.plan is plan), None)
            self._settle(run, keep=known is None)
            if known is None:
                self._record.append(Launched(context, buffers, tuple(arrays)))
            else:
                known.calls += 1
        elif self._watch is not None:
            self._settle(run)

    def _new(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], stream: int, name: str
    ) -> DeviceArray:
        num_bytes = math.prod(shape) * dtype.itemsize
        block = self.blocks.take(num_bytes, stream, name)
        return DeviceArray(block.address, shape, dtype, self.device, stream, block)

    def _input_there(self, run: CudaRun, spec: TensorSpec) -> DeviceArray:
        """An input of a segment, on the GPU."""
        array = Executor.value(self, run, spec.name)
        if type(array) is not DeviceArray:
            array = self._copy_in(run, spec)
            run.values[spec.name] = array
            return array
        run.guards += array.guards
        if array.stream is not None and array.stream != run.stream:
            order(array.stream, run.stream)
        if array.address % _VECTOR_BYTES and array.nbytes:
            array = self._aligned(run, array)
            run.values[spec.name] = array
        elif isinstance(array.owner, Block) and array.owner.stream != run.stream:
            array.owner.readers.add(run.stream)
        return array

    def _copy_in(self, run: CudaRun, spec: TensorSpec) -> DeviceArray:
        rows = self._input(run, spec)
        there = self._new(rows.shape, rows.dtype, run.stream, spec.name)
        if rows.nbytes:
            pinned = self.pinned.take(rows.nbytes)
            run.pinned.append(pinned)
            pinned.bytes[: rows.nbytes] = rows.reshape(-1).view(np.uint8)
            check(
                bindings().cuMemcpyHtoDAsync(
                    there.address, pinned.address, rows.nbytes, run.stream
                ),
                f"copying {spec.name} to the GPU",
            )
        return there

    def _aligned(self, run: CudaRun, array: DeviceArray) -> DeviceArray:
        """A copy where kernels can read vectors: a part of another array may begin anywhere."""
        block = self.duplicate(array.address, array.nbytes, run.stream)
        return DeviceArray(block.address, array.shape, array.dtype, self.device, run.stream, block)

    def _to_host(self, arrays: Sequence[DeviceArray], run: CudaRun) -> list[Array]:
        """Copies through pinned memory, all of them in flight at once."""
        places = [self.pinned.take(array.nbytes) for array in arrays]
        for array, pinned in zip(arrays, places, strict=True):
            if array.nbytes:
                run.is_busy = True
                check(
                    bindings().cuMemcpyDtoHAsync(
                        pinned.address, array.address, array.nbytes, run.stream
                    ),
                    "copying a result from the GPU",
                )
        self._settle(run)
        found = []
        for array, pinned in zip(arrays, places, strict=True):
            made = np.empty(array.shape, array.dtype)
            made.reshape(-1).view(np.uint8)[:] = pinned.bytes[: array.nbytes]
            found.append(made)
            self.pinned.give_back(pinned)
        return found

    def _outputs_there(
        self, program: Program, run: CudaRun, ours: Sequence[bool]
    ) -> list[DeviceArray]:
        found = []
        for spec, is_ours in zip(program.outputs, ours, strict=True):
            value = run.values.get(spec.name)
            if type(value) is not DeviceArray or not is_ours:
                value = self.to_device(np.asarray(self.value(run, spec.name)), spec.name)
            found.append(value)
        return found

    def _reshape(self, step: Reshape, run: Run) -> None:
        source = Executor.value(self, run, step.source)
        if type(source) is not DeviceArray:
            super()._reshape(step, run)
            return
        shape = tuple(dim.evaluate(run.symbols) for dim in step.target.shape or ())
        run.values[step.target.name] = source.reshape(shape)


def _free(
    device: Device, idle: list[CudaContext], streams: deque[int], others: tuple[Any, ...]
) -> None:
    """Gives back everything on the GPU when an executor is gone."""
    device.use()
    for context in idle:
        context.close()
    for other in others:
        other.close()
    for stream in streams:
        bindings().cuStreamDestroy(stream)
