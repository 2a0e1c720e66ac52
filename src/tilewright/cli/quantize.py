"""``tilewright quantize``: looks through quantised models."""

from typing import Annotated

import typer

from tilewright.cli.lint import show_findings
from tilewright.cli.options import Dims, Json, Model, Threads, parse_sizes, refuse_unused


def quantize_model(
    model: Model,
    lint: Annotated[
        bool, typer.Option("--lint", help="Report faults of a model that is quantised already.")
    ] = False,
    dim: Dims = None,
    board: Annotated[
        str | None, typer.Option(help="A GPU to price findings for; by default this machine.")
    ] = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Look through a quantised model: axes, zero points, scales, operator sets, misplaced Q and DQ.

    Exit code 1 when there is an error among the findings.
    """
    sizes = parse_sizes(dim)
    if not lint:
        raise typer.BadParameter("say what to do: --lint")
    refuse_unused((threads is not None and board is not None, "--threads", "--board is a GPU"))
    show_findings(model, sizes, board, threads, as_json)
