"""Thread pools of a process, on the code that codegen.cpu.pool emits.

Input -> Output: the pool's object code, a number of threads -> a handle for ``tw_pool_run``.
Guarantees: engines that ask for the same number share one pool; idle pools use no processor time;
workers end before the interpreter does; a forked child gets threads of its own on first use.
Not here: the pool itself (codegen.cpu.pool), how work is cut.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

from tilewright.core.errors import BadOption, OutOfMemory
from tilewright.core.forks import renew_in_child
from tilewright.runtime.cpu.loader import load_object

_EXPORTS = (
    "tw_pool_create",
    "tw_pool_stop",
    "tw_pool_destroy",
    "tw_pool_run",
    "tw_pool_size",
    "tw_pool_pin",
)
_MAX_THREADS = 1024


class ThreadPool:
    """Threads that share the iterations of a loop; the calling thread is one of them.

    Attributes:
        threads: the number asked for.
        loaded: the code, with ``exports``.
        run_address: address of ``tw_pool_run``, for the imports of kernels.
    """

    def __init__(self, code: bytes, threads: int, exports: tuple[str, ...] = ()) -> None:
        """Starts ``threads - 1`` workers.

        Args:
            code: object code with the functions of ``codegen.cpu.pool``, for this machine.
            threads: 1 to 1024, the caller included.
            exports: further functions in the code, to be found in ``loaded``.

        Raises:
            BadOption: the number is not in 1 .. 1024.
            OutOfMemory: the system gives no memory for the pool.
        """
        if not 1 <= threads <= _MAX_THREADS:
            raise BadOption(f"threads={threads}", remedy=f"give a number from 1 to {_MAX_THREADS}")
        self.threads = threads
        self.loaded = load_object(code, (*_EXPORTS, *exports))
        self.run_address = self.loaded.address("tw_pool_run")
        pointer, whole = ctypes.c_void_p, ctypes.c_int64
        self._create = self.loaded.function("tw_pool_create", pointer, whole)
        self._stop = self.loaded.function("tw_pool_stop", None, pointer)
        self._size = self.loaded.function("tw_pool_size", whole, pointer)
        self._pin = self.loaded.function("tw_pool_pin", whole, pointer, whole, whole)
        self._lock = Lock()
        renew_in_child(self, "_lock")
        self._start()

    def _start(self) -> None:
        handle = self._create(self.threads)
        if handle is None:
            raise OutOfMemory("no memory for a thread pool", remedy="use threads=1")
        self._handle = int(handle)
        self._process = os.getpid()

    @property
    def handle(self) -> int:
        """Address of the pool; in a forked child, of a new one."""
        if os.getpid() != self._process:
            with self._lock:
                if os.getpid() != self._process:
                    self._start()
        return self._handle

    @property
    def size(self) -> int:
        """Threads that share the work; fewer than asked for when the system refused some."""
        return int(self._size(self.handle))

    def pin(self, processors: Sequence[int]) -> bool:
        """Binds worker k to ``processors[k]`` (entry 0, the caller's, is not bound).

        Returns whether the system did so for all workers.
        """
        pairs = list(enumerate(processors))[1 : self.size]
        refused = [cpu for worker, cpu in pairs if self._pin(self.handle, worker, cpu) != 0]
        return not refused

    def close(self) -> None:
        """Ends the workers; what runs on this pool later stays on its caller's thread."""
        self._stop(self.handle)


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Registry:
    """The pools of this process by digest of their code and number of threads."""

    pools: dict[tuple[bytes, int], ThreadPool]
    lock: Lock

    def close(self) -> None:
        """Ends all workers, before the code under them is unloaded."""
        for pool in self.pools.values():
            pool.close()


_registry = _Registry({}, Lock())
atexit.register(_registry.close)
renew_in_child(_registry, "lock")


def shared_pool(code: bytes, threads: int, exports: tuple[str, ...] = ()) -> ThreadPool:
    """The process's pool with that code and number of threads.

    Raises:
        BadOption, OutOfMemory: as ``ThreadPool``.
    """
    key = (hashlib.sha256(code).digest(), threads)
    with _registry.lock:
        if key not in _registry.pools:
            _registry.pools[key] = ThreadPool(code, threads, exports)
        return _registry.pools[key]
