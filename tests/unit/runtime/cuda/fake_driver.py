"""A driver without a GPU: memory is the host's, kernels are Python functions, streams run at once.

Input -> Output: functions by symbol -> a stand-in for ``cuda.bindings.driver`` that also keeps a
list of what was called.
"""

# ruff: noqa: N802  (the names are the driver's)

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

OUT_OF_MEMORY, ILLEGAL_ADDRESS = 2, 700
Kernel = Callable[..., None]


class FakeDriver:
    """One H200 of the mind.

    Attributes:
        calls: names of what was called, in order.
        free_bytes: what allocations may still take.
        fails: symbol -> status that synchronisations answer once it has run.
        status: what synchronisations answer.
        cost_us: what kernels take by the clock of events, by symbol.
    """

    def __init__(self, kernels: dict[str, Kernel]) -> None:
        self.kernels = kernels
        self.calls: list[str] = []
        self.free_bytes = 1 << 30
        self.fails: dict[str, int] = {}
        self.cost_us: dict[str, float] = {}
        self._clock_us = 0.0
        self._recorded: dict[int, float] = {}
        self._graph_of: dict[int, list[Any] | None] = {}
        self._memory: dict[int, Any] = {}
        self._sizes: dict[int, int] = {}
        self._captured: dict[int, list[Any]] = {}
        self.status = 0
        self._count = 100
        self.CUresult = SimpleNamespace(CUDA_ERROR_OUT_OF_MEMORY=OUT_OF_MEMORY)
        self.CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
        self.CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
        self.CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)
        self.CUpointer_attribute = SimpleNamespace(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL=9)
        self.CUlaunchAttributeID = SimpleNamespace(
            CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION=6
        )
        self.CUlaunchConfig = SimpleNamespace
        self.CUlaunchAttribute = lambda: SimpleNamespace(value=SimpleNamespace())
        self.CUDA_KERNEL_NODE_PARAMS = SimpleNamespace

    def __getattr__(self, name: str) -> Any:
        """Calls that do nothing but succeed."""
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*_: Any) -> tuple[int, ...]:
            self.calls.append(name)
            return (0,)

        return call

    def count(self, name: str) -> int:
        """How often something was called."""
        return self.calls.count(name)

    def _new_number(self) -> int:
        self._count += 1
        return self._count

    # --- memory -----------------------------------------------------------------------------------

    def cuMemAlloc(self, size: int) -> tuple[int, int]:
        self.calls.append("cuMemAlloc")
        if size > self.free_bytes:
            return OUT_OF_MEMORY, 0
        self.free_bytes -= size
        return 0, self._allocate(size)

    def cuMemHostAlloc(self, size: int, _: int) -> tuple[int, int]:
        self.calls.append("cuMemHostAlloc")
        return 0, self._allocate(size)

    def cuMemFree(self, address: int) -> tuple[int]:
        self.calls.append("cuMemFree")
        self.free_bytes += self._sizes.pop(address)
        del self._memory[address]
        return (0,)

    def cuMemGetInfo(self) -> tuple[int, int, int]:
        return 0, self.free_bytes, 1 << 30

    def _allocate(self, size: int) -> int:
        kept = (ctypes.c_uint8 * (size + 256))()
        address = -(-ctypes.addressof(kept) // 256) * 256
        self._memory[address], self._sizes[address] = kept, size
        return address

    def _copy(self, name: str, to: int, source: int, size: int) -> tuple[int]:
        self.calls.append(name)
        ctypes.memmove(to, source, size)
        return (0,)

    def cuMemcpyHtoD(self, *args: int) -> tuple[int]:
        return self._copy("cuMemcpyHtoD", *args)

    def cuMemcpyDtoH(self, *args: int) -> tuple[int]:
        return self._copy("cuMemcpyDtoH", *args)

    def cuMemcpyHtoDAsync(self, *args: int) -> tuple[int]:
        return self._copy("cuMemcpyHtoDAsync", *args[:3])

    def cuMemcpyDtoHAsync(self, *args: int) -> tuple[int]:
        return self._copy("cuMemcpyDtoHAsync", *args[:3])

    def cuMemcpyDtoDAsync(self, *args: int) -> tuple[int]:
        return self._copy("cuMemcpyDtoDAsync", *args[:3])

    def cuMemsetD32Async(self, address: int, value: int, count: int, _: Any) -> tuple[int]:
        ctypes.memmove(address, value.to_bytes(4, "little") * count, 4 * count)
        return (0,)

    def cuPointerGetAttribute(self, *_: int) -> tuple[int, int]:
        return 0, 0

    # --- code, streams and graphs -----------------------------------------------------------------

    def cuModuleLoadData(self, image: bytes) -> tuple[int, bytes]:
        return 0, image

    def cuModuleGetFunction(self, _: Any, symbol: bytes) -> tuple[int, str]:
        return (0, symbol.decode()) if symbol.decode() in self.kernels else (500, "")

    def cuStreamCreate(self, _: int) -> tuple[int, int]:
        return 0, self._new_number()

    def cuEventCreate(self, _: int) -> tuple[int, int]:
        return 0, self._new_number()

    def cuEventRecord(self, event: int, stream: Any) -> tuple[int]:
        self.calls.append("cuEventRecord")
        self._recorded[event] = self._clock_us
        self._graph_of[event] = self._captured.get(stream)
        return (0,)

    def cuStreamWaitEvent(self, stream: int, event: int, _: int) -> tuple[int]:
        self.calls.append("cuStreamWaitEvent")
        graph = self._graph_of.get(event)
        if graph is not None:  # the stream takes part in the capture
            self._captured[stream] = graph
        return (0,)

    def cuEventElapsedTime(self, start: int, stop: int) -> tuple[int, float]:
        return 0, (self._recorded[stop] - self._recorded[start]) / 1e3

    def cuStreamSynchronize(self, _: Any) -> tuple[int]:
        self.calls.append("cuStreamSynchronize")
        return (self.status,)

    def cuLaunchKernelEx(self, config: Any, symbol: str, args: Any, _: int) -> tuple[int]:
        self.calls.append("cuLaunchKernelEx")
        node = [symbol, args[0]]
        if config.hStream in self._captured:
            self._captured[config.hStream].append(node)
        else:
            self._execute(node)
        return (0,)

    def cuStreamBeginCapture(self, stream: int, _: int) -> tuple[int]:
        self._captured[stream] = []
        return (0,)

    def cuStreamGetCaptureInfo(self, stream: int) -> tuple[Any, ...]:
        nodes = self._captured[stream]
        return 0, 1, 1, nodes, nodes[-1:], [], 1

    def cuStreamEndCapture(self, stream: int) -> tuple[int, list[Any]]:
        self.calls.append("cuStreamEndCapture")
        graph = self._captured[stream]
        self._captured = {k: v for k, v in self._captured.items() if v is not graph}
        return 0, graph

    def cuGraphInstantiate(self, graph: list[Any], _: int) -> tuple[int, list[Any]]:
        return 0, graph

    def cuGraphLaunch(self, graph: list[Any], _: Any) -> tuple[int]:
        self.calls.append("cuGraphLaunch")
        for node in graph:
            self._execute(node)
        return (0,)

    def cuGraphExecKernelNodeSetParams(self, _: Any, node: Any, params: Any) -> tuple[int]:
        self.calls.append("cuGraphExecKernelNodeSetParams")
        node[1] = params.kernelParams[0]
        return (0,)

    def _execute(self, node: list[Any]) -> None:
        symbol, values = node
        self._clock_us += self.cost_us.get(symbol, 1.0)
        self.status = self.fails.get(symbol, self.status)
        self.kernels[symbol](*values)

    def cuEventSynchronize(self, _: Any) -> tuple[int]:
        self.calls.append("cuEventSynchronize")
        return (self.status,)

    def cuMemFreeHost(self, address: int) -> tuple[int]:
        del self._sizes[address], self._memory[address]
        return (0,)

    def cuGetErrorName(self, status: Any) -> tuple[int, bytes]:
        return 0, f"ERROR_{int(status)}".encode()

    def cuGetErrorString(self, _: Any) -> tuple[int, bytes]:
        return 0, b"what it means"

    # --- the GPU ----------------------------------------------------------------------------------

    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major",
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor",
    )

    def cuDriverGetVersion(self) -> tuple[int, int]:
        return 0, 13000

    def cuDeviceGetCount(self) -> tuple[int, int]:
        return 0, 1

    def cuDeviceGet(self, ordinal: int) -> tuple[int, int]:
        return 0, ordinal

    def cuDeviceGetAttribute(self, which: str, _: int) -> tuple[int, int]:
        return 0, {"major": 9, "minor": 0}[which]

    def cuDeviceGetName(self, *_: int) -> tuple[int, bytes]:
        return 0, b"NVIDIA H200\0"

    def cuDevicePrimaryCtxRetain(self, _: int) -> tuple[int, str]:
        return 0, "context"


def floats(address: int, count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Floats that lie at an address, for kernels."""
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))
