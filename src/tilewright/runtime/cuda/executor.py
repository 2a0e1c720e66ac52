"""Runs a program whose segments are kernels of a GPU.

Input -> Output: as the executor that it extends; segments run on the GPU, other steps on the host.
Guarantees: safe from several threads (each run has a context of its own); weights are on the GPU
once; contexts are kept for a bounded number of sizes.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.runtime.cuda.context import CudaContext
from tilewright.runtime.cuda.driver import Device, bindings, check
from tilewright.runtime.cuda.modules import Modules
from tilewright.runtime.cuda.plan import ALIGNMENT, CudaPlan
from tilewright.runtime.executor import Executor, Run
from tilewright.runtime.program import Segment
from tilewright.runtime.segment import out_of_range

Array = npt.NDArray[Any]
MAX_CONTEXTS = 16


class CudaExecutor(Executor):
    """Executes the steps of an engine for a GPU.

    Args:
        constants: arrays by name.
        code: machine code by file name.
        device: the GPU.
    """

    def __init__(
        self, constants: Mapping[str, Array], code: Mapping[str, bytes], device: Device
    ) -> None:
        super().__init__(constants, None)
        device.use()
        self.device = device
        self.modules = Modules(code, device)
        self._weights = Weights(self.constants, device)
        self._idle: list[CudaContext] = []
        self._guard = Lock()
        weakref.finalize(self, _free, device, self._idle, self._weights, self.modules)

    def make_plan(self, segment: Segment, sizes: Mapping[str, int]) -> CudaPlan:
        """A plan for new sizes."""
        return CudaPlan(segment, dict(sizes), self.constants)

    @contextmanager
    def lease(self, plan: CudaPlan) -> Iterator[CudaContext]:
        """A context of a plan, for one run."""
        with self._guard:
            found = next((c for c in reversed(self._idle) if c.plan is plan), None)
            if found is not None:
                self._idle.remove(found)
        names = [spec.name for spec in plan.segment.inputs if spec.name in self.constants]
        context = found or CudaContext(
            plan, self.device, self.modules, self._weights.addresses(names)
        )
        yield context  # after a fault the GPU cannot be used any more, and nothing is given back
        with self._guard:
            self._idle.append(context)
            dropped = self._idle[:-MAX_CONTEXTS]
            del self._idle[:-MAX_CONTEXTS]
        for old in dropped:
            old.close()

    def release(self) -> None:
        """Frees the memory of all contexts that are idle."""
        with self._guard:
            idle = list(self._idle)
            self._idle.clear()
        for context in idle:
            context.close()

    def _segment(self, segment: Segment, run: Run) -> None:
        plan = self.plan(segment, run.symbols)
        arrays = [self._input(run, spec) for spec in plan.inputs]
        with self.lease(plan) as context:
            results, failed = context.run(arrays)
        if failed:
            raise out_of_range(segment.calls[failed - 1])
        for spec, array in zip(segment.outputs, results, strict=True):
            run.values[spec.name] = array


def _free(device: Device, idle: list[CudaContext], weights: Weights, modules: Modules) -> None:
    """Gives back everything on the GPU when an executor is gone."""
    device.use()
    for context in idle:
        context.close()
    weights.close()
    modules.close()


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
