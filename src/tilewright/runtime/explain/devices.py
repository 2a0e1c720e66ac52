"""The least time of the same kernels on every device of the tables.

Input -> Output: a subject and sizes -> ``DeviceEstimate``s.
Guarantees: stated peaks and bandwidths only; kernels whose size is not known are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.hw.tables.boards import BOARDS
from tilewright.report.explanation import DeviceEstimate
from tilewright.runtime.explain.floors import Floors, Traffic, board_floors
from tilewright.runtime.explain.kernels import Subject
from tilewright.runtime.explain.traffic import CallTraffic, call_traffic, size_of, traffic_of


def device_estimates(
    subject: Subject, sizes: Mapping[str, int], footprint_bytes: float
) -> tuple[DeviceEstimate, ...]:
    """One estimate for each board.

    Args:
        sizes: of symbolic dims.
        footprint_bytes: memory that a whole run touches.
    """
    calls = call_traffic(subject.program, subject.constants)
    work = [found for item in calls if (found := _work(item, sizes)) is not None]
    return tuple(_estimate(board_floors(board, footprint_bytes), work) for board in BOARDS)


def _work(item: CallTraffic, sizes: Mapping[str, int]) -> tuple[int, str, Traffic] | None:
    flops, traffic = size_of(item.call.flops, sizes), traffic_of(item, sizes)
    return None if flops is None or traffic is None else (flops, item.call.dtype, traffic)


def _estimate(floors: Floors, work: list[tuple[int, str, Traffic]]) -> DeviceEstimate:
    by_limit: dict[str, float] = {}
    for flops, dtype, traffic in work:
        found = floors.bound(flops, dtype, traffic)
        if found is not None:
            by_limit[found.limit] = by_limit.get(found.limit, 0.0) + found.time_s * 1e6
    return DeviceEstimate(
        device=floors.roofs.device,
        floor_us=sum(by_limit.values()),
        limit=max(by_limit, key=lambda name: by_limit[name], default=""),
        source=floors.roofs.source,
    )
