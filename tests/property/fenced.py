"""Runs a kernel's stages with fences around every buffer, which nothing may overwrite.

Input -> Output: a kernel, arrays, sizes, schedules -> its outputs, or ``Trespass``.
Not here: the engine's driver (tests of the compiler).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.codegen.cpu.generate import generate
from tilewright.codegen.cpu.objects import compile_module
from tilewright.codegen.cpu.target import CpuTarget
from tilewright.core.dtypes import DType
from tilewright.core.errors import OutOfRange
from tilewright.kernel.ir import Kernel
from tilewright.kernel.schedule import Schedule
from tilewright.runtime.cpu.loader import load_object

Array = npt.NDArray[Any]
_FENCE = 256  # bytes on either side
_MARK = 0xA5


class Trespass(Exception):
    """Code wrote outside of a buffer, or to an input."""


class _Fenced:
    """A buffer between fences; its contents start as rubbish."""

    def __init__(self, name: str, dtype: DType, shape: tuple[int, ...], skew: int) -> None:
        self.name = name
        size = int(np.prod(shape)) * dtype.storage_bytes
        start = _FENCE + skew * dtype.storage_bytes
        self._raw = np.full(size + start + _FENCE, _MARK, np.uint8)
        self._inside = slice(start, start + size)
        self.array: Array = self._raw[self._inside].view(dtype.numpy).reshape(shape)

    def check(self) -> None:
        outside = self._raw.copy()
        outside[self._inside] = _MARK
        if (outside != _MARK).any():
            place = int(np.argmax(outside != _MARK)) - self._inside.start
            raise Trespass(f"byte {place} of {self.name} was written")


def run_fenced(
    kernel: Kernel,
    feeds: Mapping[str, Array],
    sizes: Mapping[str, int],
    target: CpuTarget,
    schedules: Sequence[Schedule] | None,
    parts: int,
) -> dict[str, Array]:
    """Compiles and calls all stages, in parts as threads would.

    Raises:
        Trespass: something outside of the outputs and temporaries was written.
    """
    made = generate(kernel, target, schedules)
    code = compile_module(made.text, target)
    loaded = load_object(code, tuple(call.symbol for call in made.calls))
    buffers: dict[str, _Fenced] = {}
    for number, buffer in enumerate(kernel.buffers):
        shape = tuple(dim.evaluate(sizes) for dim in buffer.shape)
        buffers[buffer.name] = fenced = _Fenced(buffer.name, buffer.dtype, shape, number % 3)
        if buffer.name in feeds:
            fenced.array[...] = feeds[buffer.name]
    status = np.zeros(2, np.int64)
    words = [status.ctypes.data, 0, 0]
    words += [buffers[name].array.ctypes.data for name in made.layout.buffers]
    words += [dim.evaluate(sizes) for dim in made.layout.dims]
    table = np.array(words, np.int64)
    for stage in made.calls:
        call = loaded.function(stage.symbol, None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        total = stage.iterations.evaluate(sizes)
        for low, high in pairwise(total * k // parts for k in range(parts + 1)):
            call(table.ctypes.data, low, high)
    if status[0]:
        raise OutOfRange("an index lies outside")
    for fenced in buffers.values():
        fenced.check()
        if fenced.name in feeds and fenced.array.tobytes() != feeds[fenced.name].tobytes():
            raise Trespass(f"input {fenced.name} was written")
    return {buffer.name: buffers[buffer.name].array for buffer in kernel.outputs}
