"""How long the kernels of a run take on the GPU, measured by its own clock.

Input -> Output: a context -> microseconds of all its launches as one graph, or of one launch.
Method: events around replays; the median of several. A single launch is repeated in a graph, so
its data may lie in the L2 cache: such times rank kernels, they do not add up to a run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from tilewright.runtime.cuda.context import CudaContext
from tilewright.runtime.cuda.driver import bindings, check
from tilewright.runtime.cuda.modules import Modules
from tilewright.runtime.cuda.plan import Step

_COPIES = 20


def run_us(context: CudaContext, runs: int = 100) -> list[float]:
    """Times of all kernels of a run, one for each replay, the first ones left out."""
    return _times(context, context.replay, runs)


def step_us(context: CudaContext, step: Step, modules: Modules, runs: int = 7) -> float:
    """Time of one launch, as the median of repeated ones."""

    def enqueue() -> None:
        for _ in range(_COPIES):
            context.launch(step, modules)

    graph = context.capture(enqueue)
    driver = bindings()
    times = _times(
        context, lambda: check(driver.cuGraphLaunch(graph, context.stream), "timing"), runs
    )
    check(driver.cuGraphExecDestroy(graph), "dropping a graph")
    return statistics.median(times) / _COPIES


def _times(context: CudaContext, enqueue: Callable[[], Any], runs: int) -> list[float]:
    driver = bindings()
    start, stop = (check(driver.cuEventCreate(0), "making an event") for _ in range(2))
    found = []
    for number in range(runs + 3):
        check(driver.cuEventRecord(start, context.stream), "timing")
        enqueue()
        check(driver.cuEventRecord(stop, context.stream), "timing")
        context.finish()
        if number >= 3:
            found.append(1e3 * float(check(driver.cuEventElapsedTime(start, stop), "timing")))
    for event in (start, stop):
        check(driver.cuEventDestroy(event), "dropping an event")
    return found
