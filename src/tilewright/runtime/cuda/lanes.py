"""Kernels of a plan that do not need each other, on several streams.

Input -> Output: a plan, a number of streams -> ``Lanes``: the stream of each launch, and which
launches it waits for.
Method: what a launch reads and writes, with the bytes of the arena that values share one after the
other, gives what it depends on; it goes where something that it depends on was last, so that most
chains stay on a stream.
Guarantees: the schedule is proven free of races.
Not here: whether several streams pay (tune.on_gpu), capturing (graph).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.runtime.cuda.plan import CudaPlan, Step
from tilewright.runtime.hazards import Operation, Record, Span, Wait, Work, require_no_races


@dataclass(frozen=True, slots=True)
class Lanes:
    """Where and after what launches run.

    Attributes:
        of: the stream of each launch, from 0.
        waits: launches of other streams whose end each launch has to wait for.
    """

    of: tuple[int, ...]
    waits: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        """How many streams are used."""
        return max(self.of, default=0) + 1


def lanes_of(plan: CudaPlan, most: int) -> Lanes:
    """The launches of a plan on at most so many streams."""
    touched = accesses(plan)
    needs = [
        [k for k in range(number) if _conflict(touched[k], touched[number])]
        for number in range(len(touched))
    ]
    feeds = [
        {k for k in needed if _feeds(touched[k], touched[number])}
        for number, needed in enumerate(needs)
    ]
    found = _assign(needs, feeds, most)
    require_no_races(operations(plan.steps, touched, found))
    return found


Access = tuple[tuple[Span, ...], tuple[Span, ...]]  # what is read, what is written


def accesses(plan: CudaPlan) -> list[Access]:
    """What each launch reads and writes: the call that names a value first makes it."""
    spans = plan.spans()
    given = {spec.name for spec in plan.inputs}
    maker: dict[str, int] = {}
    found: list[Access] = []
    for step in plan.steps:
        names = [name for name in dict.fromkeys(step.buffers) if name in spans]
        for name in names:
            maker.setdefault(name, step.number)
        made = [name for name in names if name not in given and maker[name] == step.number]
        # Launches of one call may read what others of it have made.
        found.append((tuple(spans[name] for name in names), tuple(spans[name] for name in made)))
    return found


def operations(steps: Sequence[Step], touched: Sequence[Access], lanes: Lanes) -> list[Operation]:
    """The schedule, for the hazard check."""
    recorded = {k for waits in lanes.waits for k in waits}
    found: list[Operation] = []
    for number, (step, (reads, writes)) in enumerate(zip(steps, touched, strict=True)):
        stream = f"lane {lanes.of[number]}"
        found += [Wait(event=f"end {k}", stream=stream) for k in lanes.waits[number]]
        name = f"{number}: {step.launch.symbol} of {step.call.name}"
        found.append(Work(name=name, stream=stream, reads=reads, writes=writes))
        if number in recorded:
            found.append(Record(event=f"end {number}", stream=stream))
    return found


def _conflict(earlier: Access, later: Access) -> bool:
    (read, written), (reads, writes) = earlier, later
    return any(a.meets(b) for a in written for b in (*reads, *writes)) or any(
        a.meets(b) for a in read for b in writes
    )


def _feeds(earlier: Access, later: Access) -> bool:
    """Whether a launch reads what another makes, rather than waits for its place."""
    reads = [span for span in later[0] if span not in later[1]]
    return any(a.meets(b) for a in earlier[1] for b in reads)


def _assign(needs: Sequence[Sequence[int]], feeds: Sequence[set[int]], most: int) -> Lanes:
    of: list[int] = []
    waits: list[tuple[int, ...]] = []
    last: list[int] = []  # launch of each lane
    before: list[dict[int, int]] = []  # of each launch: the last of each lane that ended before it
    for number, needed in enumerate(needs):
        known: dict[int, int] = {}
        for k in needed:
            for lane, latest in (*before[k].items(), (of[k], k)):
                known[lane] = max(known.get(lane, -1), latest)
        lane = _lane(feeds[number], last, known, most)
        if lane == len(last):
            last.append(-1)
        own = dict(before[last[lane]]) if last[lane] >= 0 else {}
        if last[lane] >= 0:
            own[lane] = last[lane]
        waited: list[int] = []
        for k in sorted(needed, reverse=True):
            if own.get(of[k], -1) < k and not (of[k] == lane and k == last[lane]):
                waited.append(k)
                for other, latest in (*before[k].items(), (of[k], k)):
                    own[other] = max(own.get(other, -1), latest)
        waits.append(tuple(sorted(waited)))
        of.append(lane)
        before.append(own)
        last[lane] = number
    return Lanes(tuple(of), tuple(waits))


def _lane(feeds: set[int], last: Sequence[int], known: dict[int, int], most: int) -> int:
    """Behind the latest that it reads from, else on a lane that has ended, else on a new one."""
    behind = [lane for lane, k in enumerate(last) if k in feeds]
    if behind:
        return max(behind, key=lambda lane: last[lane])
    ended = [lane for lane, k in enumerate(last) if known.get(lane, -1) >= k]
    if ended:
        return ended[0]
    if len(last) < most:
        return len(last)
    return min(range(len(last)), key=lambda lane: last[lane])
