"""The GPU driver: what it answers, as results or errors that say what to do.

Input -> Output: a call's result -> its values, or a ``UserError``.
Requires: ``cuda-bindings`` (extra ``[cuda]``) and a driver; loading this module needs neither.
Not here: what engines do with it (executor).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from tilewright.core.errors import BadTarget, DeviceFault, OutOfMemory

_OLDEST_DRIVER = 13000  # the bindings are of CUDA 13
_REMEDY = "run on a machine with an NVIDIA GPU, or compile with target=cpu"


@cache
def bindings() -> Any:
    """The driver's functions.

    Raises:
        BadTarget: the bindings are not installed.
    """
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise BadTarget(
            "the GPU driver's bindings are not installed", remedy='pip install "tilewright[cuda]"'
        ) from error
    return driver


def check(result: Any, doing: str) -> Any:
    """The values of a driver call.

    Args:
        result: (status, values..).
        doing: what it was for, in the error.

    Raises:
        DeviceFault: the driver reports an error.
    """
    status, *values = result if isinstance(result, tuple) else (result,)
    if int(status):
        raise DeviceFault(
            f"{doing}: the GPU driver answers {error_text(status)}",
            remedy="start the process again; if it stays, run with CUDA_LAUNCH_BLOCKING=1",
        )
    return values[0] if len(values) == 1 else values


def error_text(status: Any) -> str:
    """Name and meaning of a status."""
    driver = bindings()
    failed, name = driver.cuGetErrorName(status)
    if int(failed):
        return str(int(status))
    text = driver.cuGetErrorString(status)[1]
    return f"{name.decode()} ({text.decode()})"


def is_out_of_memory(status: Any) -> bool:
    """Whether a status says that memory is full."""
    return int(status) == int(bindings().CUresult.CUDA_ERROR_OUT_OF_MEMORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU whose primary context this process holds.

    Attributes:
        capability: 90 for compute capability 9.0.
        driver_version: 13000 for CUDA 13.0.
    """

    ordinal: int
    name: str
    capability: int
    driver_version: int
    context: Any

    def use(self) -> None:
        """Makes it the device of the calling thread."""
        result = bindings().cuCtxSetCurrent(self.context)
        if result[0]:
            check(result, "choosing the GPU")

    def allocate(self, num_bytes: int, purpose: str) -> int:
        """Memory of the GPU, aligned to 256 bytes.

        Raises:
            OutOfMemory: it does not fit; says how much there is.
        """
        driver = bindings()
        status, address = driver.cuMemAlloc(max(num_bytes, 256))
        if is_out_of_memory(status):
            free, total = check(driver.cuMemGetInfo(), "reading the free memory")
            raise OutOfMemory(
                f"{purpose} needs {num_bytes / 2**20:.1f} MiB of GPU memory, {free / 2**20:.1f} of "
                f"{total / 2**20:.1f} MiB are free",
                remedy="use a smaller batch or smaller inputs, precision=fp16, or free GPU memory",
            )
        check((status,), f"allocating {purpose}")
        return int(address)


def pin(num_bytes: int) -> int:
    """Host memory that the GPU copies from and to without another copy.

    Raises:
        OutOfMemory: the system refuses it.
    """
    status, address = bindings().cuMemHostAlloc(num_bytes, 0)
    if is_out_of_memory(status):
        raise OutOfMemory(
            f"inputs and outputs need {num_bytes / 2**20:.1f} MiB of pinned memory, which the "
            "system refuses",
            remedy="use a smaller batch or smaller inputs",
        )
    check((status,), "pinning memory for copies")
    return int(address)


@cache
def open_device(ordinal: int = 0) -> Device:
    """A GPU of this machine.

    Raises:
        BadTarget: there is none, or its driver is too old.
    """
    driver = bindings()
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:  # no driver library on this machine
        raise BadTarget(f"no NVIDIA driver here: {error}", remedy=_REMEDY) from error
    if int(status):
        raise BadTarget(f"no NVIDIA GPU can be used: {error_text(status)}", remedy=_REMEDY)
    version = int(check(driver.cuDriverGetVersion(), "reading the driver's version"))
    if version < _OLDEST_DRIVER:
        raise BadTarget(
            f"the GPU driver is of CUDA {_version_text(version)}, the engine needs "
            f"{_version_text(_OLDEST_DRIVER)}",
            remedy="install a newer NVIDIA driver",
        )
    count = int(check(driver.cuDeviceGetCount(), "counting GPUs"))
    if ordinal >= count:
        raise BadTarget(f"GPU {ordinal} of {count}", remedy=_REMEDY)
    handle = check(driver.cuDeviceGet(ordinal), "opening the GPU")
    attribute = driver.CUdevice_attribute
    major, minor = (
        int(check(driver.cuDeviceGetAttribute(which, handle), "reading the GPU"))
        for which in (
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    )
    name = bytes(check(driver.cuDeviceGetName(128, handle), "reading the GPU's name"))
    return Device(
        ordinal=ordinal,
        name=name.split(b"\0")[0].decode(),
        capability=10 * major + minor,
        driver_version=version,
        context=check(driver.cuDevicePrimaryCtxRetain(handle), "starting the GPU"),
    )


def _version_text(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
