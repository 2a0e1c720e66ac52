"""The launches of a plan as one graph, for buffers that lie where they lie.

Input -> Output: a plan's steps, an address for each buffer -> ``Graph``, launched as one.
Guarantees: when buffers lie elsewhere, only the launches that touch them are changed.
Not here: whose memory the buffers are (context, memory).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.runtime.cuda.driver import bindings, check
from tilewright.runtime.cuda.lanes import Lanes
from tilewright.runtime.cuda.modules import Modules
from tilewright.runtime.cuda.plan import Step
from tilewright.runtime.cuda.tensor_map import tensor_map
from tilewright.runtime.cuda.timing import times_us

Addresses = Mapping[str, int]
STATUS = ""  # the name of the word that kernels report in; no buffer has it


class Launcher:
    """Enqueues single launches."""

    def __init__(self, modules: Modules) -> None:
        self.modules = modules

    def load(self, steps: Sequence[Step]) -> None:
        """Loads the code of all steps: none can be loaded while launches are captured."""
        for step in steps:
            self._function(step)

    def launch(self, step: Step, addresses: Addresses, stream: Any, *, early: bool = True) -> None:
        """Enqueues one kernel.

        Args:
            early: it may begin before the one before it on the stream has ended, where its code
                can wait for that.
        """
        config = self._config(step, stream, early and self.modules.overlap)
        arguments = self._arguments(step, addresses)
        check(
            bindings().cuLaunchKernelEx(config, self._function(step), arguments, 0),
            f"launching {step.text}",
        )

    def update(self, graph: Any, node: Any, step: Step, addresses: Addresses) -> None:
        """Has a launch of a graph use other buffers."""
        params = bindings().CUDA_KERNEL_NODE_PARAMS()
        params.func = self._function(step)
        params.gridDimX, params.gridDimY, params.gridDimZ = step.grid
        params.blockDimX, params.blockDimY, params.blockDimZ = step.launch.threads, 1, 1
        params.sharedMemBytes = step.launch.shared_bytes
        params.kernelParams = self._arguments(step, addresses)
        check(
            bindings().cuGraphExecKernelNodeSetParams(graph, node, params),
            f"changing the buffers of {step.text}",
        )

    def _function(self, step: Step) -> Any:
        launch = step.launch
        return self.modules.function(step.call.kernel, launch.symbol, launch.shared_bytes)

    def _arguments(self, step: Step, addresses: Addresses) -> Any:
        values = (
            *(addresses[name] for name in step.buffers),
            *step.dims,
            step.step,
            addresses[STATUS],
            step.number,
            *(tensor_map(m, addresses[step.buffers[m.buffer]]) for m in step.launch.matrices),
        )
        kinds = (
            *([ctypes.c_void_p] * len(step.buffers)),
            *([ctypes.c_longlong] * (len(step.dims) + 1)),
            ctypes.c_void_p,
            ctypes.c_int,
            *([None] * len(step.launch.matrices)),
        )
        return values, kinds

    def _config(self, step: Step, stream: Any, early: bool) -> Any:
        driver = bindings()
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = step.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = step.launch.threads, 1, 1
        config.sharedMemBytes = step.launch.shared_bytes
        config.hStream = stream
        if early:
            attribute = driver.CUlaunchAttribute()
            kinds = driver.CUlaunchAttributeID
            attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        return config


class Chain:
    """Steps for buffers at several places, one after another, to be timed.

    Args:
        turns: steps, and where their buffers lie.
        stream: a stream that captures them; it must be idle.
    """

    def __init__(
        self, launcher: Launcher, turns: Sequence[tuple[Sequence[Step], Addresses]], stream: Any
    ) -> None:
        self._count = len(turns)

        def enqueue() -> None:
            for steps, addresses in turns:
                for step in steps:
                    launcher.launch(step, addresses, stream)

        launcher.load([step for steps, _ in turns for step in steps])
        graph = capture(stream, enqueue)
        self._launchable = check(bindings().cuGraphInstantiate(graph, 0), "making a graph")
        check(bindings().cuGraphDestroy(graph), "dropping a graph")

    def times_us(self, stream: Any, runs: int, warm_up: int) -> list[float]:
        """Microseconds of one turn, of several runs of all of them."""
        driver = bindings()

        def launch() -> None:
            check(driver.cuGraphLaunch(self._launchable, stream), "timing")

        times = times_us(launch, stream, runs, warm_up)
        return [us / self._count for us in times]

    def close(self) -> None:
        """Drops it; it must not be running."""
        bindings().cuGraphExecDestroy(self._launchable)


class Graph:
    """Steps that are launched as one.

    Args:
        steps: in order.
        streams: idle ones that capture them: the first, and one for each other lane.
        lanes: of the steps; None: all on the first.
    """

    def __init__(
        self,
        launcher: Launcher,
        steps: Sequence[Step],
        addresses: Addresses,
        streams: Sequence[Any],
        lanes: Lanes | None = None,
    ) -> None:
        self._launcher, self._steps = launcher, steps
        self._nodes: list[Any] = []
        launcher.load(steps)
        if lanes is None:
            lanes = Lanes((0,) * len(steps), ((),) * len(steps))
        self._graph = capture(streams[0], lambda: self._enqueue(addresses, streams, lanes))
        self.launchable = check(
            bindings().cuGraphInstantiate(self._graph, 0), "making a graph of the kernels"
        )
        self._bound = dict(addresses)

    def _enqueue(self, addresses: Addresses, streams: Sequence[Any], lanes: Lanes) -> None:
        ends = {k: new_event() for waits in lanes.waits for k in waits}
        forks = [new_event() for _ in range(2 * lanes.count - 2)]
        driver = bindings()
        for number, event in enumerate(forks[: lanes.count - 1], start=1):
            # A stream takes part in a capture once it waits for one that does.
            check(driver.cuEventRecord(event, streams[0]), "capturing the kernels")
            check(driver.cuStreamWaitEvent(streams[number], event, 0), "capturing the kernels")
        busy: set[int] = {0}
        for number, step in enumerate(self._steps):
            lane, waits = lanes.of[number], lanes.waits[number]
            for k in waits:
                check(driver.cuStreamWaitEvent(streams[lane], ends[k], 0), "capturing")
            early = not waits and lane in busy
            self._launcher.launch(step, addresses, streams[lane], early=early)
            self._nodes.append(last_node(streams[lane]))
            busy.add(lane)
            if number in ends:
                check(driver.cuEventRecord(ends[number], streams[lane]), "capturing the kernels")
        for number, event in enumerate(forks[lanes.count - 1 :], start=1):
            check(driver.cuEventRecord(event, streams[number]), "capturing the kernels")
            check(driver.cuStreamWaitEvent(streams[0], event, 0), "capturing the kernels")
        for event in (*ends.values(), *forks):
            check(driver.cuEventDestroy(event), "dropping an event")

    def launch(self, stream: Any) -> None:
        """Enqueues all of them."""
        result = bindings().cuGraphLaunch(self.launchable, stream)
        if result[0]:
            check(result, "launching the kernels")

    def rebind(self, addresses: Addresses) -> None:
        """Has it use other buffers; its earlier launches may still be running."""
        moved = {name for name, address in addresses.items() if self._bound.get(name) != address}
        for step, node in zip(self._steps, self._nodes, strict=True):
            if STATUS in moved or not moved.isdisjoint(step.buffers):
                self._launcher.update(self.launchable, node, step, addresses)
        self._bound = dict(addresses)

    def close(self) -> None:
        """Drops it; it must not be running."""
        bindings().cuGraphExecDestroy(self.launchable)
        bindings().cuGraphDestroy(self._graph)


def capture(stream: Any, enqueue: Callable[[], None]) -> Any:
    """What is enqueued, as a graph that is not launchable yet."""
    driver = bindings()
    # Relaxed: Python may drop arrays at any time, and freeing their memory is no part of this.
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    check(driver.cuStreamBeginCapture(stream, mode), "capturing the kernels")
    enqueue()
    return check(driver.cuStreamEndCapture(stream), "capturing the kernels")


def new_stream() -> Any:
    """A stream that no other waits for by itself."""
    flags = bindings().CUstream_flags.CU_STREAM_NON_BLOCKING
    return check(bindings().cuStreamCreate(flags), "making a stream")


def drop_stream(stream: Any) -> None:
    """Gives back a stream that has nothing to do."""
    check(bindings().cuStreamDestroy(stream), "dropping a stream")


def new_event() -> Any:
    """An event that orders streams."""
    driver = bindings()
    timing_off = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
    return check(driver.cuEventCreate(timing_off), "making an event")


def last_node(stream: Any) -> Any:
    """What was captured last."""
    _, _, _, last, *_ = check(bindings().cuStreamGetCaptureInfo(stream), "capturing the kernels")
    return last[0]
