"""Machine code of an engine on a GPU.

Input -> Output: code by file name (``KEY.sm_90.cubin``, ``KEY.ptx``), a GPU -> functions.
Guarantees: code made for the GPU's architecture is taken; else the driver compiles PTX, which a
warning says; code of an older architecture of the same family runs as it is.
Requires: code whose hashes were checked (runtime.engine_file).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from tilewright.core.errors import BadTarget, CorruptEngine
from tilewright.runtime.cuda.driver import Device, bindings, check

_DEFAULT_SHARED = 48 * 1024
_OVERLAPPING = 90


class Modules:
    """The functions of an engine's kernels, loaded when they are first asked for."""

    def __init__(self, code: Mapping[str, bytes], device: Device) -> None:
        self._code, self._device = code, device
        archs = {int(name.split(".")[1][3:]) for name in code if name.endswith(".cubin")}
        self._arch = choose_arch(archs, device.capability)
        if self._arch is None:
            lowest = min(archs, default=0)
            if device.capability < lowest:
                raise BadTarget(
                    f"the engine has code for {_names(archs)}; {device.name} is "
                    f"sm_{device.capability}, older than all of them",
                    remedy=f"compile with target=sm_{device.capability}",
                )
            warnings.warn(
                f"the engine has code for {_names(archs)}, not for sm_{device.capability} "
                f"({device.name}): the driver compiles its PTX, which takes a while; compile with "
                f"target=sm_{device.capability} to avoid it",
                RuntimeWarning,
                stacklevel=2,
            )
        # A kernel may be launched before the one before it has ended (programmatic dependent
        # launch): its code waits where it needs results.
        self.overlap = self._arch is not None and self._arch >= _OVERLAPPING
        self._modules: dict[str, Any] = {}
        self._functions: dict[tuple[str, str, int], Any] = {}

    def function(self, kernel: str, symbol: str, shared_bytes: int = 0) -> Any:
        """A kernel's function, allowed to use so much dynamic shared memory.

        Raises:
            CorruptEngine: the engine has no such kernel or function.
        """
        key = (kernel, symbol, shared_bytes)
        found = self._functions.get(key)
        if found is None:
            found = self._functions[key] = self._load(kernel, symbol, shared_bytes)
        return found

    def close(self) -> None:
        """Unloads all code."""
        for module in self._modules.values():
            bindings().cuModuleUnload(module)
        self._modules.clear()
        self._functions.clear()

    def _load(self, kernel: str, symbol: str, shared_bytes: int) -> Any:
        driver = bindings()
        module = self._modules.get(kernel)
        if module is None:
            name = f"{kernel}.ptx" if self._arch is None else f"{kernel}.sm_{self._arch}.cubin"
            if name not in self._code:
                raise CorruptEngine(f"the code {name} is missing", remedy="build the engine again")
            image = self._code[name] + b"\0"
            module = check(driver.cuModuleLoadData(image), f"loading the kernel {kernel}")
            self._modules[kernel] = module
        status, function = driver.cuModuleGetFunction(module, symbol.encode())
        if int(status):
            raise CorruptEngine(
                f"kernel {kernel} has no function {symbol}", remedy="build the engine again"
            )
        if shared_bytes > _DEFAULT_SHARED:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(
                driver.cuFuncSetAttribute(function, attribute, shared_bytes),
                f"giving {symbol} of {kernel} {shared_bytes} bytes of shared memory",
            )
        return function


def choose_arch(archs: set[int], capability: int) -> int | None:
    """The newest architecture whose machine code a GPU runs: of its family, not newer than it."""
    fitting = [arch for arch in archs if arch // 10 == capability // 10 and arch <= capability]
    return max(fitting, default=None)


def _names(archs: set[int]) -> str:
    return ", ".join(f"sm_{arch}" for arch in sorted(archs))
