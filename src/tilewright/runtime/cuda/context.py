"""What one run at a time needs of a GPU besides its inputs and outputs.

Input -> Output: a ``CudaPlan``, functions, addresses of constants -> a context that launches the
plan's kernels for given buffers.
Guarantees: used by one run at a time, on any stream; kernels are launched as one graph, which is
captured once and changed where buffers lie elsewhere.
Not here: memory of inputs and outputs (memory), copies (executor).
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.core.errors import DeviceFault
from tilewright.runtime.cuda.driver import Device, bindings, check, error_text
from tilewright.runtime.cuda.graph import STATUS, Graph, Launcher, new_stream
from tilewright.runtime.cuda.lanes import lanes_of
from tilewright.runtime.cuda.memory import order
from tilewright.runtime.cuda.modules import Modules
from tilewright.runtime.cuda.plan import CudaPlan

_MAX_GRAPHS = 4  # of one plan: results of the last runs may still be in use
ONE_BY_ONE = "CUDA_LAUNCH_BLOCKING"  # CUDA's own name for it


class CudaContext:
    """The arena and the graphs.

    Attributes:
        used_on: the stream of the last run, where it may not have ended; else None.
        own_streams: for capturing; ``own_stream``, the first, for timing too.
    """

    def __init__(
        self,
        plan: CudaPlan,
        device: Device,
        modules: Modules,
        constants: Mapping[str, int],
        lanes: int = 1,
    ) -> None:
        self.plan, self._device = plan, device
        self._lanes = lanes_of(plan, lanes) if lanes > 1 else None
        device.use()
        self._memory = device.allocate(plan.arena_bytes, "the memory plan of a run")
        self.own_streams = [new_stream() for _ in range(lanes)]
        self.own_stream = self.own_streams[0]
        self.launcher = Launcher(modules)
        self._fixed = {**constants, STATUS: 0}
        self._fixed.update((name, self._memory + at) for name, at in plan.offsets.items())
        names = [spec.name for spec in (*plan.inputs, *plan.segment.outputs)]
        self._names = (*names, STATUS) if plan.can_fail else tuple(names)
        self._graphs: OrderedDict[tuple[int, ...], Graph] = OrderedDict()
        self.used_on: int | None = None
        self._one_by_one = os.environ.get(ONE_BY_ONE) == "1"

    def close(self) -> None:
        """Frees everything."""
        driver = bindings()
        self._device.use()
        for graph in self._graphs.values():
            graph.close()
        driver.cuMemFree(self._memory)
        for stream in self.own_streams:
            driver.cuStreamDestroy(stream)

    def use_on(self, stream: int) -> None:
        """Has a stream wait until the last run has left the arena."""
        if self.used_on is not None and self.used_on != stream:
            order(self.used_on, stream)
        self.used_on = stream

    def addresses(self, buffers: Sequence[int]) -> dict[str, int]:
        """Where every buffer of the steps lies.

        Args:
            buffers: addresses of the inputs, of the outputs, and, where kernels check indices, of
                the word that they report in.
        """
        return {**self._fixed, **dict(zip(self._names, buffers, strict=True))}

    def launch(self, buffers: tuple[int, ...], stream: int) -> None:
        """Enqueues all kernels.

        Raises:
            DeviceFault: the driver refuses, or a kernel fails while they run one by one.
        """
        if not self.plan.steps:
            return
        if self._one_by_one:
            self._launch_one_by_one(self.addresses(buffers), stream)
            return
        graph = self._graphs.get(buffers)
        if graph is None:
            graph = self._graph(buffers)
        graph.launch(stream)

    def _graph(self, buffers: tuple[int, ...]) -> Graph:
        """A graph for new places: another one, or the one that was not used for longest."""
        addresses = self.addresses(buffers)
        if len(self._graphs) < _MAX_GRAPHS:
            steps, streams = self.plan.steps, self.own_streams
            graph = Graph(self.launcher, steps, addresses, streams, self._lanes)
        else:
            _, graph = self._graphs.popitem(last=False)
            graph.rebind(addresses)
        self._graphs[buffers] = graph
        return graph

    def _launch_one_by_one(self, addresses: Mapping[str, int], stream: Any) -> None:
        """Slowly, so that a failing kernel can be named."""
        for step in self.plan.steps:
            try:
                self.launcher.launch(step, addresses, stream)
                check(bindings().cuStreamSynchronize(stream), f"running {step.text}")
            except DeviceFault as error:
                raise DeviceFault(
                    f"{error.message}; it computes {' + '.join(step.call.sources)}; "
                    f"{self._shapes()}",
                    remedy="start the process again, and please report it",
                ) from error

    def fault(self, status: Any) -> DeviceFault:
        """The error for a run that the driver gave up."""
        names = ", ".join(dict.fromkeys(step.call.name for step in self.plan.steps))
        return DeviceFault(
            f"{error_text(status)} in one of the kernels {names[:500]}; {self._shapes()}",
            remedy=f"start the process again; set {ONE_BY_ONE}=1 to have it name the kernel, and "
            "please report it",
        )

    def _shapes(self) -> str:
        shapes = (f"{name} {list(shape)}" for name, shape in self.plan.shapes.items())
        return f"shapes: {', '.join(shapes)}"
