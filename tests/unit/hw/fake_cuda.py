"""A driver library in Python, which answers like a small Hopper and keeps count of everything."""

# ruff: noqa: ARG002, N802  (names and arguments are NVIDIA's)

import ctypes
from collections import Counter
from typing import Any

ATTRIBUTES = {
    13: 1_980_000,
    16: 132,
    38: 60 << 20,
    39: 2048,
    75: 9,
    76: 0,
    81: 228 << 10,
    97: 227 << 10,
    106: 32,
    111: 1 << 10,
}
FUNCTION_FACTS = {0: 1024, 1: 0, 4: 32}
EVENT_MS = 2.0
NOT_FOUND, INVALID = 500, 1
NAMES = {NOT_FOUND: b"CUDA_ERROR_NOT_FOUND", INVALID: b"CUDA_ERROR_INVALID_VALUE"}


class FakeCuda:
    """The functions that ``CudaDriver`` calls.

    Attributes:
        calls: how often each function was called.
        open: handles and memory that were made and not yet given back.
        failing: functions that answer with ``CUDA_ERROR_INVALID_VALUE``.
        num_devices: GPUs.
        max_blocks: what the occupancy calculator answers.
    """

    def __init__(self, failing: tuple[str, ...] = (), num_devices: int = 1) -> None:
        self.calls: Counter[str] = Counter()
        self.open: Counter[str] = Counter()
        self.failing = failing
        self.num_devices = num_devices
        self.max_blocks = 8
        self.copied: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        answer = getattr(type(self), f"_{name}", None)
        if answer is None:
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls[name] += 1
            if name in self.failing:
                return INVALID
            return int(answer(self, *arguments) or 0)

        return call

    # --- devices ----------------------------------------------------------------------------------

    def _cuInit(self, flags: int) -> None:
        assert flags == 0

    def _cuGetErrorName(self, code: int, text: Any) -> int:
        text._obj.value = NAMES.get(code)
        return 0 if code in NAMES else INVALID

    def _cuDriverGetVersion(self, version: Any) -> None:
        version._obj.value = 13010

    def _cuDeviceGetCount(self, count: Any) -> None:
        count._obj.value = self.num_devices

    def _cuDeviceGet(self, device: Any, index: int) -> None:
        device._obj.value = index

    def _cuDeviceGetName(self, name: Any, size: int, device: Any) -> None:
        name.value = b"NVIDIA H200"[:size]

    def _cuDeviceTotalMem_v2(self, size: Any, device: Any) -> None:
        size._obj.value = 141 * 10**9

    def _cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> None:
        value._obj.value = ATTRIBUTES[attribute]

    def _cuDevicePrimaryCtxRetain(self, handle: Any, device: Any) -> None:
        handle._obj.value = 1
        self.open["context"] += 1

    def _cuDevicePrimaryCtxRelease_v2(self, device: Any) -> None:
        self.open["context"] -= 1

    def _cuCtxSetCurrent(self, handle: Any) -> None:
        pass

    def _cuCtxSynchronize(self) -> None:
        pass

    # --- memory -----------------------------------------------------------------------------------

    def _cuMemGetInfo_v2(self, free: Any, total: Any) -> None:
        free._obj.value = total._obj.value = 64 << 20

    def _cuMemAlloc_v2(self, address: Any, size: Any) -> None:
        address._obj.value = 0x7000_0000_0000
        self.open["memory"] += 1

    def _cuMemFree_v2(self, address: Any) -> None:
        assert address.value == 0x7000_0000_0000
        self.open["memory"] -= 1

    def _cuMemsetD32_v2(self, address: Any, value: Any, words: Any) -> None:
        assert isinstance(address, ctypes.c_uint64)

    def _cuMemAllocHost_v2(self, address: Any, size: Any) -> None:
        address._obj.value = 0x1000
        self.open["host"] += 1

    def _cuMemFreeHost(self, address: Any) -> None:
        self.open["host"] -= 1

    def _copied(self, name: str, to: Any, source: Any, size: Any) -> None:
        kinds = {"D": ctypes.c_uint64, "H": ctypes.c_void_p}
        assert type(to) is kinds[name[-1]]
        assert type(source) is kinds[name[0]]
        self.copied.append((name, size.value))

    def _cuMemcpyDtoDAsync_v2(self, to: Any, source: Any, size: Any, stream: None) -> None:
        self._copied("DtoD", to, source, size)

    def _cuMemcpyHtoDAsync_v2(self, to: Any, source: Any, size: Any, stream: None) -> None:
        self._copied("HtoD", to, source, size)

    def _cuMemcpyDtoHAsync_v2(self, to: Any, source: Any, size: Any, stream: None) -> None:
        self._copied("DtoH", to, source, size)

    def _cuMemcpyHtoD_v2(self, to: Any, source: Any, size: Any) -> None:
        assert 0 < size.value <= len(source.raw)

    # --- kernels ----------------------------------------------------------------------------------

    def _cuModuleLoadData(self, module: Any, text: Any) -> None:
        assert text.value.startswith(b".version")
        module._obj.value = 2
        self.open["module"] += 1

    def _cuModuleUnload(self, module: Any) -> None:
        self.open["module"] -= 1

    def _cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        function._obj.value = 3
        return (
            0 if name in (b"kernel", b"probe_empty", b"probe_read", b"probe_write") else NOT_FOUND
        )

    def _cuFuncGetAttribute(self, value: Any, attribute: int, function: Any) -> None:
        value._obj.value = FUNCTION_FACTS[attribute]

    def _cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> int:
        return 0 if attribute == 8 and value <= 227 << 10 else INVALID

    def _cuOccupancyMaxActiveBlocksPerMultiprocessor(
        self, blocks: Any, function: Any, threads: int, size: Any
    ) -> None:
        blocks._obj.value = self.max_blocks

    def _cuLaunchKernel(self, function: Any, *arguments: Any) -> None:
        assert len(arguments) == 10
        assert arguments[0] * arguments[3] > 0

    def _cuEventCreate(self, event: Any, flags: int) -> None:
        event._obj.value = 4
        self.open["event"] += 1

    def _cuEventDestroy_v2(self, event: Any) -> None:
        self.open["event"] -= 1

    def _cuEventRecord(self, event: Any, stream: None) -> None:
        pass

    def _cuEventSynchronize(self, event: Any) -> None:
        pass

    def _cuEventElapsedTime(self, milliseconds: Any, start: Any, end: Any) -> None:
        milliseconds._obj.value = EVENT_MS


class FakeCublas:
    """The functions that ``Cublas`` calls; integer products are not supported."""

    def __init__(self) -> None:
        self.open = 0
        self.num_products = 0

    def cublasCreate_v2(self, handle: Any) -> int:
        """Makes a handle."""
        handle._obj.value = 5
        self.open += 1
        return 0

    def cublasDestroy_v2(self, handle: Any) -> int:
        """Ends it."""
        self.open -= 1
        return 0

    def cublasGemmEx(self, *arguments: Any) -> int:
        """Counts products; 15 is CUBLAS_STATUS_NOT_SUPPORTED."""
        assert len(arguments) == 19
        self.num_products += 1
        return 15 if arguments[8] == 3 else 0
