"""``tilewright verify``: compares an engine with the NumPy reference on given or random inputs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import console
from tilewright.cli.options import (
    Dims,
    Inputs,
    Json,
    Model,
    Npz,
    Quiet,
    Threads,
    parse_files,
    parse_sizes,
    refuse_unused,
    warn_of_threads,
)
from tilewright.cli.run import gather_feeds, open_engine, read_inputs
from tilewright.core.whole_file import check_folder, refuse_inputs

if TYPE_CHECKING:
    from tilewright.compiler.reproducer import Reproducer
    from tilewright.compiler.verify import Verification


def verify_model(
    model: Model,
    engine_file: Annotated[
        Path | None,
        typer.Option("--engine", metavar="ENGINE.tw", help="Its engine; else it is compiled."),
    ] = None,
    inputs: Inputs = None,
    npz: Npz = None,
    dim: Dims = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of random inputs, by default 0.")
    ] = None,
    threads: Threads = None,
    reproducer: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where a small model that shows a fault is written."),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compare an engine's outputs with the reference's; exit code 1 when they differ too much.

    A difference is traced to the first wrong value, its nodes and its kernel.
    """
    files, sizes = parse_files(inputs), parse_sizes(dim)
    warn_of_threads(threads)

    from tilewright.compiler.check import reproduce, verify
    from tilewright.compiler.reproducer import INPUTS_FILE, MODEL_FILE

    if reproducer is not None:
        check_folder(reproducer)
        for name in (MODEL_FILE, INPUTS_FILE):
            refuse_inputs(reproducer / name, (model, engine_file, npz, *files.values()))
    given = read_inputs(files, npz)
    engine = open_engine(engine_file or model, threads, verify=False, quiet=quiet)
    is_random = any(spec.name not in given for spec in engine.inputs)
    refuse_unused((seed is not None and not is_random, "--seed", "no input is made up"))
    feeds = None  # likely sizes are tried
    if given or sizes:
        feeds = gather_feeds(engine, given, random=True, sizes=sizes, seed=seed or 0)
    found = verify(model, engine, feeds, seed=seed or 0)
    small = reproduce(model, found, reproducer, engine) if reproducer is not None else None
    if as_json:
        console.write_json(_facts(found, small))
    else:
        console.write(str(found))
        if small is not None:
            console.write(f"reproducer: {small}")
    if not found.passed:
        raise typer.Exit(1)


def _facts(found: "Verification", small: "Reproducer | None") -> dict[str, object]:
    fault = found.fault
    return {
        "passed": found.passed,
        "max_error": found.max_error,
        "sizes": found.symbols,
        "outputs": [
            {
                "name": output.name,
                "error": output.error,
                "tolerance": output.tolerance,
                "passed": found.accepts(output),
                "detail": output.detail,
            }
            for output in found.outputs
        ],
        "fault": None
        if fault is None
        else {
            "value": fault.found.name,
            "error": fault.found.error,
            "nodes": fault.region.labels,
            "inputs": fault.region.inputs,
            "kernel": None if fault.kernel is None else fault.kernel.kernel,
            "cause": fault.cause,
            "detail": fault.detail,
        },
        "rounding": found.rounding
        and {"value": found.rounding.found.name, "error": found.rounding.found.error},
        "reproducer": small,
    }
