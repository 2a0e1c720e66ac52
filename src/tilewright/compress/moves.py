"""Whether another choice next to the chosen one is faster: each is built and timed.

    one node the other way;  a run of 2, 4, 8 .. consecutive nodes to float
Input -> Output: a choice between integers and float -> the time of each choice next to it, relative
to it; from the fastest that keeps the budget the search goes on, until none is faster.
Guarantees: engines are timed in turns with the one that they are compared with; one that seems
faster is timed again before it is believed; few engines are in memory at once.
Not here: where the search starts (search).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tilewright.compress.calibrate import Progress
from tilewright.compress.clock import Clock, Left
from tilewright.report.quantization import Move

FASTER = 0.99  # of the time: less than the clock tells apart
_AT_ONCE = 8  # engines
_MOST_STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Descent:
    """Where the search ended.

    Attributes:
        left: nodes in float.
        moves: from there, the fastest first.
        steps: how often a faster choice was found.
    """

    left: Left
    moves: tuple[Move, ...]
    steps: int


def descend(
    clock: Clock,
    start: Left,
    nodes: Sequence[str],
    allowed: Callable[[Left], bool],
    progress: Progress | None = None,
) -> Descent:
    """Goes from choice to choice while one next to it is faster.

    Args:
        clock: of the quantisation.
        start: nodes in float.
        nodes: all of them, in the order of the graph.
        allowed: whether a choice keeps the budget.
        progress: called with (stage, choices so far, choices in all).
    """
    left, steps = start, 0
    while True:
        moves = _measured(clock, left, nodes, progress)
        better = None
        if steps < _MOST_STEPS:
            better = _best(clock, left, moves, allowed)
        if better is None:
            return Descent(left=left, moves=moves, steps=steps)
        left, steps = better, steps + 1


def neighbours(left: Left, nodes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Which nodes change, for each choice next to one."""
    yield from ((node,) for node in nodes)
    size = 2
    while size < len(nodes):
        for start in range(0, len(nodes), size):
            run = tuple(node for node in nodes[start : start + size] if node not in left)
            if len(run) > 1:
                yield run
        size *= 2


def after(left: Left, changed: Sequence[str]) -> Left:
    """The choice after a move: one node the other way, or several to float."""
    return left ^ set(changed) if len(changed) == 1 else left | set(changed)


def _measured(
    clock: Clock, left: Left, nodes: Sequence[str], progress: Progress | None
) -> tuple[Move, ...]:
    """All moves, the fastest first."""
    found = []
    changes = list(dict.fromkeys(neighbours(left, nodes)))
    base = clock.engine(left)
    for start in range(0, len(changes), _AT_ONCE):
        part = changes[start : start + _AT_ONCE]
        engines = {"": base}
        for number, changed in enumerate(part):
            if progress is not None:
                progress("moves", start + number, len(changes))
            engines[str(number)] = clock.engine(after(left, changed))
        times = clock.times(engines)
        found += [
            Move(
                nodes=changed,
                to="int8" if changed[0] in left else "float",
                ratio=times[str(number)] / times[""],
            )
            for number, changed in enumerate(part)
        ]
    return tuple(sorted(found, key=lambda move: (move.ratio, move.nodes)))


def _best(
    clock: Clock, left: Left, moves: Sequence[Move], allowed: Callable[[Left], bool]
) -> Left | None:
    """The fastest allowed choice after one move, or after all that are faster together."""
    faster = [after(left, move.nodes) for move in moves if move.ratio < FASTER]
    singles = [move.nodes[0] for move in moves if move.ratio < FASTER and len(move.nodes) == 1]
    choices = [choice for choice in dict.fromkeys([left ^ set(singles), *faster]) if choice != left]
    choices = [choice for choice in choices[:_AT_ONCE] if allowed(choice)]
    if not choices:
        return None
    engines = {"": clock.engine(left)}
    engines |= {str(number): clock.engine(choice) for number, choice in enumerate(choices)}
    times = clock.times(engines)
    name = min(times, key=lambda one: (times[one], one))
    return choices[int(name)] if name and times[name] < FASTER * times[""] else None
