"""Which changes to keep where all of them together make a run no faster.

Input -> Output: changes, the most promising first, and what a run takes with some of them -> those
to keep.
Method: all are tried at once. A set that does not save 0.5 % of the run is halved, and its halves
are tried upon what was kept before: each trial is one more chance for noise to look like a gain.
So what is kept is timed afresh in the end, and has to save as much then.
Guarantees: what is kept was faster, as measured, than nothing; the number of trials is bounded.
Not here: timing (tune.gpu_bench), which change of a kernel is best by itself (tune.on_gpu).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_MOST_TRIALS = 16
_LEAST_GAIN = 0.005  # of the run with what was kept before; less may be chance


def faster_together(
    changes: Sequence[str],
    ratio: Callable[[Sequence[str]], float],
    again: Callable[[Sequence[str]], float],
    trials: int = _MOST_TRIALS,
) -> tuple[str, ...]:
    """The changes to keep.

    Args:
        ratio: a run's time with changes, as a part of that with none.
        again: the same, timed afresh.
        trials: how often ``ratio`` may be called.
    """
    kept: tuple[str, ...] = ()
    least = 1.0
    waiting = [tuple(changes)] if changes else []
    for _ in range(trials):
        if not waiting:
            break
        group = waiting.pop(0)
        found = ratio((*kept, *group))
        if found < least * (1 - _LEAST_GAIN):
            kept, least = (*kept, *group), found
        elif len(group) > 1:
            half = (len(group) + 1) // 2
            waiting[:0] = [group[:half], group[half:]]
    return kept if kept and again(kept) < 1 - _LEAST_GAIN else ()
