"""The memory and the captured launches of one run on a GPU.

Input -> Output: a ``CudaPlan``, functions, addresses of constants -> a context that copies inputs
in, launches, copies outputs out.
Guarantees: used by one run at a time; launches are captured into one graph, and launched as one;
copies go through pinned memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.errors import DeviceFault
from tilewright.runtime.cuda.driver import Device, bindings, check, error_text, pin
from tilewright.runtime.cuda.modules import Modules
from tilewright.runtime.cuda.plan import CudaPlan, Step

Array = npt.NDArray[Any]
_STATUS_BYTES = 256


class CudaContext:
    """One block of GPU memory (inputs, outputs, arena, status), a stream and a graph."""

    def __init__(
        self, plan: CudaPlan, device: Device, modules: Modules, constants: Mapping[str, int]
    ) -> None:
        self.plan, self._device = plan, device
        self._constants = constants
        driver = bindings()
        device.use()
        total = plan.total_bytes + _STATUS_BYTES
        self._memory = device.allocate(total, "the memory plan of a run")
        self._status = self._memory + plan.total_bytes
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self.stream = check(driver.cuStreamCreate(flags), "making a stream")
        staged = plan.staged_bytes + _STATUS_BYTES
        self._pinned = pin(staged)
        block = (ctypes.c_uint8 * staged).from_address(self._pinned)
        self._host = np.frombuffer(memoryview(block).cast("B"), dtype=np.uint8)
        self._host_status = self._host[plan.staged_bytes :][:4].view(np.int32)
        for step in plan.steps:  # code cannot be loaded while launches are captured
            modules.function(step.call.kernel, step.launch.symbol, step.launch.shared_bytes)
        self._graph = self.capture(lambda: self.launch_all(modules))

    def close(self) -> None:
        """Frees everything; the context must be idle."""
        driver = bindings()
        self._device.use()
        if self._graph is not None:
            driver.cuGraphExecDestroy(self._graph)
        driver.cuMemFree(self._memory)
        driver.cuMemFreeHost(self._pinned)
        driver.cuStreamDestroy(self.stream)

    # --- running ----------------------------------------------------------------------------------

    def run(self, arrays: list[Array]) -> tuple[list[Array], int]:
        """The outputs, and the number of the call that met an index out of range (0: none)."""
        self._device.use()
        for spec, array in zip(self.plan.inputs, arrays, strict=True):
            self._copy_in(spec.name, array)
        self.replay()
        for spec in self.plan.segment.outputs:
            self._copy_out(spec.name, self.plan.size_bytes(spec))
        driver = bindings()
        status = self._pinned + self.plan.staged_bytes
        check(driver.cuMemcpyDtoHAsync(status, self._status, 4, self.stream), "reading the status")
        self.finish()
        results = [self._result(spec.name, spec.dtype.numpy) for spec in self.plan.segment.outputs]
        return results, int(self._host_status[0])

    def replay(self) -> None:
        """Enqueues all kernels."""
        driver = bindings()
        check(driver.cuMemsetD32Async(self._status, 0, 1, self.stream), "clearing the status")
        if self._graph is not None:
            check(driver.cuGraphLaunch(self._graph, self.stream), "launching the kernels")

    def finish(self) -> None:
        """Waits for everything that was enqueued.

        Raises:
            DeviceFault: a kernel failed.
        """
        (status,) = bindings().cuStreamSynchronize(self.stream)
        if int(status):
            shapes = {name: list(shape) for name, shape in self.plan.shapes.items()}
            names = ", ".join(dict.fromkeys(step.call.name for step in self.plan.steps))
            raise DeviceFault(
                f"{error_text(status)} in one of the kernels {names[:500]} with {shapes}",
                remedy="start the process again; set CUDA_LAUNCH_BLOCKING=1 to have it name the "
                "kernel, and please report it",
            )

    def _copy_in(self, name: str, array: Array) -> None:
        start, size = self.plan.offsets[name], array.nbytes
        if not size:
            return
        self._host[start : start + size] = array.reshape(-1).view(np.uint8)
        check(
            bindings().cuMemcpyHtoDAsync(
                self._memory + start, self._pinned + start, size, self.stream
            ),
            f"copying {name} to the GPU",
        )

    def _copy_out(self, name: str, size: int) -> None:
        start = self.plan.offsets[name]
        if size:
            check(
                bindings().cuMemcpyDtoHAsync(
                    self._pinned + start, self._memory + start, size, self.stream
                ),
                f"copying {name} from the GPU",
            )

    def _result(self, name: str, dtype: np.dtype[Any]) -> Array:
        shape = self.plan.shapes[name]
        found = np.empty(shape, dtype)
        start = self.plan.offsets[name]
        found.reshape(-1).view(np.uint8)[:] = self._host[start : start + found.nbytes]
        return found

    # --- launches ---------------------------------------------------------------------------------

    def capture(self, enqueue: Callable[[], None]) -> Any:
        """What is enqueued, as a graph that can be launched; None for nothing."""
        if not self.plan.steps:
            return None
        driver = bindings()
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(driver.cuStreamBeginCapture(self.stream, mode), "capturing the kernels")
        enqueue()
        graph = check(driver.cuStreamEndCapture(self.stream), "capturing the kernels")
        made = check(driver.cuGraphInstantiate(graph, 0), "making a graph of the kernels")
        check(driver.cuGraphDestroy(graph), "dropping the captured graph")
        return made

    def launch_all(self, modules: Modules) -> None:
        """Enqueues every kernel by itself."""
        for step in self.plan.steps:
            self.launch(step, modules)

    def launch(self, step: Step, modules: Modules) -> None:
        """Enqueues one kernel."""
        launch = step.launch
        function = modules.function(step.call.kernel, launch.symbol, launch.shared_bytes)
        values = (
            *(self._address(name) for name in step.buffers),
            *step.dims,
            step.step,
            self._status,
            step.number,
        )
        longs = len(step.dims) + 1
        kinds = (
            *([ctypes.c_void_p] * len(step.buffers)),
            *([ctypes.c_longlong] * longs),
            ctypes.c_void_p,
            ctypes.c_int,
        )
        config = self._config(step, modules.overlap)
        check(
            bindings().cuLaunchKernelEx(config, function, (values, kinds), 0),
            f"launching {launch.symbol} of {step.call.name} with the grid {step.grid}",
        )

    def _config(self, step: Step, overlap: bool) -> Any:
        driver = bindings()
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = step.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = step.launch.threads, 1, 1
        config.sharedMemBytes = step.launch.shared_bytes
        config.hStream = self.stream
        if overlap:
            attribute = driver.CUlaunchAttribute()
            kinds = driver.CUlaunchAttributeID
            attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        return config

    def _address(self, name: str) -> int:
        offset = self.plan.offsets.get(name)
        return self._constants[name] if offset is None else self._memory + offset
