"""What ``tilewright quantize --lint`` prints: the findings of a quantised model."""

from collections.abc import Mapping
from pathlib import Path

import typer

from tilewright.cli import console
from tilewright.core.plural import plural


def show_findings(
    model: Path, sizes: Mapping[str, int], board: str | None, threads: int | None, as_json: bool
) -> None:
    """Prints the findings; exit code 1 when one of them is an error.

    Args:
        model: an ONNX file.
        sizes: of symbolic dims, for prices.
        board: a GPU to price for; None is this machine.
        threads: of a run on this machine.
        as_json: one JSON document instead of lines.
    """
    from tilewright.compress.lint import lint

    found = lint(model, sizes=sizes, board=board, threads=threads or 1)
    errors = [one for one in found if one.severity == "error"]
    if as_json:
        console.write_json({"errors": len(errors), "findings": found})
    else:
        for one in found:
            console.write(str(one))
        rest = len(found) - len(errors)
        console.write(f"{plural(len(errors), 'error')}, {plural(rest, 'warning')}")
    if errors:
        raise typer.Exit(1)
