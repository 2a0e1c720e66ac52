"""Makes sure that this machine's roofs are known before something is explained with them.

Input -> Output: a number of threads -> measured roofs in the user's cache.
Guarantees: what was measured before is kept; a short measurement is replaced by a longer one of
``tilewright device --probe``.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.codegen.cpu.probe import ProbeOptions, probe_cpu
from tilewright.core.errors import CacheError
from tilewright.core.plural import plural
from tilewright.hw.machine import describe_machine
from tilewright.hw.roofs import load_all_measured, store_measured

_SECONDS = 4.0
_ROUNDS = 2


def ensure_roofs(
    threads: int,
    progress: Callable[[str], None] | None = None,
    *,
    rehearse: Callable[[], object] = lambda: None,
) -> bool:
    """Measures the roofs for a number of threads if they were never measured.

    Args:
        threads: of a run; no more than the machine has are measured.
        progress: is told what goes on, and where the result cannot be kept for the next time.
        rehearse: called before something is measured: raises where what follows would fail.

    Returns:
        Whether something was measured now.

    Raises:
        CacheError: what was measured before is damaged.
    """
    say = progress or (lambda _: None)
    count = min(threads, len(describe_machine().processors))
    before = load_all_measured()
    if any(roofs.threads == count for roofs in before):
        return False
    rehearse()
    say(f"measuring this machine's roofs with {plural(count, 'thread')}, once")
    options = ProbeOptions(threads=(count,), seconds=_SECONDS, rounds=_ROUNDS)
    measured = probe_cpu(options)
    try:
        store_measured((*before, *measured))
    except CacheError as error:
        say(f"note: {error}")
    for doubt in dict.fromkeys(roofs.doubt for roofs in measured if roofs.doubt):
        say(doubt)
    return True
