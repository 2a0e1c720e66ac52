"""``tilewright bench``: compares Tilewright with other runtimes on models, and prints ratios."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import console
from tilewright.cli.options import Dims, Json, Npz, parse_counts, parse_list, parse_sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilewright.compiler.bench import Comparison


def bench_models(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL...", help="ONNX files.")],
    against: Annotated[
        str, typer.Option(metavar="NAMES", help="Runtimes to compare with: onnxruntime, openvino.")
    ] = "onnxruntime",
    threads: Annotated[str, typer.Option(metavar="COUNTS", help="For example 1,2.")] = "1",
    npz: Npz = None,
    dim: Dims = None,
    rounds: Annotated[int, typer.Option(min=1, help="Batches of each runtime.")] = 15,
    batch_ms: Annotated[float, typer.Option(min=1, help="Milliseconds of a batch.")] = 60.0,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Greatest relative difference of outputs.")
    ] = 1e-4,
    as_json: Json = False,
) -> None:
    """Time Tilewright and other runtimes in turns on the same inputs, after comparing outputs.

    Inputs are those of --npz, else of the .npz beside the model, else random (sizes from --dim).
    """
    counts, peers, sizes = parse_counts(threads), tuple(parse_list(against)), parse_sizes(dim)

    from tilewright.compiler.bench import BenchOptions, bench
    from tilewright.compiler.feeds import load_npz

    feeds = load_npz(npz) if npz else None
    comparisons = []
    for model in models:
        for count in counts:
            options = BenchOptions(
                peers=peers, threads=count, rounds=rounds, batch_ms=batch_ms, tolerance=tolerance
            )
            comparisons.append(
                bench(model, options, feeds=feeds, sizes=sizes, progress=console.log)
            )
    if as_json:
        console.write_json(comparisons)
    else:
        _print_comparisons(comparisons)


def _print_comparisons(comparisons: "Sequence[Comparison]") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title="a ratio above 1: Tilewright is faster", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("model", overflow="fold")
    table.add_column("runtime", no_wrap=True)
    for title in ("threads", "min ms", "median ms", "ratio min", "median", "error"):
        table.add_column(title, justify="right", no_wrap=True)
    for comparison in comparisons:
        for timing in comparison.timings:
            ratios = (comparison.ratio_min, comparison.ratio_median)
            name = timing.contender
            table.add_row(
                comparison.model,
                name,
                str(comparison.threads),
                f"{timing.min_us / 1e3:.3f}",
                f"{timing.median_us / 1e3:.3f}",
                *(f"{ratio[name]:.2f}" if name in ratio else "" for ratio in ratios),
                f"{timing.error:.1e}",
            )
        table.add_section()
    console.show(table)
    for timing in comparisons[0].timings:
        console.write(f"{timing.contender} {timing.version}, precision: {timing.precision}")
    console.write(comparisons[0].device)
