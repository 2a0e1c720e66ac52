"""A profile: where the time of a run went.

Input -> Output: ``Profile`` -> text lines, JSON values, a trace for Chrome and Perfetto.
Guarantees: kernels, host steps and the runtime's own time are disjoint parts of a run.
Not here: measuring (runtime.profile).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tilewright.core.plural import plural
from tilewright.core.whole_file import whole_file
from tilewright.report.units import us_text

SCHEMA = "tilewright.profile/1"
_DISTURBED = 0.05
_UNSTEADY = 0.3  # how much slower than the fastest the middle run may be
_DOUBTFUL = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One kernel or host step; all times are of one run.

    Attributes:
        index: the kernel's number in the engine; -1 for a host step.
        kind: ``kernel``, or the host step's kind.
        name: for people.
        sources: graph nodes computed.
        microseconds: time of a run spent here.
        best_us: the least time that it took in any run, which other programs disturb least.
        share: of the run, which is the sum of all parts.
        calls: how often it was called in a run.
        iterations: parallel iterations of all stages in one call; 0 for a host step.
    """

    index: int
    kind: str
    name: str
    sources: tuple[str, ...]
    microseconds: float
    best_us: float
    share: float
    calls: int
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One interval of one run; microseconds since the run began."""

    kind: str
    name: str
    start_us: float
    duration_us: float
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Profile:
    """Where the time of a run went.

    Attributes:
        kernels: in order of the engine.
        host: steps that ran on the host.
        runtime_us: checking inputs, allocating and copying results, starting segments.
        end_to_end_us: the run that the parts are of, less what noting times takes.
        profiled_us: the same run with what noting times takes.
        on_processor_us: time of that run that its thread had a processor; the rest went to other
            programs. With several threads, which wait for each other, the whole run.
        plain_us: a run without profiling, timed in turns with the others.
        median_us: the middle one of all runs with profiling.
        others: part of the machine's processors that other programs took meanwhile; 0 if unknown.
        runs: how many of each kind were timed.
        threads: of the engine.
        sizes: of symbolic dims.
        events: of one run, in order.
    """

    kernels: tuple[StepTime, ...]
    host: tuple[StepTime, ...]
    runtime_us: float
    end_to_end_us: float
    profiled_us: float
    on_processor_us: float
    runs: int
    threads: int
    plain_us: float = 0.0
    median_us: float = 0.0
    others: float = 0.0
    sizes: Mapping[str, int] = field(default_factory=dict)
    events: tuple[Event, ...] = ()

    @property
    def kernels_us(self) -> float:
        """Time in kernels."""
        return sum(step.microseconds for step in self.kernels)

    @property
    def host_us(self) -> float:
        """Time in host steps."""
        return sum(step.microseconds for step in self.host)

    @property
    def sum_us(self) -> float:
        """Time of all parts."""
        return self.kernels_us + self.host_us + self.runtime_us

    @property
    def coverage(self) -> float:
        """The sum of all parts over the run that they are of: 1 up to rounding."""
        return self.sum_us / self.end_to_end_us if self.end_to_end_us else 1.0

    @property
    def waited(self) -> float:
        """The part of a run that other programs took."""
        if not self.profiled_us:
            return 0.0
        return max(0.0, 1 - self.on_processor_us / self.profiled_us)

    @property
    def overhead(self) -> float:
        """How much slower a run is with profiling, as a fraction."""
        return self.profiled_us / self.plain_us - 1.0 if self.plain_us else 0.0

    @property
    def disturbance(self) -> str:
        """What shows that the machine was busy; empty where nothing does."""
        if self.waited > _DISTURBED:
            return f"other programs took {self.waited:.0%} of a run: the machine is busy"
        if self.others > _DISTURBED:
            return f"other programs took {self.others:.0%} of the processors: the machine is busy"
        if self.profiled_us and self.median_us / self.profiled_us > 1 + _UNSTEADY:
            return (
                f"the middle run took {self.median_us / self.profiled_us:.1f} times as long as the "
                "fastest ones: the machine is busy"
            )
        if self.plain_us and abs(self.end_to_end_us / self.plain_us - 1) > _DOUBTFUL:
            return (
                f"runs without profiling took {us_text(self.plain_us)}, those with it "
                f"{us_text(self.end_to_end_us)}: the machine is busy"
            )
        return ""

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        kernels = plural(len(self.kernels), "kernel")
        return f"<Profile: {kernels}, {us_text(self.end_to_end_us)} end to end>"

    def text(self, most: int = 20) -> str:
        """Lines for a terminal: the totals, then the ``most`` expensive steps."""
        return profile_text(self, most)

    def json(self) -> dict[str, Any]:
        """JSON values (see docs/explain.md)."""
        return profile_json(self)

    def trace(self, path: str | Path) -> None:
        """Writes the run as a trace that chrome://tracing and Perfetto open.

        Raises:
            CacheError: the file cannot be written.
        """
        write_text(path, json.dumps(chrome_trace(self)))


def profile_json(profile: Profile) -> dict[str, Any]:
    """A profile as JSON values; events are left to the trace."""
    body = asdict(profile)
    del body["events"]
    derived = {
        "kernels_us": profile.kernels_us,
        "host_us": profile.host_us,
        "sum_us": profile.sum_us,
        "coverage": profile.coverage,
        "waited": profile.waited,
        "disturbance": profile.disturbance,
        "overhead": profile.overhead,
    }
    return {"schema": SCHEMA, **body, **derived}


def profile_text(profile: Profile, most: int = 20) -> str:
    """See ``Profile.text``."""
    sizes = ", ".join(f"{name}={size}" for name, size in profile.sizes.items())
    setting = ", ".join(
        [
            plural(profile.runs, "run"),
            plural(profile.threads, "thread"),
            *([sizes] if sizes else []),
        ]
    )
    totals = (
        f"kernels {us_text(profile.kernels_us)}, host steps {us_text(profile.host_us)}, "
        f"runtime {us_text(profile.runtime_us)}"
    )
    lines = [
        f"end to end {us_text(profile.end_to_end_us)} ({setting})",
        totals,
        f"profiling changes a run by {profile.overhead:+.1%}",
        "",
        f"{'time':>10} {'share':>6} {'calls':>5}  kernel",
    ]
    if profile.disturbance:
        lines.insert(1, profile.disturbance)
    steps = sorted((*profile.kernels, *profile.host), key=lambda step: -step.microseconds)
    for step in steps[:most]:
        where = f"#{step.index} {step.name}" if step.index >= 0 else f"{step.kind} {step.name}"
        lines.append(
            f"{us_text(step.microseconds):>10} {step.share:6.1%} {step.calls:5d}  {where}"
            f"  {shortened(step.sources)}"
        )
    if len(steps) > most:
        rest = sum(step.microseconds for step in steps[most:])
        lines.append(f"{us_text(rest):>10} {'':6} {'':5}  {len(steps) - most} more")
    return "\n".join(lines)


def shortened(sources: tuple[str, ...], most: int = 3) -> str:
    """The first nodes of a kernel, and how many more there are."""
    text = " + ".join(sources[:most])
    return f"{text} + {len(sources) - most} more" if len(sources) > most else text


def chrome_trace(profile: Profile) -> dict[str, Any]:
    """One run in the Trace Event Format (complete events, microseconds)."""
    names = {"process_name": "tilewright", "thread_name": "run"}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": key, "pid": 1, "tid": 1, "args": {"name": name}}
        for key, name in names.items()
    ]
    events += [
        {
            "ph": "X",
            "name": event.name,
            "cat": event.kind,
            "ts": round(event.start_us, 3),
            "dur": round(event.duration_us, 3),
            "pid": 1,
            "tid": 1,
            "args": {"nodes": list(event.sources)},
        }
        for event in profile.events
    ]
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def write_text(path: str | Path, text: str) -> None:
    """Writes a file whole or not at all.

    Raises:
        CacheError: it cannot be written.
    """
    with whole_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
