"""``tilewright profile``: where the time of a run goes, kernel by kernel."""

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import console
from tilewright.cli.options import (
    Device,
    Dims,
    EngineOrModel,
    Inputs,
    Json,
    Npz,
    Quiet,
    Runs,
    Threads,
    parse_files,
    parse_sizes,
    refuse_unused,
)
from tilewright.cli.outputs import check_beside
from tilewright.cli.run import check_sizes_given, gather_feeds, open_engine, read_inputs

_TOP = 20


def profile_model(
    model: EngineOrModel,
    inputs: Inputs = None,
    npz: Npz = None,
    dim: Dims = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of inputs that are not given.")] = 0,
    runs: Runs = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="OUT.json", help="Write one run for chrome://tracing or Perfetto."),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option("--top", min=1, help="How many steps to list, by default 20; not in --json."),
    ] = None,
    threads: Threads = None,
    device: Device = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Time every kernel of an engine inside whole runs; inputs that are not given are random."""
    files, sizes = parse_files(inputs), parse_sizes(dim)
    refuse_unused((most is not None and as_json, "--top", "--json has all steps"))
    if trace is not None:
        check_beside(trace, (model,), (npz, *files.values()))

    given = read_inputs(files, npz)
    check_sizes_given(model, given, sizes)
    engine = open_engine(model, threads, quiet=quiet, device=device)
    feeds = gather_feeds(engine, given, random=True, sizes=sizes, seed=seed)
    console.teller(quiet=quiet)(f"timing runs of {model}")
    profile = engine.profile(feeds, runs=runs)
    if trace is not None:
        profile.trace(trace)
        console.log(f"wrote {trace}")
    if as_json:
        console.write_json(profile.json())
    else:
        console.write(profile.text(most or _TOP))
