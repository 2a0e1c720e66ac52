"""The executor of an engine on this machine.

Input -> Output: the parts of an engine -> its executor, or why there is none here.
"""

from __future__ import annotations

from tilewright.core.errors import BadOption, BadTarget, CorruptEngine
from tilewright.runtime.cpu.host import missing_features
from tilewright.runtime.cpu.native import NativeCode
from tilewright.runtime.engine_file import EngineParts
from tilewright.runtime.executor import Executor

_MOST_LANES = 8


def open_executor(
    parts: EngineParts, threads: int, device: int | None = None
) -> tuple[Executor | None, str]:
    """The executor, and why there is none ("" where there is one).

    Args:
        device: number of the GPU; None for the first.

    Raises:
        CorruptEngine: code is missing.
        BadOption: a GPU is chosen for an engine for CPUs.
    """
    if parts.info.get("archs"):
        return _on_gpu(parts, device or 0)
    if device is not None:
        raise BadOption(
            f"device={device} chooses a GPU, but the engine is for CPUs",
            remedy="leave out device, or compile with target=cuda",
        )
    lacking = missing_features(
        parts.info.get("triple", ""), parts.info.get("required_features", ())
    )
    if lacking:
        return None, f"this processor lacks {lacking}"
    native = NativeCode(parts.objects, parts.exports, threads)
    ranges = parts.info.get("ranges", {}).items()
    largest = {name: high for name, (_, high) in ranges if high is not None}
    return Executor(parts.constants, native, largest), ""


def _on_gpu(parts: EngineParts, device: int) -> tuple[Executor | None, str]:
    from tilewright.runtime.cuda.driver import open_device
    from tilewright.runtime.cuda.executor import CudaExecutor

    try:
        gpu, lanes = open_device(device), parts.info.get("streams", 1)
        if not 1 <= lanes <= _MOST_LANES:
            raise CorruptEngine(f"{lanes} streams", remedy="build the engine again")
        return CudaExecutor(parts.constants, parts.device_code, gpu, lanes), ""
    except BadTarget as error:
        return None, error.message
