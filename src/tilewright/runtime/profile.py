"""Measures where the time of a run goes, without changing what runs.

Input -> Output: an executor, a program and checked inputs -> ``Profile``.
Method: runs with and without the clock take turns and share plans and memory. The native driver
looks at its clock once after each row, so kernel times add up to the time in native code. Other
programs only make things slower, so the fastest quarter of the runs with the clock is taken, and
every number, the whole run's too, is the mean over these same runs: so the parts add up to it.
Not here: rendering (report.profile).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter_ns, process_time_ns, thread_time_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.dtypes import FLOAT32
from tilewright.report.profile import Event, Profile, StepTime
from tilewright.runtime.cpu.native import NativeCode
from tilewright.runtime.executor import Executor
from tilewright.runtime.program import (
    Bind,
    Interpret,
    KernelCall,
    Program,
    Reshape,
    Segment,
    StageCall,
    Step,
    TensorSpec,
    all_steps,
)
from tilewright.runtime.segment import Context
from tilewright.runtime.segment_layout import num_rows

_WARM_UP = 2
_RUNS, _FEWEST_RUNS = 50, 5
_LONGEST_NS = 10_000_000_000  # for as many runs as nobody asked for
_CALIBRATIONS = 200
_STATISTICS = Path("/proc/stat")
_SHORTEST_NS = 100_000_000  # in which ten ticks of the system's count make sense


@dataclass(slots=True)
class Sample:
    """What one run gave, in nanoseconds.

    Attributes:
        launches: (segment's id, start, time of each row) of every segment that ran.
        host: (step's id, start, duration, part of it outside of inner steps).
        start, total: of the whole run.
        charged: what launches and outermost host steps have taken so far, with the cost of noting.
        noting: cost of noting all times.
        on_processor: part of the run that its thread had a processor.
    """

    launches: list[tuple[int, int, npt.NDArray[np.int64]]] = field(default_factory=list)
    host: list[tuple[int, int, int, int]] = field(default_factory=list)
    start: int = 0
    total: int = 0
    charged: int = 0
    noting: int = 0
    on_processor: int = 0


class Stopwatch:
    """Notes times while an executor works.

    While a run is timed it only keeps numbers; ``Ledger`` makes sense of them afterwards.

    Args:
        native: the code of the executor.
        cost_ns: what noting one time takes beside the time itself; it is charged to nobody.
        rows_cost_ns: what memory for the times of rows takes.
    """

    def __init__(self, native: NativeCode, cost_ns: int = 0, rows_cost_ns: int = 0) -> None:
        self.sample = Sample()
        self._native = native
        self._cost_ns = cost_ns
        self._rows_cost_ns = cost_ns + rows_cost_ns

    def host_step(self, step: Step, work: Callable[[], None]) -> None:
        """Does the work of a step, which is charged less what steps inside it were."""
        sample = self.sample
        before, start = sample.charged, perf_counter_ns()
        work()
        duration = perf_counter_ns() - start
        own = duration - (sample.charged - before)
        sample.charged = before + duration + self._cost_ns
        sample.noting += self._cost_ns
        sample.host.append((id(step), start, duration, own))

    def launch(self, segment: Segment, context: Context) -> None:
        """Runs a segment's kernels with the driver that keeps time."""
        times = np.zeros(len(context.rows), dtype=np.int64)
        sample, start = self.sample, perf_counter_ns()
        self._native.run(context, times)
        sample.charged += perf_counter_ns() - start + self._cost_ns
        sample.noting += self._rows_cost_ns
        sample.launches.append((id(segment), start, times))


class Ledger:
    """A sample by kernel and host step.

    Attributes:
        kernels, host: nanoseconds by the number of the call or step.
        calls: how often each of them ran, by (kind, number).
        outside: nanoseconds of the run in neither.
        noting, on_processor: as in the sample.
        events: (kind, number, start, duration).
    """

    def __init__(self, program: Program, sample: Sample) -> None:
        self.kernels: dict[int, int] = {}
        self.host: dict[int, int] = {}
        self.calls: dict[tuple[str, int], int] = {}
        self.events: list[tuple[str, int, int, int]] = [("run", 0, sample.start, sample.total)]
        self.start, self.total = sample.start, sample.total
        self.noting, self.on_processor = sample.noting, sample.on_processor
        segments: dict[int, tuple[int, Segment]] = {}
        steps: dict[int, int] = {}
        count = 0
        for number, step in enumerate(all_steps(program)):
            steps[id(step)] = number
            if isinstance(step, Segment):
                segments[id(step)] = (count, step)
                count += len(step.calls)
        for key, start, duration, own in sample.host:
            self._add("host", steps[key], start, duration, own)
        for key, start, times in sample.launches:
            first, segment = segments[key]
            at, row = start, 0
            for number, call in enumerate(segment.calls):
                rows = num_rows(call)
                spent = int(times[row : row + rows].sum())
                # A call whose guards do not hold has jumped over its own rows.
                ran = not call.guards or bool(times[row + len(call.guards) : row + rows].any())
                self._add("kernel", first + number, at, spent, spent, ran)
                at, row = at + spent, row + rows
        inside = sum(self.kernels.values()) + sum(self.host.values())
        self.outside = max(0, sample.total - inside - sample.noting)

    def _add(
        self, kind: str, number: int, start: int, duration: int, own: int, ran: bool = True
    ) -> None:
        times = self.kernels if kind == "kernel" else self.host
        times[number] = times.get(number, 0) + own
        self.calls[kind, number] = self.calls.get((kind, number), 0) + ran
        self.events.append((kind, number, start, duration))


def profile_runs(
    executor: Executor,
    program: Program,
    run_with: Callable[[Executor], Any],
    *,
    runs: int | None,
    threads: int,
    symbols: Callable[[], Mapping[str, int]],
) -> Profile:
    """Times runs with and without the clock in turns.

    Args:
        executor: runs the program.
        program: what it runs.
        run_with: does one whole run with an executor, from the caller's arrays to results.
        runs: timed runs of each kind; None for 50, or at least 5 within 10 seconds.
        threads: of the engine, for the record.
        symbols: the sizes of a run's symbolic dims, once one has run.
    """
    watch = Stopwatch(executor.native, *_costs_ns(executor.native))
    timed = executor.watched(watch)
    others = _Others()
    plain: list[int] = []
    samples: list[Sample] = []
    end = perf_counter_ns() + _LONGEST_NS
    for number in range(_WARM_UP + (_RUNS if runs is None else runs)):
        if runs is None and len(samples) >= _FEWEST_RUNS and perf_counter_ns() > end:
            break
        start = perf_counter_ns()
        run_with(executor)
        spent = perf_counter_ns() - start
        watch.sample = sample = Sample()
        start_busy = thread_time_ns()
        sample.start = perf_counter_ns()
        run_with(timed)
        sample.total = perf_counter_ns() - sample.start
        sample.on_processor = thread_time_ns() - start_busy if threads == 1 else sample.total
        if number >= _WARM_UP:
            plain.append(spent)
            samples.append(sample)
    summary = _Summary(program, [Ledger(program, sample) for sample in samples], symbols())
    return replace(summary.profile(threads=threads, plain=plain), others=others.share())


class _Others:
    """What other programs take of the machine's processors, by the system's own count."""

    def __init__(self) -> None:
        self._wall, self._own, self._busy = perf_counter_ns(), process_time_ns(), _busy_ticks()

    def share(self) -> float:
        """Since this was made; 0 where the system does not tell, or after too short a time."""
        wall, busy = perf_counter_ns() - self._wall, _busy_ticks()
        if busy is None or self._busy is None or wall < _SHORTEST_NS:
            return 0.0
        ticks = os.sysconf("SC_CLK_TCK")
        taken = (busy - self._busy) * 1e9 / ticks - (process_time_ns() - self._own)
        return min(1.0, max(0.0, taken / (wall * (os.cpu_count() or 1))))


def _busy_ticks() -> int | None:
    """Ticks in which a processor of the machine was not idle."""
    try:
        line = _STATISTICS.read_text(encoding="ascii").partition("\n")[0].split()
        numbers = [int(word) for word in line[1:9]]
    except (OSError, ValueError):
        return None
    return sum(numbers) - sum(numbers[3:5]) if len(numbers) > 4 else None  # idle, waiting for disks


def _costs_ns(native: NativeCode) -> tuple[int, int]:
    """What noting one time takes beside the time that is noted, and what memory for rows takes."""
    watch = Stopwatch(native)
    step = Reshape(source="", target=TensorSpec(name="", dtype=FLOAT32, shape=()))
    steps: list[int] = []
    rows: list[int] = []
    for _ in range(_CALIBRATIONS):
        start = perf_counter_ns()
        watch.host_step(step, partial(_do_nothing))
        middle = perf_counter_ns()
        steps.append(middle - start - watch.sample.host[-1][2])
        address = np.zeros(64, dtype=np.int64).ctypes.data
        rows.append(perf_counter_ns() - middle if address else 0)
    return sorted(steps)[_CALIBRATIONS // 4], sorted(rows)[_CALIBRATIONS // 4]


def _do_nothing() -> None:
    """Work that takes no time."""


def _fastest(nanoseconds: Sequence[int]) -> list[int]:
    """The positions of the fastest quarter."""
    order = sorted(range(len(nanoseconds)), key=lambda number: nanoseconds[number])
    return order[: max(1, len(order) // 4)]


def _mean_us(nanoseconds: Sequence[int]) -> float:
    return sum(nanoseconds) / len(nanoseconds) / 1e3


class _Summary:
    """The fastest quarter of the runs with the clock as one profile."""

    def __init__(
        self, program: Program, ledgers: Sequence[Ledger], sizes: Mapping[str, int]
    ) -> None:
        self._program, self._sizes = program, sizes
        self._all = ledgers
        self._chosen = [ledgers[number] for number in _fastest([led.total for led in ledgers])]

    def profile(self, *, threads: int, plain: Sequence[int]) -> Profile:
        """The profile; ``plain`` are nanoseconds of the runs without the clock."""
        chosen = self._chosen
        runtime_us = _mean_us([led.outside for led in chosen])
        kernels, host = self._kernels(), self._host()
        total = runtime_us + sum(step.microseconds for step in (*kernels, *host))
        totals = sorted(led.total for led in self._all)
        profiled_us = _mean_us([led.total for led in chosen])
        noting_us = _mean_us([led.noting for led in chosen])
        return Profile(
            kernels=tuple(replace(step, share=step.microseconds / total) for step in kernels),
            host=tuple(replace(step, share=step.microseconds / total) for step in host),
            runtime_us=runtime_us,
            end_to_end_us=max(total, profiled_us - noting_us),
            profiled_us=profiled_us,
            plain_us=_mean_us([plain[number] for number in _fastest(plain)]),
            on_processor_us=_mean_us([led.on_processor for led in chosen]),
            median_us=totals[len(totals) // 2] / 1e3,
            runs=len(self._all),
            threads=threads,
            sizes=dict(self._sizes),
            events=tuple(_events(self._program, chosen[0])),
        )

    def _kernels(self) -> list[StepTime]:
        return [
            StepTime(
                index=number,
                kind="kernel",
                name=call.name,
                sources=call.sources,
                microseconds=_mean_us([led.kernels.get(number, 0) for led in self._chosen]),
                best_us=self._best_us("kernel", number),
                share=0.0,
                calls=self._chosen[0].calls.get(("kernel", number), 0),
                iterations=_iterations(call, self._sizes),
            )
            for number, call in enumerate(all_calls(self._program))
        ]

    def _host(self) -> list[StepTime]:
        return [
            StepTime(
                index=-1,
                kind=type(step).__name__,
                name=step_name(step),
                sources=step_sources(step),
                microseconds=_mean_us([led.host.get(number, 0) for led in self._chosen]),
                best_us=self._best_us("host", number),
                share=0.0,
                calls=self._chosen[0].calls.get(("host", number), 0),
                iterations=0,
            )
            for number, step in enumerate(all_steps(self._program))
            if not isinstance(step, Segment)
        ]

    def _best_us(self, kind: str, number: int) -> float:
        """The least time of a part, in runs that called it as often as the chosen ones."""
        calls = self._chosen[0].calls.get((kind, number), 0)
        alike = [led for led in self._all if led.calls.get((kind, number), 0) == calls]
        times = [(led.kernels if kind == "kernel" else led.host).get(number, 0) for led in alike]
        return min(times) / 1e3


def _iterations(call: KernelCall, sizes: Mapping[str, int]) -> int:
    """Parallel iterations of one call; 0 where a size is only known while it runs."""
    counts = [stage.iterations for stage in call.stages if isinstance(stage, StageCall)]
    known = all(count.symbols <= sizes.keys() for count in counts)
    return sum(count.evaluate(sizes) for count in counts) if known else 0


def _events(program: Program, sample: Ledger) -> Iterator[Event]:
    calls, steps = list(all_calls(program)), list(all_steps(program))
    for kind, number, start, duration in sorted(sample.events, key=lambda event: event[2]):
        name, sources = "run", tuple[str, ...]()
        if kind == "kernel":
            name, sources = f"#{number} {calls[number].name}", calls[number].sources
        elif kind == "host":
            name, sources = step_name(steps[number]), step_sources(steps[number])
        yield Event(
            kind=kind,
            name=name,
            start_us=(start - sample.start) / 1e3,
            duration_us=duration / 1e3,
            sources=sources,
        )


def all_calls(program: Program) -> Iterator[KernelCall]:
    """Every kernel call of an engine in order; its position is the kernel's number."""
    for step in all_steps(program):
        if isinstance(step, Segment):
            yield from step.calls


def step_name(step: Step) -> str:
    """What people call a host step."""
    match step:
        case Interpret():
            return step.op_type
        case Bind():
            return step.function
        case Reshape():
            return step.target.name
    return type(step).__name__


def step_sources(step: Step) -> tuple[str, ...]:
    """The graph nodes of a host step."""
    node = getattr(step, "node", None)
    return (node,) if isinstance(node, str) else ()
