"""Loaded machine code of an engine: kernels, the driver and its thread pool.

Input -> Output: object code by key -> addresses of functions; a context -> its rows executed.
Guarantees: engines with as many threads share one pool; a run that finds the pool busy works on
its own thread; the GIL is released while kernels run.
Not here: what is executed (runtime.segment), reading files (runtime.engine_file).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.errors import CorruptEngine
from tilewright.runtime.cpu.loader import LoadedObject, load_object
from tilewright.runtime.cpu.threads import ThreadPool, shared_pool
from tilewright.runtime.segment import Context


class NativeCode:
    """The machine code of one engine.

    Args:
        objects: object code by kernel key, and of ``driver`` and ``pool``.
        exports: function names by kernel key.
        threads: threads that a run may use, the caller's included.
    """

    def __init__(
        self, objects: Mapping[str, bytes], exports: Mapping[str, tuple[str, ...]], threads: int
    ) -> None:
        self.threads = threads
        self._objects = objects
        self._loaded: dict[str, LoadedObject] = {}
        self._exports = exports
        self._pool: ThreadPool | None = None
        self._entry: Callable[..., Any] | None = None
        for key in exports:
            if key not in objects:
                raise CorruptEngine(f"the code of kernel {key} is missing", remedy="build it again")
            self._loaded[key] = load_object(objects[key], exports[key])

    def address(self, kernel: str, symbol: str) -> int:
        """The address of a kernel's function.

        Raises:
            CorruptEngine: there is no such kernel or function.
        """
        try:
            return self._loaded[kernel].address(symbol)
        except KeyError as error:
            raise CorruptEngine(
                f"kernel {kernel} has no function {symbol}", remedy="compile the engine again"
            ) from error

    def run(self, context: Context, times: npt.NDArray[np.int64] | None = None) -> None:
        """Executes a context's rows.

        Args:
            context: of a plan of this engine.
            times: [rows]; the nanoseconds of each row are added to it.
        """
        entry = self._entry
        if entry is None or self._pool is None:
            entry = self._start()
        handle = 0 if self._pool is None else self._pool.handle
        kept = 0 if times is None else times.ctypes.data
        entry(handle, context.rows_address, len(context.rows), context.status_address, kept)

    def _start(self) -> Callable[..., Any]:
        pool_code, driver_code = (self._objects.get(name) for name in ("pool", "driver"))
        if pool_code is None or driver_code is None:
            raise CorruptEngine("the engine has no driver", remedy="build it again")
        self._pool = shared_pool(pool_code, self.threads)
        imports = {"tw_pool_run": self._pool.run_address}
        driver = load_object(driver_code, ("tw_run",), imports)
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        words = (pointer, pointer, number, pointer, pointer)
        self._entry = driver.function("tw_run", None, *words)
        return self._entry
