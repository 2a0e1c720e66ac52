"""``tilewright compile``: makes an engine file of a model."""

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import console
from tilewright.cli.options import (
    Dims,
    Json,
    Model,
    Precision,
    Quiet,
    Threads,
    parse_dims,
    parse_list,
    warn_of_threads,
)
from tilewright.core.whole_file import check_output


def compile_model(
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="The engine file to write.")],
    target: Annotated[str, typer.Option(help="What to compile for: cpu.")] = "cpu",
    cpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Processor, by default this machine's: a name that LLVM knows, as haswell, "
            "skylake-avx512, znver4, neoverse-v1.",
        ),
    ] = None,
    threads: Threads = None,
    precision: Precision = "fp32",
    dim: Dims = None,
    require: Annotated[
        str | None,
        typer.Option(
            metavar="CONTRACT",
            help="For example compiled,deterministic,device=cpu,dtypes=float32,max_error=1e-5.",
        ),
    ] = None,
    disable: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Algorithms and tactics not to use, as winograd,pack."),
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
    npz: Annotated[
        Path | None, typer.Option(metavar="IN.npz", help="Inputs to verify with; else random ones.")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compile a model to an engine file and verify it."""
    dims = parse_dims(dim)
    warn_of_threads(threads)
    check_output(output, (model, npz, dump_graph))

    import tilewright as tw
    from tilewright.cli.progress import stages
    from tilewright.compiler.feeds import load_npz
    from tilewright.report.summary import BuildSummary

    verify_feeds = load_npz(npz) if npz is not None else None
    with stages(model.name, quiet=quiet) as progress:
        engine = tw.compile(
            model,
            target=target,
            cpu=cpu,
            threads=threads,
            precision=precision,
            dims=dims,
            require=parse_list(require or ""),
            disable=parse_list(disable or ""),
            verify_passes=verify_passes,
            dump_graph=dump_graph,
            dump_kernels=dump_kernels,
            verify=not no_verify,
            verify_feeds=verify_feeds,
            progress=progress,
        )
    engine.save(output)
    summary = BuildSummary.of(
        output,
        engine.info,
        engine.summary,
        inputs=[console.describe(spec) for spec in engine.inputs],
        outputs=[console.describe(spec) for spec in engine.outputs],
        num_decisions=len(engine.decisions),
    )
    if as_json:
        console.write_json(summary)
        return
    for label, text in summary.lines():
        console.write(f"{label:<12} {text}")
