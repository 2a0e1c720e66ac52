"""Runs one kernel natively: generates, compiles, loads and calls every stage.

Input -> Output: a kernel, arrays by buffer name, sizes -> the output arrays.
Not here: the engine's driver and thread pool.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.codegen.cpu.generate import GeneratedKernel, generate
from tilewright.codegen.cpu.objects import compile_module
from tilewright.codegen.cpu.target import CpuTarget, host_target
from tilewright.core.errors import OutOfRange
from tilewright.kernel.ir import Kernel
from tilewright.kernel.schedule import Schedule
from tilewright.runtime.cpu.loader import load_object

Array = npt.NDArray[Any]


def run_native(
    kernel: Kernel,
    feeds: Mapping[str, Array],
    sizes: Mapping[str, int] | None = None,
    *,
    target: CpuTarget | None = None,
    schedules: Sequence[Schedule] | None = None,
    parts: int = 1,
) -> dict[str, Array]:
    """Calls the stages in order, each in ``parts`` pieces, as the pool would."""
    sizes = dict(sizes or {})
    target = target or host_target()
    made = generate(kernel, target, schedules)
    return call_stages(kernel, made, compile_module(made.text, target), feeds, sizes, parts)


def call_stages(
    kernel: Kernel,
    made: GeneratedKernel,
    code: bytes,
    feeds: Mapping[str, Array],
    sizes: Mapping[str, int],
    parts: int = 1,
) -> dict[str, Array]:
    """Calls compiled stages."""
    loaded = load_object(code, tuple(call.symbol for call in made.calls))
    arrays = {name: np.ascontiguousarray(array) for name, array in feeds.items()}
    for buffer in (*kernel.outputs, *kernel.temporaries):
        shape = tuple(dim.evaluate(sizes) for dim in buffer.shape)
        raw = np.full(int(np.prod(shape)) * buffer.dtype.storage_bytes, 0xA5, dtype=np.uint8)
        arrays[buffer.name] = raw.view(buffer.dtype.numpy).reshape(shape)
    status = np.zeros(2, dtype=np.int64)
    words = [status.ctypes.data, 0, 0]
    words += [arrays[name].ctypes.data for name in made.layout.buffers]
    words += [dim.evaluate(sizes) for dim in made.layout.dims]
    table = np.array(words, dtype=np.int64)
    functions = [
        loaded.function(s.symbol, None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        for s in made.calls
    ]
    steps = kernel.steps.extent.evaluate(sizes) if kernel.steps else 1
    for step in range(steps):
        table[2] = step
        for stage, function in zip(made.calls, functions, strict=True):
            total = stage.iterations.evaluate(sizes)
            bounds = [total * k // parts for k in range(parts + 1)]
            for low, high in pairwise(bounds):
                if low < high:  # as the driver does
                    function(table.ctypes.data, low, high)
    if status[0]:
        raise OutOfRange("an index lies outside")
    return {buffer.name: arrays[buffer.name] for buffer in kernel.outputs}
