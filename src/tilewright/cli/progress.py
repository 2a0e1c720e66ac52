"""Shows the stages of a build on stderr while it runs.

Guarantees: on a terminal a bar, which vanishes at the end; elsewhere a line for each stage, and one
every ten seconds of a long one, with the time that is left; nothing with ``--quiet`` and
``--json``.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from tilewright.cli import console

if TYPE_CHECKING:
    from rich.progress import TaskID

Report = Callable[[str, int, int], None]

STAGES = (
    "import",
    "graph passes",
    "shapes",
    "lower",
    "fuse",
    "layout",
    "generate code",
    "compile kernels",
    "verify",
)


# Where a build tunes, its counts are seconds.
TUNING = "tune"
_TELL_S = 10


@contextmanager
def stages(title: str, *, quiet: bool = False) -> Iterator[Report | None]:
    """Gives what ``tilewright.compile`` takes as ``progress``, None where nothing is shown."""
    if quiet or console.wants_json():
        yield None
    elif sys.stderr.isatty():
        with _bar(title) as report:
            yield report
    else:
        yield _lines(title)


@dataclass(slots=True)
class _Pace:
    """How fast a stage goes: since when, and from which count on."""

    stage: str = ""
    start_s: float = 0.0
    first: int = 0
    last: int = 0

    def left(self, stage: str, done: int, total: int) -> str:
        """What is left of it, as text; empty where nobody knows yet."""
        if stage == TUNING and total:
            return f"{max(0, total - done)} s left"
        if stage != self.stage or done < self.last:  # it may begin again
            self.stage, self.start_s, self.first = stage, perf_counter(), done
        self.last = done
        taken_s = perf_counter() - self.start_s
        if not total or done <= self.first or taken_s < _TELL_S:
            return ""
        left_s = taken_s / (done - self.first) * (total - done)
        return f"about {left_s:.0f} s left" if left_s < 120 else f"about {left_s / 60:.0f} min left"


def _lines(title: str) -> Report:
    shown: set[str] = set()
    pace, told_s = _Pace(), 0.0

    def report(stage: str, done: int, total: int) -> None:
        nonlocal told_s
        left, now_s = pace.left(stage, done, total), perf_counter()
        if stage in shown and not (left and now_s >= told_s + _TELL_S):
            return
        shown.add(stage)
        told_s = now_s
        count = f", {done} of {total}" if left and stage != TUNING else ""
        console.log(f"{title}: {_numbered(stage)}{count}{f', {left}' if left else ''}")
        sys.stderr.flush()

    return report


@contextmanager
def _bar(title: str) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task: TaskID = bar.add_task(title, total=None, count="")
        pace = _Pace()

        def report(stage: str, done: int, total: int) -> None:
            left, count = pace.left(stage, done, total), f"{done}/{total}" if total else ""
            if left:
                count = left if stage == TUNING else f"{count}, {left}"
            bar.update(
                task,
                description=f"{title}: {_numbered(stage)}",
                completed=done,
                total=total or None,
                count=count,
            )

        yield report


def _numbered(stage: str) -> str:
    return f"[{STAGES.index(stage) + 1}/{len(STAGES)}] {stage}" if stage in STAGES else stage
