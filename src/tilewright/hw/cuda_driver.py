"""NVIDIA's driver library through ctypes: devices, memory, streams, kernels from PTX.

Input -> Output: ``open_driver()`` -> a ``CudaDriver``, or the reason why there is none; its methods
call the driver API and raise ``BadTarget`` with the driver's own name of an error.
Why not cuda-core: this needs the driver alone, so that ``tilewright device`` works anywhere.
Not here: running engines (runtime), what to measure (gpu_probe).
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tilewright.core.errors import BadTarget
from tilewright.hw.records import MIB

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_NAME_BYTES = 256
_FILL_BYTES = 4 * MIB

# CUdevice_attribute and CUfunction_attribute of cuda.h.
_CLOCK_KHZ, _NUM_SMS, _L2_BYTES = 13, 16, 38
_MAX_THREADS_PER_SM, _MAJOR, _MINOR = 39, 75, 76
_SHARED_PER_SM, _SHARED_OPT_IN, _MAX_BLOCKS_PER_SM, _SHARED_RESERVED = 81, 97, 106, 111
FUNCTION_MAX_THREADS, FUNCTION_STATIC_SHARED, FUNCTION_REGISTERS = 0, 1, 4
FUNCTION_MAX_DYNAMIC_SHARED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as its driver describes it; sizes in bytes, of one SM where the name says so."""

    index: int
    name: str
    capability: tuple[int, int]
    num_sms: int
    clock_hz: float
    memory_bytes: int
    l2_bytes: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    shared_bytes_per_sm: int
    max_shared_bytes_per_block: int
    reserved_shared_bytes_per_block: int
    driver: str


