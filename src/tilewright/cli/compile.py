"""``tilewright compile``: makes an engine file of a model."""

import time
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import console
from tilewright.cli.options import Dims, Json, Model, Precision, Threads, parse_dims, parse_list


def compile_model(
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="The engine file to write.")],
    target: Annotated[str, typer.Option(help="What to compile for.")] = "cpu",
    cpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Processor; by default this machine's.")
    ] = None,
    threads: Threads = None,
    precision: Precision = "fp32",
    dim: Dims = None,
    require: Annotated[
        str | None,
        typer.Option(metavar="CONTRACT", help="For example compiled,deterministic,max_error=1e-5."),
    ] = None,
    verify_passes: Annotated[
        bool, typer.Option("--verify-passes", help="Check the graph after every pass.")
    ] = False,
    dump_graph: Annotated[
        Path | None, typer.Option(metavar="OUT.onnx", help="Write the graph after the passes.")
    ] = None,
    dump_kernels: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write each kernel's text.")
    ] = None,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not compare the engine with the reference.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compile a model to an engine file and verify it."""
    dims = parse_dims(dim)

    import tilewright as tw

    start = time.perf_counter()
    engine = tw.compile(
        model,
        target=target,
        cpu=cpu,
        threads=threads,
        precision=precision,
        dims=dims,
        require=parse_list(require or ""),
        verify_passes=verify_passes,
        dump_graph=dump_graph,
        dump_kernels=dump_kernels,
        verify=not no_verify,
    )
    with console.whole_file(output) as unfinished:
        engine.save(unfinished)
    summary = {
        "engine": output,
        "bytes": output.stat().st_size,
        "seconds": round(time.perf_counter() - start, 3),
        "inputs": [console.describe(spec.name, spec.dtype, spec.shape) for spec in engine.inputs],
        "outputs": [console.describe(spec.name, spec.dtype, spec.shape) for spec in engine.outputs],
        "decisions": len(engine.decisions),
    }
    if as_json:
        console.write_json(summary)
        return
    for name, value in summary.items():
        console.write(f"{name:<10} {', '.join(value) if isinstance(value, list) else value}")
