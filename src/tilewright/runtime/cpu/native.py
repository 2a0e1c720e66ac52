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
        self._timed_entry: Callable[..., Any] | None = None
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
            raise CorruptEngine(f"kernel {kernel} has no function {symbol}") from error

    def run(self, context: Context) -> None:
        """Executes a context's rows."""
        entry = self._entry
        if entry is None or self._pool is None:
            entry = self._start()
        handle = 0 if self._pool is None else self._pool.handle
        rows = context.rows
        entry(handle, rows.ctypes.data, len(rows), context.status.ctypes.data)

    def run_timed(self, context: Context, times: npt.NDArray[np.int64]) -> None:
        """Executes a context's rows and adds each row's nanoseconds to ``times`` [rows]."""
        if self._timed_entry is None:
            self._timed_entry = self._load("tw_run_timed", 1)
        handle = 0 if self._pool is None else self._pool.handle
        rows = context.rows
        status = context.status.ctypes.data
        self._timed_entry(handle, rows.ctypes.data, len(rows), status, times.ctypes.data)

    def _start(self) -> Callable[..., Any]:
        self._entry = self._load("tw_run", 0)
        return self._entry

    def _load(self, name: str, extra_pointers: int) -> Callable[..., Any]:
        """A function of the driver; it takes the pool, rows, their count, the status and more."""
        pool_code, driver_code = (self._objects.get(name) for name in ("pool", "driver"))
        if pool_code is None or driver_code is None:
            raise CorruptEngine("the engine has no driver", remedy="build it again")
        if self._pool is None:
            self._pool = shared_pool(pool_code, self.threads)
        imports = {"tw_pool_run": self._pool.run_address}
        driver = load_object(driver_code, (name,), imports)
        words = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
        return driver.function(name, None, *words, *(ctypes.c_void_p,) * extra_pointers)