class CudaDriver:
    """The driver API.

    Args:
        library: the loaded library, initialised.
    """

    def __init__(self, library: Any) -> None:
        self._library = library

    def call(self, name: str, *arguments: object) -> None:
        """Calls a function that returns ``CUresult``.

        Raises:
            BadTarget: the driver lacks it, or reports an error.
        """
        code = self.try_call(name, *arguments)
        if code:
            raise BadTarget(
                f"{name} failed: {self.error_name(code)}",
                remedy="see whether nvidia-smi works and other programs use the GPU",
            )

    def try_call(self, name: str, *arguments: object) -> int:
        """The same; returns the error code instead of raising it."""
        try:
            function = getattr(self._library, name)
        except AttributeError as error:
            raise BadTarget(f"the driver has no {name}", remedy="install a newer driver") from error
        return int(function(*arguments))

    def error_name(self, code: int) -> str:
        """The driver's name of an error code."""
        text = ctypes.c_char_p()
        if self.try_call("cuGetErrorName", code, ctypes.byref(text)) or not text.value:
            return f"error {code}"
        return text.value.decode()

    # --- devices ----------------------------------------------------------------------------------

    def gpus(self) -> tuple[Gpu, ...]:
        """All devices that this process may use."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return tuple(self._gpu(index) for index in range(count.value))

    def _gpu(self, index: int) -> Gpu:
        device, version, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
        name = ctypes.create_string_buffer(_NAME_BYTES)
        self.call("cuDeviceGet", ctypes.byref(device), index)
        self.call("cuDeviceGetName", name, _NAME_BYTES, device)
        self.call("cuDeviceTotalMem_v2", ctypes.byref(size), device)
        self.call("cuDriverGetVersion", ctypes.byref(version))

        def fact(attribute: int) -> int:
            value = ctypes.c_int()
            self.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
            return value.value

        return Gpu(
            index=index,
            name=name.value.decode(),
            capability=(fact(_MAJOR), fact(_MINOR)),
            num_sms=fact(_NUM_SMS),
            clock_hz=1e3 * fact(_CLOCK_KHZ),
            memory_bytes=size.value,
            l2_bytes=fact(_L2_BYTES),
            max_threads_per_sm=fact(_MAX_THREADS_PER_SM),
            max_blocks_per_sm=fact(_MAX_BLOCKS_PER_SM),
            shared_bytes_per_sm=fact(_SHARED_PER_SM),
            max_shared_bytes_per_block=fact(_SHARED_OPT_IN),
            reserved_shared_bytes_per_block=fact(_SHARED_RESERVED),
            driver=f"CUDA {version.value // 1000}.{version.value % 1000 // 10}",
        )

    @contextmanager
    def context(self, index: int) -> Iterator[None]:
        """Makes a device's primary context current."""
        device, handle = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), index)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(handle), device)
        try:
            self.call("cuCtxSetCurrent", handle)
            yield
        finally:
            self.try_call("cuCtxSetCurrent", None)
            self.try_call("cuDevicePrimaryCtxRelease_v2", device)

    # --- memory -----------------------------------------------------------------------------------

    def free_bytes(self) -> int:
        """Device memory that is free."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    @contextmanager
    def device_memory(self, num_bytes: int) -> Iterator[int]:
        """The address of device memory, filled with one small ordinary number."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(num_bytes))
        try:
            fill, words = ctypes.c_uint32(0x3F3F3F3F), ctypes.c_size_t(num_bytes // 4)
            self.call("cuMemsetD32_v2", address, fill, words)
            yield address.value
        finally:
            self.try_call("cuMemFree_v2", address)

    def fill_varied(self, address: int, num_bytes: int) -> None:
        """Writes varied positive numbers (of every float type): power depends on the bits."""
        spread = bytes(0x30 | (byte & 0x0F) for byte in range(256))
        block = random.Random(0).randbytes(min(num_bytes, _FILL_BYTES)).translate(spread)
        host = ctypes.create_string_buffer(block, len(block))
        for offset in range(0, num_bytes, len(block)):
            part = ctypes.c_size_t(min(len(block), num_bytes - offset))
            self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address + offset), host, part)

    @contextmanager
    def pinned_memory(self, num_bytes: int) -> Iterator[int]:
        """The address of host memory that the device reads directly."""
        address = ctypes.c_void_p()
        self.call("cuMemAllocHost_v2", ctypes.byref(address), ctypes.c_size_t(num_bytes))
        try:
            yield int(address.value or 0)
        finally:
            self.try_call("cuMemFreeHost", address)

    def copy(self, direction: str, to: int, source: int, num_bytes: int) -> None:
        """Starts a copy on the default stream: ``DtoD``, ``HtoD`` or ``DtoH``."""
        addresses = [
            ctypes.c_uint64(address) if kind == "D" else ctypes.c_void_p(address)
            for kind, address in zip((direction[-1], direction[0]), (to, source), strict=True)
        ]
        name = f"cuMemcpy{direction}Async_v2"
        self.call(name, *addresses, ctypes.c_size_t(num_bytes), None)

    def synchronize(self) -> None:
        """Waits for the device."""
        self.call("cuCtxSynchronize")

    # --- kernels ----------------------------------------------------------------------------------

    @contextmanager
    def module(self, ptx: str) -> Iterator[ctypes.c_void_p]:
        """A module that the driver compiles from PTX."""
        handle = ctypes.c_void_p()
        text = ctypes.create_string_buffer(ptx.encode())
        self.call("cuModuleLoadData", ctypes.byref(handle), text)
        try:
            yield handle
        finally:
            self.try_call("cuModuleUnload", handle)

    def function(self, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        """A kernel of a module."""
        handle = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(handle), module, name.encode())
        return handle

    def function_fact(self, function: ctypes.c_void_p, attribute: int) -> int:
        """An attribute of a kernel, such as ``FUNCTION_REGISTERS``."""
        value = ctypes.c_int()
        self.call("cuFuncGetAttribute", ctypes.byref(value), attribute, function)
        return value.value

    def allow_shared_bytes(self, function: ctypes.c_void_p, num_bytes: int) -> None:
        """Opts in to so much dynamic shared memory."""
        self.call("cuFuncSetAttribute", function, FUNCTION_MAX_DYNAMIC_SHARED, num_bytes)

    def max_active_blocks(
        self, function: ctypes.c_void_p, threads: int, shared_bytes: int
    ) -> tuple[int, str]:
        """Blocks per SM by the driver's own calculator, and its error name (empty: none)."""
        blocks, size = ctypes.c_int(), ctypes.c_size_t(shared_bytes)
        name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        code = self.try_call(name, ctypes.byref(blocks), function, threads, size)
        return (0, self.error_name(code)) if code else (blocks.value, "")

    def launch(
        self,
        function: ctypes.c_void_p,
        blocks: int,
        threads: int,
        arguments: Sequence[ctypes._SimpleCData[Any]] = (),
        shared_bytes: int = 0,
    ) -> None:
        """Starts a one-dimensional grid on the default stream."""
        addresses = (ctypes.c_void_p * max(1, len(arguments)))(
            *(ctypes.addressof(argument) for argument in arguments)
        )
        grid = (blocks, 1, 1, threads, 1, 1, shared_bytes)
        self.call("cuLaunchKernel", function, *grid, None, addresses, None)

    @contextmanager
    def events(self) -> Iterator[tuple[ctypes.c_void_p, ctypes.c_void_p]]:
        """Two events, for times on the device."""
        pair = (ctypes.c_void_p(), ctypes.c_void_p())
        for event in pair:
            self.call("cuEventCreate", ctypes.byref(event), 0)
        try:
            yield pair
        finally:
            for event in pair:
                self.try_call("cuEventDestroy_v2", event)

    def record(self, event: ctypes.c_void_p) -> None:
        """Marks a point of the default stream."""
        self.call("cuEventRecord", event, None)

    def elapsed_s(self, start: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        """Time between two events, once both have happened."""
        milliseconds = ctypes.c_float()
        self.call("cuEventSynchronize", end)
        self.call("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
        return 1e-3 * milliseconds.value


def open_driver() -> CudaDriver | str:
    """The driver of this machine, or why there is none."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return f"no NVIDIA GPU was found: the driver library {_LIBRARY} cannot be loaded"
    driver = CudaDriver(library)
    code = driver.try_call("cuInit", 0)
    if code:
        return f"no NVIDIA GPU was found: cuInit says {driver.error_name(code)}"
    return driver
