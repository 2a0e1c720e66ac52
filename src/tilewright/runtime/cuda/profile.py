"""Where the time of a run on a GPU goes, kernel by kernel.

Input -> Output: an executor, a program and checked inputs -> ``Profile``.
Method: a kernel's time is what a graph of the run's kernels up to it takes longer than the graph up
to the one before, by the GPU's clock: with the caches as the run leaves them and with what overlaps
(programmatic dependent launch), so the times add up to that of all kernels. Whole runs are timed by
the host, and the rest of them is the runtime's: copies, launches, waiting.
Not here: rendering (report.profile); the same for CPUs (runtime.profile).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Any

from tilewright.report.profile import Event, Profile, StepTime
from tilewright.runtime.cuda.context import CudaContext
from tilewright.runtime.cuda.executor import CudaExecutor, Launched
from tilewright.runtime.cuda.graph import Graph
from tilewright.runtime.cuda.plan import Step as Launch
from tilewright.runtime.cuda.timing import times_us
from tilewright.runtime.profile import step_name, step_sources
from tilewright.runtime.program import Program, Segment, Step, all_steps

_RUNS, _WARM_UP = 50, 3
_REPLAYS = 15


@dataclass(slots=True)
class _HostSteps:
    """Times of steps on the host, in nanoseconds by the step's id; waiting for the GPU is none."""

    took: dict[int, list[int]]

    def host_step(self, step: Step, work: Callable[[], None]) -> None:
        """Does the work of a step."""
        start = perf_counter_ns()
        work()
        self.took.setdefault(id(step), []).append(perf_counter_ns() - start)

    def launch(self, segment: Segment, context: Any) -> None:
        """Segments are timed by the GPU."""


def kernel_us(launched: Launched, replays: int = _REPLAYS) -> list[tuple[int, float]]:
    """What each call of a segment adds to its time: the call's number, microseconds.

    Raises:
        DeviceFault: a kernel failed.
    """
    context = launched.context
    steps = context.plan.steps
    addresses = context.addresses(launched.buffers)
    found: list[tuple[int, float]] = []
    before = 0.0
    for end, step in enumerate(steps, start=1):
        if end < len(steps) and steps[end].number == step.number:
            continue
        us = max(before, graph_us(context, steps[:end], addresses, replays))
        found.append((step.number, us - before))
        before = us
    return found


def graph_us(
    context: CudaContext, steps: list[Launch], addresses: Mapping[str, int], replays: int
) -> float:
    """The median time of launches as one graph.

    Raises:
        DeviceFault: a kernel failed.
    """
    stream = context.own_stream
    graph = Graph(context.launcher, steps, addresses, [stream])
    times = times_us(lambda: graph.launch(stream), stream, replays)
    graph.close()
    return statistics.median(times)


def profile_runs(
    executor: CudaExecutor,
    program: Program,
    run_with: Callable[[CudaExecutor], Any],
    *,
    runs: int | None,
    threads: int,
    symbols: Callable[[], Mapping[str, int]],
) -> Profile:
    """Times whole runs, then the kernels of one of them.

    Args:
        executor: runs the program.
        program: what it runs.
        run_with: does one whole run with an executor, from the caller's arrays to results.
        runs: whole runs to time; None for 50.
        threads: of the engine, for the record.
        symbols: the sizes of a run's symbolic dims, once one has run.
    """
    plain: list[float] = []
    profiled: list[float] = []
    watch = _HostSteps({})
    watched = executor.watched(watch)
    for number in range(_WARM_UP + (runs or _RUNS)):
        if number == _WARM_UP:
            watch.took.clear()
        for chosen, times in ((executor, plain), (watched, profiled)):
            start = perf_counter_ns()
            run_with(chosen)
            times.append((perf_counter_ns() - start) / 1e3)
    launched: list[Launched] = []
    run_with(executor.recorded(launched))
    kernels = _kernels(program, launched)
    for one in launched:
        executor.give_back(one)
    host = _host(program, watch)
    whole = statistics.median(plain[_WARM_UP:])
    parts = sum(step.microseconds for step in (*kernels, *host))
    end_to_end = max(whole, parts)
    return Profile(
        kernels=tuple(replace(s, share=s.microseconds / end_to_end) for s in kernels),
        host=tuple(replace(s, share=s.microseconds / end_to_end) for s in host),
        runtime_us=end_to_end - parts,
        end_to_end_us=end_to_end,
        profiled_us=whole,
        on_processor_us=whole,
        plain_us=whole,
        median_us=whole,
        runs=runs or _RUNS,
        threads=threads,
        sizes=dict(symbols()),
        events=tuple(_events(kernels)),
    )


def _kernels(program: Program, launched: Iterable[Launched]) -> list[StepTime]:
    took: dict[tuple[int, int], list[float]] = {}
    for one in launched:
        for number, each_us in kernel_us(one):
            times = took.setdefault((id(one.context.plan.segment), number), [])
            times += [each_us] * one.calls
    found: list[StepTime] = []
    for step in all_steps(program):
        if not isinstance(step, Segment):
            continue
        for number, call in enumerate(step.calls):
            us = took.get((id(step), number), [])
            found.append(
                StepTime(
                    index=len(found),
                    kind="kernel",
                    name=call.name,
                    sources=call.sources,
                    microseconds=sum(us),
                    best_us=sum(us),
                    share=0.0,
                    calls=len(us),
                    iterations=0,
                )
            )
    return found


def _host(program: Program, watch: _HostSteps) -> list[StepTime]:
    found = []
    for step in all_steps(program):
        if isinstance(step, Segment):
            continue
        times = watch.took.get(id(step), [])
        us = statistics.median(times) / 1e3 if times else 0.0
        found.append(
            StepTime(
                index=-1,
                kind=type(step).__name__,
                name=step_name(step),
                sources=step_sources(step),
                microseconds=us,
                best_us=min(times, default=0) / 1e3,
                share=0.0,
                calls=int(bool(times)),
                iterations=0,
            )
        )
    return found


def _events(kernels: Iterable[StepTime]) -> Iterable[Event]:
    """The kernels of a run, one after another."""
    at = 0.0
    for step in kernels:
        name = f"#{step.index} {step.name}"
        yield Event(
            kind="kernel",
            name=name,
            start_us=at,
            duration_us=step.microseconds,
            sources=step.sources,
        )
        at += step.microseconds
