"""Measures the roofs of this machine's CPU: peaks, memory levels, fork and join.

Input -> Output: ``ProbeOptions`` -> ``Roofs`` for each number of threads.
Method: every loop runs in many short batches, spread over several rounds; the best batch counts, as
nothing makes a loop faster than the machine.  Before and after each batch a canary of dependent
single-cycle instructions on all threads shows whether the clock or other programs interfered; a
loop gets more batches until one was undisturbed, and the result says how many were.
Guarantees: threads run on processors of their own and first touch their own memory.
Not here: the loops (probe_kernels), keeping the result (hw.roofs).
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from tilewright.codegen.cpu.objects import compile_module
from tilewright.codegen.cpu.probe_kernels import (
    CANARY_STEPS,
    OPERAND_BYTE,
    ROW_WORDS,
    RUN,
    SCRATCH_BYTES,
    UNROLL_VECTORS,
    ProbeModule,
    probe_module,
)
from tilewright.codegen.cpu.target import CpuTarget, host_target
from tilewright.core.errors import BadOption
from tilewright.hw.machine import Machine, describe_machine, working_sets
from tilewright.hw.records import MIB
from tilewright.hw.roofs import QUIET, Level, Roofs
from tilewright.runtime.cpu.allocator import allocate
from tilewright.runtime.cpu.threads import ThreadPool

Words = npt.NDArray[np.int64]
Progress = Callable[[str], None]

_CANARY_S = 0.0002
_DISTURBED = 1.03  # a canary that takes longer than the best one by this factor
_ARRAY_GAP_BYTES = 1344  # arrays must not start at equal offsets in a page
_TRIES = 5
_WINDOW_BYTES = 24 * MIB  # that all threads together stream from DRAM in one call
_STREAMING = "triad, streaming stores"
_PATTERNS = {  # loop, number of arrays, and how often an element crosses the level
    "read": ("probe_read", 1, 1),
    "update": ("probe_update", 1, 2),
    "triad": ("probe_triad", 3, 1),
    _STREAMING: ("probe_triad_streaming", 3, 1),
}

_POINTER, _INTEGER = ctypes.c_void_p, ctypes.c_int64
_FORK = (_POINTER, _POINTER, _INTEGER, _INTEGER)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """How much to measure.

    Attributes:
        threads: thread counts; by default 1 and all that this process may use.
        seconds: time to aim for.
        batch_s: of one batch.
        rounds: passes over all loops.
        dram_bytes: memory to stream through; by default four times the last cache.
    """

    threads: tuple[int, ...] = ()
    seconds: float = 20.0
    batch_s: float = 0.004
    rounds: int = 4
    dram_bytes: int | None = None


def probe_cpu(
    options: ProbeOptions | None = None, progress: Progress | None = None
) -> tuple[Roofs, ...]:
    """Measures this machine.

    Args:
        options: what to measure and for how long.
        progress: is told what goes on.

    Returns:
        Roofs in the order of the thread counts.

    Raises:
        BadOption: an option is out of range.
    """
    options = options or ProbeOptions()
    machine = describe_machine()
    counts = options.threads or tuple(sorted({1, len(machine.processors)}))
    _check(options, counts, len(machine.processors))
    say = progress or (lambda _: None)
    target = host_target()
    say(f"compiling loops for {target.name}")
    loops = probe_module(target)
    code = compile_module(loops.text, target)
    runs: list[_Run] = []
    try:
        runs.extend(_Run(loops, code, target, machine, count, options) for count in counts)
        num_trials = sum(len(run.trials) for run in runs)
        for number in range(2 * options.rounds):
            if number < options.rounds:
                say(f"round {number + 1} of {options.rounds}")
            elif min(run.quiet_share for run in runs) >= QUIET:
                break
            else:
                say("the machine is busy: one more round")
            for run in runs:
                run.measure(options.seconds / (num_trials * options.rounds), options.batch_s)
        return tuple(run.result() for run in runs)
    finally:
        for run in runs:
            run.close()


def _check(options: ProbeOptions, counts: Sequence[int], available: int) -> None:
    if not all(1 <= count <= available for count in counts):
        raise BadOption(
            f"threads {', '.join(map(str, counts))}",
            remedy=f"this process may use 1 to {available} processors",
        )
    numbers = (options.seconds, options.batch_s, options.rounds)
    if not (all(number > 0 for number in numbers) and options.seconds <= 3600):
        raise BadOption(
            f"seconds={options.seconds}, batch_s={options.batch_s}, rounds={options.rounds}",
            remedy="give positive numbers, and at most 3600 seconds",
        )


@dataclass(slots=True)
class _Trial:
    """One loop with its memory; the best time so far, of one repeat.

    Attributes:
        name: type or memory level.
        pattern: of accesses; empty for multiply-adds.
        call: runs some repeats.
        amount: operations, bytes or forks of one repeat, all threads together.
    """

    name: str
    pattern: str
    call: Callable[[int], None]
    amount: float
    working_set_bytes: int = 0
    repeats: int = 1
    best_s: float = float("inf")
    num_batches: int = 0
    num_quiet: int = 0

    @property
    def rate(self) -> float:
        """Amount a second in the best batch."""
        return self.amount / self.best_s

    def run_batch(self, batch_s: float) -> None:
        """One batch; the number of repeats grows until a batch is long enough."""
        elapsed = _time(self.call, self.repeats)
        self.best_s = min(self.best_s, elapsed / self.repeats)
        if elapsed < batch_s / 2:
            self.repeats *= 2 if elapsed > batch_s / 16 else 8


@dataclass(slots=True)
class _Canary:
    """Times a fixed chain of instructions, and remembers the best."""

    call: Callable[[int], None]
    repeats: int = 1
    best_s: float = float("inf")

    def is_quiet(self) -> bool:
        """Runs the chain; whether it was about as fast as ever."""
        elapsed = _time(self.call, self.repeats)
        self.best_s = min(self.best_s, elapsed)
        return elapsed <= _DISTURBED * self.best_s


class _Run:
    """All trials with one number of threads."""

    def __init__(
        self,
        loops: ProbeModule,
        code: bytes,
        target: CpuTarget,
        machine: Machine,
        threads: int,
        options: ProbeOptions,
    ) -> None:
        self.loops, self.machine, self.threads = loops, machine, threads
        self.notes: list[str] = []
        self.processors = machine.processors[:threads]
        self.pool = ThreadPool(code, threads, loops.exports)
        self.vector_bytes = target.vector_bytes
        self._memory: list[npt.NDArray[np.uint8]] = []
        if not self.pool.pin(self.processors):
            self.notes.append("threads could not be bound to processors")
        if target.has_amx_int8:
            self.notes.append("AMX is present and was not measured")
        with self._pinned():
            self.canary = self._make_canary()
            self.clock = _Trial("clock", "clock", self.canary.call, float(CANARY_STEPS))
            self.trials = [*self._peaks(), *self._streams(options), *self._forks(), self.clock]

    def close(self) -> None:
        """Ends the threads."""
        self.pool.close()

    def measure(self, budget_s: float, batch_s: float) -> None:
        """One round over all trials, each for a time; twice that while none was undisturbed."""
        with self._pinned():
            for trial in self.trials:
                start = time.perf_counter()
                before = self.canary.is_quiet()
                while True:
                    trial.run_batch(batch_s)
                    after = self.canary.is_quiet()
                    trial.num_batches += 1
                    trial.num_quiet += before and after
                    before = after
                    limit = budget_s if trial.num_quiet else 2 * budget_s
                    if time.perf_counter() - start > limit:
                        break

    @property
    def quiet_share(self) -> float:
        """The part of all batches that nothing disturbed."""
        total = sum(trial.num_batches for trial in self.trials)
        return sum(trial.num_quiet for trial in self.trials) / max(1, total)

    def result(self) -> Roofs:
        """The roofs that the best batches show."""
        peaks = {trial.name: trial.rate for trial in self.trials if not trial.pattern}
        forks = [trial for trial in self.trials if trial.pattern == "fork"]
        total = sum(trial.num_batches for trial in self.trials)
        disturbed = [f"{t.name} {t.pattern}".strip() for t in self.trials if not t.num_quiet]
        if disturbed:
            self.notes.append(f"never undisturbed: {', '.join(disturbed)}")
        self.notes.append(f"{self.quiet_share:.0%} of {total} batches were undisturbed")
        return Roofs(
            device=self.machine.cpu,
            threads=self.threads,
            peaks_flops=peaks,
            levels=self._levels(),
            source=f"measured on {datetime.now(UTC):%Y-%m-%d}",
            clock_hz=self.clock.rate,
            instructions={peak.dtype: peak.instruction for peak in self.loops.peaks},
            costs={f"{trial.name}_us": 1e6 / trial.rate for trial in forks},
            notes=tuple(self.notes),
            undisturbed=self.quiet_share,
        )

    def _levels(self) -> tuple[Level, ...]:
        found: dict[str, dict[str, float]] = {}
        sizes: dict[str, int] = {}
        for trial in self.trials:
            if trial.pattern in _PATTERNS:
                found.setdefault(trial.name, {})[trial.pattern] = trial.rate
                sizes[trial.name] = trial.working_set_bytes
        return tuple(
            Level(
                name=name,
                bytes_per_s=max(rates.values()),
                patterns=rates,
                working_set_bytes=sizes[name],
            )
            for name, rates in found.items()
        )

    # --- trials -----------------------------------------------------------------------------------

    @contextmanager
    def _pinned(self) -> Iterator[None]:
        """Binds the calling thread to the first processor."""
        if not hasattr(os, "sched_setaffinity"):
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self.processors[0]})
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    def _rows(self) -> Words:
        """A context; each row's results go to a cache line of its own."""
        scratch = self._bytes(SCRATCH_BYTES * self.threads)
        rows = self._bytes(8 * ROW_WORDS * self.threads).view(np.int64)
        rows = rows.reshape(self.threads, ROW_WORDS)
        rows[:] = 0
        rows[:, 3] = scratch.ctypes.data + SCRATCH_BYTES * np.arange(self.threads)
        return rows

    def _bytes(self, size: int) -> npt.NDArray[np.uint8]:
        made = allocate(size, "the probe")
        self._memory.append(made)
        return made

    def _caller(self, symbol: str, rows: Words) -> Callable[[int], None]:
        """Runs a body on all threads with the given repeats."""
        body = self.pool.loaded.address(symbol)
        run = self.pool.loaded.function("tw_pool_run", None, *RUN)

        def call(repeats: int) -> None:
            rows[:, 0] = repeats
            run(self.pool.handle, body, rows.ctypes.data, self.threads, 1)

        return call

    def _make_canary(self) -> _Canary:
        rows = self._rows()
        source = self._bytes(64).view(np.int64)
        source[:2] = (0x5DEECE66D, 0x9E3779B9)
        rows[:, 1] = source.ctypes.data
        made = _Canary(self._caller("probe_canary", rows))
        while min(_time(made.call, made.repeats) for _ in range(_TRIES)) < _CANARY_S:
            made.repeats *= 2
        return made

    def _peaks(self) -> list[_Trial]:
        source = self._bytes(4 * self.vector_bytes)
        source[:] = OPERAND_BYTE
        trials = []
        for peak in self.loops.peaks:
            rows = self._rows()
            rows[:, 1] = source.ctypes.data
            call = self._caller(peak.symbol, rows)
            amount = float(peak.flops_per_repeat * self.threads)
            trials.append(_Trial(peak.dtype, "", call, amount))
        return trials

    def _streams(self, options: ProbeOptions) -> list[_Trial]:
        sizes = working_sets(self.machine, self.threads, options.dram_bytes)
        self.notes += [
            f"L{cache.level} is too small for a thread to be measured"
            for cache in self.machine.caches
            if f"L{cache.level}" not in sizes
        ]
        trials = []
        for name, size in sizes.items():
            per_array = self._whole(size // 3)
            distance = per_array + _ARRAY_GAP_BYTES
            starts = [self._bytes(3 * distance).ctypes.data for _ in range(self.threads)]
            rows = self._rows()
            rows[:, 1], rows[:, 2] = starts, 3 * distance // 4
            self._caller("probe_fill", rows)(1)
            for pattern, (symbol, arrays, crossings) in _PATTERNS.items():
                if pattern == _STREAMING and name != "DRAM":
                    continue
                extent = 3 * distance if arrays == 1 else per_array
                most = _WINDOW_BYTES // arrays // self.threads if name == "DRAM" else extent
                window = self._whole(min(extent, most))
                mine = self._rows()
                mine[:, 1], mine[:, 2], mine[:, 4] = starts, window // 4, distance
                call = _in_turn(self._caller(symbol, mine), mine, window, extent)
                moved = float(window * arrays * crossings * self.threads)
                trials.append(_Trial(name, pattern, call, moved, 3 * distance))
        return trials

    def _whole(self, num_bytes: int) -> int:
        """The largest size that the loops cover exactly; at least one step of them."""
        unit = UNROLL_VECTORS * self.vector_bytes
        return max(unit, num_bytes // unit * unit)

    def _forks(self) -> list[_Trial]:
        if self.threads == 1:
            return []
        rows = self._rows()
        fork = self.pool.loaded.function("probe_fork", None, *_FORK)

        def call(repeats: int) -> None:
            fork(self.pool.handle, rows.ctypes.data, self.threads, repeats)

        return [_Trial("fork_join", "fork", call, 1.0)]


def _in_turn(
    call: Callable[[int], None], rows: Words, window: int, extent: int
) -> Callable[[int], None]:
    """Moves the arrays' starts on from call to call, so that a part is touched again only after
    all the others; where there is no room for two parts, the call itself."""
    if extent < 2 * window:
        return call
    first, offset = rows[:, 1].copy(), 0

    def call_in_turn(repeats: int) -> None:
        nonlocal offset
        for _ in range(repeats):
            rows[:, 1] = first + offset
            call(1)
            offset = offset + window if offset + 2 * window <= extent else 0

    return call_in_turn


# --- taking times ---------------------------------------------------------------------------------


def _time(call: Callable[[int], None], repeats: int) -> float:
    start = time.perf_counter_ns()
    call(repeats)
    return (time.perf_counter_ns() - start) * 1e-9
