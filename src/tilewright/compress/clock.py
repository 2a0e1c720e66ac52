"""Whole runs of choices between integers and float, by the clock.

Input -> Output: nodes in float -> an engine; engines -> the least time of a run of each, in turns.
Guarantees: what is compared ran in turns in one process, so that whatever slows the machine down
slows all of them.
Not here: which choices are worth it (search, moves), times by node (latency).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

from tilewright.compiler.build import compile as compile_model
from tilewright.compress.data import Feeds
from tilewright.compress.job import Job
from tilewright.runtime.engine import Engine

_LEAST_TURNS, _MOST_TURNS = 7, 1000
_SECONDS = 2.0  # for all turns of a comparison, if these are not the fewest

Left = frozenset[str]  # nodes in float


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Of one quantisation.

    Attributes:
        job: what is written.
        feeds: of a run.
        threads: of the engines.
    """

    job: Job
    feeds: Feeds
    threads: int | None = None

    def in_float(self) -> Engine:
        """The float model."""
        return compile_model(self.job.model.model(), threads=self.threads, verify=False)

    def engine(self, left: Left = frozenset()) -> Engine:
        """The quantised model, some nodes of which are in float."""
        return compile_model(self.job.emit(left), threads=self.threads, verify=False)

    def times(self, engines: Mapping[str, Engine]) -> dict[str, float]:
        """Microseconds of the fastest run of each."""
        for engine in engines.values():
            self._run(engine)  # warms up
        best = dict.fromkeys(engines, math.inf)
        start, turns = perf_counter(), 0
        while turns < _LEAST_TURNS or (turns < _MOST_TURNS and perf_counter() < start + _SECONDS):
            for name, engine in engines.items():
                best[name] = min(best[name], self._run(engine))
            turns += 1
        return best

    def _run(self, engine: Engine) -> float:
        start = perf_counter()
        engine.run(self.feeds)
        return (perf_counter() - start) * 1e6
