"""``tilewright compile``: makes an engine file of a model."""

from pathlib import Path
from typing import Annotated, Any

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
from tilewright.cli.outputs import check_beside


def compile_model(
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="The engine file to write.")],
    target: Annotated[
        str, typer.Option(help="What to compile for: cpu, cuda, or architectures as sm_80+sm_90.")
    ] = "cpu",
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
    integer_only: Annotated[
        bool,
        typer.Option(
            "--integer-only",
            help="Compute softmax, GELU and other functions between integers in integers.",
        ),
    ] = False,
    verify_passes: Annotated[
        bool, typer.Option("--verify-passes", help="Check the graph after every pass.")
    ] = False,
    reproducer: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the part that a wrong pass changes here."),
    ] = None,
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
    time_budget: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            help="Time kernels inside the network and choose by that; the engine without it is "
            "written first.",
        ),
    ] = None,
    timing_store: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Timings to choose by; they grow with --time-budget. Equal ones give equal "
            "engines.",
        ),
    ] = None,
    candidates: Annotated[
        int,
        typer.Option(
            min=1,
            help="Ways to run each kernel of a GPU to keep in the engine, for `tilewright tune`.",
        ),
    ] = 1,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compile a model to an engine file and verify it."""
    dims = parse_dims(dim)
    warn_of_threads(threads)
    check_beside(output, (model,), (npz, dump_graph))

    import tilewright as tw
    from tilewright.cli.progress import stages
    from tilewright.compiler.feeds import load_npz
    from tilewright.compiler.options import check_tunable

    if time_budget is not None:  # before the engine that is built without
        check_tunable(target, search=True)
    verify_feeds = load_npz(npz) if npz is not None else None

    def build(**tuning: Any) -> tw.Engine:
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
                integer_only=integer_only,
                candidates=candidates,
                verify_passes=verify_passes,
                reproducer=reproducer,
                dump_graph=dump_graph,
                dump_kernels=dump_kernels,
                verify=not no_verify,
                verify_feeds=verify_feeds,
                progress=progress,
                **tuning,
            )
        engine.save(output)
        return engine

    if time_budget is None:
        engine = build(timing_store=timing_store)
    else:
        known = timing_store is not None and timing_store.exists()
        build(timing_store=timing_store if known else None)
        console.log(f"{output} can be used; what is found in {time_budget:g} s will replace it")
        engine = build(timing_store=timing_store, time_budget=time_budget)
    _report(output, engine, as_json)


def _report(output: Path, engine: Any, as_json: bool) -> None:
    from tilewright.report.summary import BuildSummary

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
