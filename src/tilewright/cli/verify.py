"""``tilewright verify``: compares an engine with the NumPy reference on given or random inputs."""

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import console
from tilewright.cli.options import (
    Dims,
    Inputs,
    Json,
    Model,
    Npz,
    Threads,
    parse_files,
    parse_sizes,
)
from tilewright.cli.run import gather_feeds, open_engine


def verify_model(
    model: Model,
    engine_file: Annotated[
        Path | None,
        typer.Option("--engine", metavar="ENGINE.tw", help="Its engine; else it is compiled."),
    ] = None,
    inputs: Inputs = None,
    npz: Npz = None,
    dim: Dims = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Compare an engine's outputs with the reference's; exit code 1 when they differ too much."""
    files, sizes = parse_files(inputs), parse_sizes(dim)

    from tilewright.compiler import verify

    engine = open_engine(engine_file or model, threads)
    feeds = gather_feeds(engine, files, npz, random=True, sizes=sizes)
    result = verify(model, engine, feeds)
    if as_json:
        console.write_json(result)
    else:
        console.write(str(result))
    if not result.passed:
        raise typer.Exit(1)
