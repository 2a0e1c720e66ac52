"""Times every stage of an engine's kernels inside whole runs.

Input -> Output: an executor, its program -> the nanoseconds of each stage of one run.
Guarantees: runs are those of ``Engine.run``; a kernel that runs several times is added up.
Not here: profiles for people (runtime.profile).
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.runtime.executor import Executor
from tilewright.runtime.profile import Sample, Stopwatch, all_calls
from tilewright.runtime.program import KernelCall, Program, Segment, all_steps


class StageClock:
    """Runs an engine and times its stages.

    Args:
        run_with: does one whole run with an executor.

    Attributes:
        calls: the kernel calls, in the order of ``run``'s result.
        offsets: [calls + 1]; where each call's stages begin in that result.
        run_ns: what the last run took.
    """

    def __init__(
        self, executor: Executor, program: Program, run_with: Callable[[Executor], Any]
    ) -> None:
        self._watch = Stopwatch(executor.native)
        self._timed = executor.watched(self._watch)
        self._run_with = run_with
        self.calls: tuple[KernelCall, ...] = tuple(all_calls(program))
        self.offsets = np.cumsum([0, *(len(call.stages) for call in self.calls)])
        self.run_ns = 0
        self._places: dict[int, npt.NDArray[np.int64]] = {}
        first = 0
        for step in all_steps(program):
            if isinstance(step, Segment):
                self._places[id(step)] = self._stages_of_rows(step, first)
                first += len(step.calls)

    def _stages_of_rows(self, segment: Segment, first: int) -> npt.NDArray[np.int64]:
        """The stage of each row of the driver; rows of guards and loops are past all stages."""
        past = int(self.offsets[-1])
        places: list[int] = []
        for number, call in enumerate(segment.calls, first):
            own = range(self.offsets[number], self.offsets[number + 1])
            loop = 0 if call.steps is None else 1
            places += [past] * (len(call.guards) + loop) + [*own] + [past] * loop
        return np.array(places, dtype=np.int64)

    def run(self) -> npt.NDArray[np.int64]:
        """[stages]: nanoseconds of each stage in one run."""
        self._watch.sample = sample = Sample()
        start = perf_counter_ns()
        self._run_with(self._timed)
        self.run_ns = perf_counter_ns() - start
        times = np.zeros(self.offsets[-1] + 1, dtype=np.int64)
        for segment, _, rows in sample.launches:
            places = self._places[segment]  # rows behind those of calls are checks
            np.add.at(times, places, rows[: len(places)])
        return times[:-1]
