"""``tilewright bench``: compares Tilewright with other runtimes on models, and prints ratios."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import console
from tilewright.cli.options import Dims, Json, Npz, parse_counts, parse_list, parse_sizes
from tilewright.core.plural import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

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
    Needs the runtimes that it compares with: pip install "tilewright[bench]".
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
    for comparison in comparisons:
        console.show(_table(comparison))
    console.write("A ratio above 1: Tilewright is faster. Error: difference from the first peer.")
    for timing in comparisons[0].timings:
        console.write(f"{timing.contender} {timing.version}, precision: {timing.precision}")
    console.write(comparisons[0].device)


def _table(comparison: "Comparison") -> "Table":
    from rich.table import Table

    threads = plural(comparison.threads, "thread")
    table = Table(title=f"{comparison.model}, {threads}", title_justify="left")
    table.add_column("runtime")
    for title in ("min ms", "median ms", "ratio of minima", "of medians", "error"):
        table.add_column(title, justify="right")
    for timing in comparison.timings:
        name = timing.contender
        ratios = (comparison.ratio_min, comparison.ratio_median)
        table.add_row(
            name,
            f"{timing.min_us / 1e3:.3f}",
            f"{timing.median_us / 1e3:.3f}",
            *(f"{ratio[name]:.2f}" if name in ratio else "" for ratio in ratios),
            f"{timing.error:.1e}",
        )
    return table
