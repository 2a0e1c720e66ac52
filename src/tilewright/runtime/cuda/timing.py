"""How long kernels take on the GPU, by its own clock.

Input -> Output: a graph, or what enqueues work -> microseconds.
Method: events around replays on an idle stream.
Not here: what is timed, and what becomes of it (profile, tuning).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.runtime.cuda.driver import bindings, check

_WARM_UP = 3


def times_us(
    enqueue: Callable[[], Any], stream: Any, runs: int, warm_up: int = _WARM_UP
) -> list[float]:
    """Times of single runs, the first ones left out.

    Raises:
        DeviceFault: a kernel failed.
    """
    driver = bindings()
    start, stop = (check(driver.cuEventCreate(0), "making an event") for _ in range(2))
    found = []
    for number in range(runs + warm_up):
        check(driver.cuEventRecord(start, stream), "timing")
        enqueue()
        check(driver.cuEventRecord(stop, stream), "timing")
        check(driver.cuStreamSynchronize(stream), "timing")
        if number >= warm_up:
            found.append(1e3 * float(check(driver.cuEventElapsedTime(start, stop), "timing")))
    for event in (start, stop):
        check(driver.cuEventDestroy(event), "dropping an event")
    return found
