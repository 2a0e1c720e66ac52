"""Shows the stages of a build on stderr while it runs, if that is a terminal.

Guarantees: nothing is written where stderr is a file or a pipe; the bar vanishes at the end.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import TaskID

Report = Callable[[str, int, int], None]


@contextmanager
def stages(title: str) -> Iterator[Report | None]:
    """Gives what ``tilewright.compile`` takes as ``progress``, None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task: TaskID = bar.add_task(title, total=None, count="")

        def report(stage: str, done: int, total: int) -> None:
            count = f"{done}/{total}" if total else ""
            bar.update(
                task,
                description=f"{title}: {stage}",
                completed=done,
                total=total or None,
                count=count,
            )

        yield report
