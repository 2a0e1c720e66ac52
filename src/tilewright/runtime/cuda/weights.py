"""Constants of an engine on a GPU.

Input -> Output: arrays by name, a GPU -> where they lie.
Guarantees: each is copied once, when a plan first needs it, and is there when its address is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.runtime.cuda.driver import Device, bindings, check
from tilewright.runtime.cuda.memory import LEGACY
from tilewright.runtime.cuda.plan import ALIGNMENT

Array = npt.NDArray[Any]


class Weights:
    """Constants on the GPU, copied when a plan first needs them."""

    def __init__(self, constants: Mapping[str, Array], device: Device) -> None:
        self._constants, self._device = constants, device
        self._addresses: dict[str, int] = {}
        self._blocks: list[int] = []
        self._lock = Lock()

    def addresses(self, names: list[str]) -> dict[str, int]:
        """Where constants lie."""
        with self._lock:
            missing = [name for name in names if name not in self._addresses]
            if missing:
                self._copy(missing)
            return {name: self._addresses[name] for name in names}

    def close(self) -> None:
        """Frees them."""
        for block in self._blocks:
            bindings().cuMemFree(block)
        self._blocks.clear()
        self._addresses.clear()

    def _copy(self, names: list[str]) -> None:
        """All in one block, so that a plan's weights cost one allocation."""
        driver = bindings()
        self._device.use()
        sizes = [-(-max(1, self._constants[n].nbytes) // ALIGNMENT) * ALIGNMENT for n in names]
        start = self._device.allocate(sum(sizes), "the weights")
        self._blocks.append(start)
        for name, size in zip(names, sizes, strict=True):
            array = np.ascontiguousarray(self._constants[name])
            if array.nbytes:
                check(
                    driver.cuMemcpyHtoD(start, array.ctypes.data, array.nbytes),
                    f"copying the weight {name} to the GPU",
                )
            self._addresses[name] = start
            start += size
        # Such a copy may still be on its way when the call returns.
        check(driver.cuStreamSynchronize(LEGACY), "copying the weights to the GPU")
