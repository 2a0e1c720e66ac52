"""The executor of an engine on this machine.

Input -> Output: the parts of an engine -> its executor, or why there is none here.
"""

from __future__ import annotations

from tilewright.core.errors import BadTarget
from tilewright.runtime.cpu.host import missing_features
from tilewright.runtime.cpu.native import NativeCode
from tilewright.runtime.engine_file import EngineParts
from tilewright.runtime.executor import Executor


def open_executor(parts: EngineParts, threads: int) -> tuple[Executor | None, str]:
    """The executor, and why there is none ("" where there is one).

    Raises:
        CorruptEngine: code is missing.
    """
    if parts.info.get("archs"):
        return _on_gpu(parts)
    lacking = missing_features(
        parts.info.get("triple", ""), parts.info.get("required_features", ())
    )
    if lacking:
        return None, f"this processor lacks {lacking}"
    return Executor(parts.constants, NativeCode(parts.objects, parts.exports, threads)), ""


def _on_gpu(parts: EngineParts) -> tuple[Executor | None, str]:
    from tilewright.runtime.cuda.driver import open_device
    from tilewright.runtime.cuda.executor import CudaExecutor

    try:
        return CudaExecutor(parts.constants, parts.device_code, open_device()), ""
    except BadTarget as error:
        return None, error.message
