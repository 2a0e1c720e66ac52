"""Shows the stages of a build on stderr while it runs.

Guarantees: on a terminal a bar, which vanishes at the end; elsewhere a line for each stage, and one
every ten seconds of tuning, with the time that is left; nothing with ``--quiet`` and ``--json``.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


# Its counts are seconds; it is no part of every build.
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


def _lines(title: str) -> Report:
    shown: set[tuple[str, int]] = set()

    def report(stage: str, done: int, total: int) -> None:
        key = (stage, done // _TELL_S if stage == TUNING and total else 0)
        if key not in shown:
            shown.add(key)
            left = f", {_left(done, total)}" if stage == TUNING and total else ""
            console.log(f"{title}: {_numbered(stage)}{left}")
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

        def report(stage: str, done: int, total: int) -> None:
            count = f"{done}/{total}" if total else ""
            if stage == TUNING and total:
                count = _left(done, total)
            bar.update(
                task,
                description=f"{title}: {_numbered(stage)}",
                completed=done,
                total=total or None,
                count=count,
            )

        yield report


def _left(done_s: int, total_s: int) -> str:
    return f"{max(0, total_s - done_s)} s left"


def _numbered(stage: str) -> str:
    return f"[{STAGES.index(stage) + 1}/{len(STAGES)}] {stage}" if stage in STAGES else stage
