"""Whether a schedule of copies and kernels over streams is free of races.

Input -> Output: operations in the order in which the host enqueues them -> the races.
    a kernel on stream 1 reads what stream 2 is still copying  ->  a race, unless an event orders
    them
Method: happens-before by vector clocks. Operations of one stream run in order; ``Wait`` orders what
follows on its stream behind everything that was enqueued on the other before ``Record``; ``Sync``
has the host wait. Work on the stream ``HOST`` is the host's own: everything that it enqueues later
comes after it. Two operations race when neither happens before the other and one writes bytes
that the other touches.
Guarantees: complete for the operations given: no race is missed, none is reported that an order
excludes.
Not here: what a kernel does inside (its buffers are what it says it reads and writes).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.core.errors import BadOption, InternalError

HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Bytes of a buffer; ``stop`` None means to its end."""

    buffer: str
    start: int = 0
    stop: int | None = None

    def meets(self, other: Span) -> bool:
        """Whether two spans share a byte."""
        if self.buffer != other.buffer:
            return False
        before = self.stop is not None and self.stop <= other.start
        after = other.stop is not None and other.stop <= self.start
        return not before and not after


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A kernel or copy: what it is called, its stream, the bytes that it reads and writes."""

    name: str
    stream: str
    reads: tuple[Span, ...] = ()
    writes: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An event is recorded on a stream."""

    event: str
    stream: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A stream waits for an event."""

    event: str
    stream: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """The host waits for an event, for a stream, or for all of them."""

    stream: str | None = None
    event: str | None = None


Operation = Work | Record | Wait | Sync


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Two pieces of work without an order between them that touch the same bytes."""

    first: str
    second: str
    buffer: str
    kind: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.buffer}: {self.first} and {self.second} are not ordered"


def whole(buffer: str) -> Span:
    """All bytes of a buffer."""
    return Span(buffer=buffer)


def find_races(operations: Iterable[Operation]) -> list[Race]:
    """All races of a schedule, in the order of their second work.

    Raises:
        BadOption: a stream waits for an event that was not recorded.
    """
    clocks = _Clocks()
    done: dict[str, list[Work]] = {}
    races: list[Race] = []
    for operation in operations:
        match operation:
            case Work():
                seen = clocks.begin(operation.stream)
                for stream, works in done.items():
                    for earlier in works[seen.get(stream, 0) :]:
                        races += _between(earlier, operation)
                done.setdefault(operation.stream, []).append(operation)
            case Record():
                clocks.record(operation.event, operation.stream)
            case Wait():
                clocks.wait(operation.event, operation.stream)
            case Sync():
                clocks.sync(operation)
    return races


def require_no_races(operations: Sequence[Operation]) -> None:
    """Raises InternalError for a schedule of ours that has a race."""
    races = find_races(operations)
    if races:
        raise InternalError("; ".join(map(str, races[:5])))


@dataclass(slots=True)
class _Clocks:
    """For each stream, how much of every stream happens before what is enqueued next."""

    streams: dict[str, dict[str, int]] = field(default_factory=dict)
    events: dict[str, Mapping[str, int]] = field(default_factory=dict)
    host: dict[str, int] = field(default_factory=dict)

    def _of(self, stream: str) -> dict[str, int]:
        """A stream's clock; what the host waited for happens before everything it enqueues."""
        if stream == HOST:
            return self.host
        clock = self.streams.setdefault(stream, {})
        _join(clock, self.host)
        return clock

    def begin(self, stream: str) -> dict[str, int]:
        clock = self._of(stream)
        clock[stream] = clock.get(stream, 0) + 1
        return clock

    def record(self, event: str, stream: str) -> None:
        self.events[event] = dict(self._of(stream))

    def wait(self, event: str, stream: str) -> None:
        if event not in self.events:
            raise BadOption(
                f"stream {stream} waits for the event {event}, which was not recorded",
                remedy="record the event first: such a wait orders nothing",
            )
        _join(self._of(stream), self.events[event])

    def sync(self, one: Sync) -> None:
        if one.event is not None:
            self.wait(one.event, HOST)
            return
        for name in [one.stream] if one.stream is not None else list(self.streams):
            _join(self.host, self._of(name))


def _join(clock: dict[str, int], other: Mapping[str, int]) -> None:
    for stream, number in other.items():
        clock[stream] = max(clock.get(stream, 0), number)


def _between(earlier: Work, later: Work) -> list[Race]:
    found = []
    pairs = (
        ("read after write", earlier.writes, later.reads),
        ("write after read", earlier.reads, later.writes),
        ("write after write", earlier.writes, later.writes),
    )
    for kind, ours, theirs in pairs:
        shared = dict.fromkeys(a.buffer for a in ours for b in theirs if a.meets(b))
        found += [
            Race(first=earlier.name, second=later.name, buffer=buffer, kind=kind)
            for buffer in shared
        ]
    return found
