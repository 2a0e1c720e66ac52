"""Whether another choice next to the chosen one is faster: each is built and timed.

    one node the other way;  a run of 2, 4, 8 .. consecutive nodes to float
Input -> Output: a choice between integers and float -> the time of each choice next to it, relative
to it; from the fastest that keeps the budget the search goes on, until none is faster.
Guarantees: engines are timed in turns with the one that they are compared with; one that seems
faster is timed again before it is scored or believed; few engines are in memory at once.
Not here: where the search starts (search).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.compress.calibrate import Progress
from tilewright.compress.clock import Clock, Left
from tilewright.report.quantization import FASTER, Move

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
        moves, better = _confirmed(clock, left, moves, allowed)
        if better is None or steps == _MOST_STEPS:
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
    changes = list(dict.fromkeys(neighbours(left, nodes)))

    def told(done: int) -> None:
        if progress is not None:
            progress("moves", done, len(changes))

    ratios = _ratios(clock, left, [after(left, changed) for changed in changes], told)
    moves = [
        Move(nodes=changed, to="int8" if changed[0] in left else "float", ratio=ratio)
        for changed, ratio in zip(changes, ratios, strict=True)
    ]
    return tuple(sorted(moves, key=_by_time))


def _by_time(move: Move) -> tuple[float, tuple[str, ...]]:
    return move.ratio, move.nodes


def _ratios(
    clock: Clock, left: Left, choices: Sequence[Left], told: Callable[[int], None] | None = None
) -> list[float]:
    """Times of choices, relative to that of ``left``, a few at a time."""
    found = []
    base = clock.engine(left)
    for start in range(0, len(choices), _AT_ONCE):
        engines = {"": base}
        for number, choice in enumerate(choices[start : start + _AT_ONCE], start):
            if told is not None:
                told(number)
            engines[str(number)] = clock.engine(choice)
        times = clock.times(engines)
        found += [times[name] / times[""] for name in engines if name]
    return found


def _confirmed(
    clock: Clock, left: Left, moves: Sequence[Move], allowed: Callable[[Left], bool]
) -> tuple[tuple[Move, ...], Left | None]:
    """Moves, those that seemed faster timed again; the best choice, if one is faster.

    Only what is faster twice is scored: that takes far longer than a look at the clock.
    """
    hopeful = [move for move in moves if move.ratio < FASTER]
    ratios = _ratios(clock, left, [after(left, move.nodes) for move in hopeful]) if hopeful else []
    again = [
        replace(move, ratio=ratio, within=allowed(after(left, move.nodes)))
        if ratio < FASTER
        else replace(move, ratio=ratio)
        for move, ratio in zip(hopeful, ratios, strict=True)
    ]
    slower = [move for move in moves if move.ratio >= FASTER]
    kept = [move for move in again if move.within]
    better = _best(clock, left, kept, allowed) if kept else None
    return tuple(sorted([*again, *slower], key=_by_time)), better


def _best(clock: Clock, left: Left, kept: Sequence[Move], allowed: Callable[[Left], bool]) -> Left:
    """The fastest of some choices; what is faster alone is tried together as well."""
    best = after(left, min(kept, key=_by_time).nodes)
    alone = [move.nodes[0] for move in kept if len(move.nodes) == 1]
    together = left ^ set(alone)
    if len(alone) < 2 or not allowed(together):
        return best
    of_best, of_together = _ratios(clock, left, [best, together])
    return together if of_together < of_best else best
