"""What the processors can do at this moment: a canary beside other measurements.

Input -> Output: a number of threads -> float32 operations a second in multiply-adds, and how long a
cache line takes from one processor to another and back, again and again.
Guarantees: the loop is the one that measures the roof; threads run on processors of their own.
Not here: the roofs themselves (probe).
"""

from __future__ import annotations

import os
import time

import numpy as np
import numpy.typing as npt

from tilewright.codegen.cpu.objects import compile_module
from tilewright.codegen.cpu.probe_kernels import (
    OPERAND_BYTE,
    ROW_WORDS,
    RUN,
    SCRATCH_BYTES,
    probe_module,
)
from tilewright.codegen.cpu.target import CpuTarget, host_target
from tilewright.hw.machine import describe_machine
from tilewright.runtime.cpu.allocator import allocate
from tilewright.runtime.cpu.threads import ThreadPool

_BATCH_S = 0.01
_TURNS, _TRIES = 4000, 3  # of a cache line that goes to and fro


class PeakCanary:
    """Multiply-adds of float32 in registers, on all threads, for some milliseconds.

    Args:
        threads: no more than this process may use processors.
        target: whose vectors to multiply; None for this machine's.
    """

    def __init__(self, threads: int, target: CpuTarget | None = None) -> None:
        target, processors = target or host_target(), describe_machine().processors[:threads]
        loops = probe_module(target)
        peak = next(one for one in loops.peaks if one.dtype == "float32")
        self._pool = ThreadPool(compile_module(loops.text, target), threads, loops.exports)
        self._pool.pin(processors)
        os.sched_setaffinity(0, {processors[0]})  # the caller is the first of the threads
        self._flops = peak.flops_per_repeat * threads
        self._threads = threads
        self._source = allocate(4 * target.vector_bytes, "the canary")
        self._source[:] = OPERAND_BYTE
        self._scratch = allocate(SCRATCH_BYTES * threads, "the canary")
        self._rows = allocate(8 * ROW_WORDS * threads, "the canary").view(np.int64)
        self._rows = self._rows.reshape(threads, ROW_WORDS)
        self._rows[:] = 0
        self._rows[:, 1] = self._source.ctypes.data
        self._rows[:, 3] = self._scratch.ctypes.data + SCRATCH_BYTES * np.arange(threads)
        self._word = allocate(128, "the canary").view(np.int64)  # shares its lines with nothing
        self._exchange = np.zeros((2, ROW_WORDS), np.int64)
        self._exchange[:, 0], self._exchange[:, 1] = _TURNS, self._word.ctypes.data
        self._exchange[1, 4] = 1
        self._ping_pong = self._pool.loaded.address("probe_ping_pong")
        self._body = self._pool.loaded.address(peak.symbol)
        self._run = self._pool.loaded.function("tw_pool_run", None, *RUN)
        self._repeats = 1
        while self._time() < _BATCH_S:
            self._repeats *= 2

    def measure(self) -> float:
        """Operations a second; a multiply-add counts 2."""
        return self._flops * self._repeats / self._time()

    def round_trip_ns(self) -> float | None:
        """Nanoseconds in which a cache line goes from the first processor to the second one and
        back; None with one thread. Where processors are virtual, it may change at any time.
        """
        if self._threads < 2:
            return None
        rows = self._exchange
        times = []
        for _ in range(_TRIES):
            self._word[0] = 0
            times.append(self._time_of(self._ping_pong, rows, 2))
        return min(times) / _TURNS * 1e9

    def _time(self) -> float:
        self._rows[:, 0] = self._repeats
        return self._time_of(self._body, self._rows, self._threads)

    def _time_of(self, body: int, rows: npt.NDArray[np.int64], parts: int) -> float:
        start = time.perf_counter()
        self._run(self._pool.handle, body, rows.ctypes.data, parts, 1)
        return time.perf_counter() - start

    def close(self) -> None:
        """Ends its threads."""
        self._pool.close()
