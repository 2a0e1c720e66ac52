"""Races of schedules are found, and orders that exclude them are seen."""

from __future__ import annotations

import random

import pytest

from tilewright.core.errors import BadOption, InternalError
from tilewright.runtime.hazards import (
    Operation,
    Record,
    Span,
    Sync,
    Wait,
    Work,
    find_races,
    require_no_races,
    whole,
)

COPY = Work(name="copy x", stream="2", writes=(whole("x"),))
KERNEL = Work(name="double x", stream="1", reads=(whole("x"),), writes=(whole("y"),))


def test_a_kernel_that_reads_what_another_stream_still_copies_is_a_race() -> None:
    (race,) = find_races([COPY, KERNEL])
    assert str(race) == "read after write of x: copy x and double x are not ordered"


def test_an_event_between_them_mends_it() -> None:
    order: list[Operation] = [
        COPY,
        Record(event="copied", stream="2"),
        Wait(event="copied", stream="1"),
        KERNEL,
    ]
    assert find_races(order) == []
    require_no_races(order)


def test_an_event_recorded_too_early_does_not() -> None:
    early: list[Operation] = [
        Record(event="e", stream="2"),
        COPY,
        Wait(event="e", stream="1"),
        KERNEL,
    ]
    assert len(find_races(early)) == 1
    with pytest.raises(InternalError, match="read after write of x"):
        require_no_races(early)


def test_a_wait_on_another_stream_does_not() -> None:
    other: list[Operation] = [
        COPY,
        Record(event="e", stream="2"),
        Wait(event="e", stream="3"),
        KERNEL,
    ]
    assert len(find_races(other)) == 1


def test_the_host_orders_what_it_waited_for() -> None:
    assert find_races([COPY, Sync(stream="2"), KERNEL]) == []
    assert find_races([COPY, Sync(), KERNEL]) == []
    assert len(find_races([COPY, Sync(stream="1"), KERNEL])) == 1


def test_orders_pass_on_through_a_third_stream() -> None:
    order: list[Operation] = [
        COPY,
        Record(event="a", stream="2"),
        Wait(event="a", stream="3"),
        Record(event="b", stream="3"),
        Wait(event="b", stream="1"),
        KERNEL,
    ]
    assert find_races(order) == []


def test_an_event_recorded_again_stands_for_the_later_place() -> None:
    late = Work(name="copy z", stream="2", writes=(whole("z"),))
    reader = Work(name="read z", stream="1", reads=(whole("z"),))
    order: list[Operation] = [COPY, Record(event="e", stream="2"), Wait(event="e", stream="1")]
    assert len(find_races([*order, late, reader])) == 1
    again: list[Operation] = [
        late,
        Record(event="e", stream="2"),
        Wait(event="e", stream="1"),
        reader,
    ]
    assert find_races([*order, *again]) == []


def test_reuse_of_a_buffer_is_a_race_of_both_kinds() -> None:
    overwrite = Work(name="copy next", stream="2", writes=(whole("x"), whole("y")))
    kinds = [race.kind for race in find_races([KERNEL, overwrite])]
    assert kinds == ["write after read", "write after write"]


def test_parts_of_a_buffer_do_not_meet() -> None:
    left = Work(name="left", stream="1", writes=(Span(buffer="x", stop=64),))
    right = Work(name="right", stream="2", writes=(Span(buffer="x", start=64),))
    both = Work(name="both", stream="3", reads=(Span(buffer="x", start=60, stop=65),))
    assert find_races([left, right]) == []
    assert len(find_races([left, right, both])) == 2


def test_reads_do_not_race() -> None:
    assert find_races([KERNEL, Work(name="other", stream="2", reads=(whole("x"),))]) == []


def test_a_wait_for_nothing_is_an_error() -> None:
    with pytest.raises(BadOption, match="was not recorded"):
        find_races([Wait(event="never", stream="1")])


@pytest.mark.parametrize("seed", range(60))
def test_random_schedules_agree_with_a_search_of_the_graph(seed: int) -> None:
    """Edges of program order, events and host waits, and reachability between all pairs."""
    rng = random.Random(seed)
    order: list[Operation] = []
    recorded: list[str] = []
    for number in range(14):
        stream = str(rng.randrange(3))
        kind = rng.random()
        if kind < 0.55:
            spans = [whole(rng.choice("xyz")) for _ in range(2)]
            order.append(
                Work(name=str(number), stream=stream, reads=(spans[0],), writes=(spans[1],))
            )
        elif kind < 0.75:
            recorded.append(rng.choice("ab"))
            order.append(Record(event=recorded[-1], stream=stream))
        elif kind < 0.93 and recorded:
            order.append(Wait(event=rng.choice(recorded), stream=stream))
        else:
            order.append(Sync(stream=rng.choice([None, stream])))
    found = {(race.first, race.second) for race in find_races(order)}
    assert found == _unordered(order)


def _unordered(order: list[Operation]) -> set[tuple[str, str]]:
    before: list[set[int]] = []
    for place, operation in enumerate(order):
        own: set[int] = set()
        for earlier, other in enumerate(order[:place]):
            same = getattr(other, "stream", None) == getattr(operation, "stream", None)
            if not isinstance(operation, Sync) and not isinstance(other, Sync) and same:
                own |= {earlier} | before[earlier]
            if isinstance(other, Sync) and not isinstance(operation, Sync):
                own |= before[earlier]
            waited = isinstance(operation, Sync) and not isinstance(other, Sync)
            if waited and operation.stream in (None, other.stream):
                own |= {earlier} | before[earlier]
            if isinstance(operation, Sync) and isinstance(other, Sync):
                own |= before[earlier]
        if isinstance(operation, Wait):
            last = max(
                k
                for k, other in enumerate(order[:place])
                if isinstance(other, Record) and other.event == operation.event
            )
            own |= {last} | before[last]
        before.append(own)
    works = [(k, item) for k, item in enumerate(order) if isinstance(item, Work)]
    return {
        (a.name, b.name)
        for i, a in works
        for j, b in works
        if i < j and i not in before[j] and _touch(a, b)
    }


def _touch(a: Work, b: Work) -> bool:
    ours, theirs = {s.buffer for s in a.writes}, {s.buffer for s in b.writes}
    reads, others = {s.buffer for s in a.reads}, {s.buffer for s in b.reads}
    return bool(ours & (theirs | others) or theirs & reads)
