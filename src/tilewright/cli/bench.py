"""``tilewright bench``: compares Tilewright with other runtimes on models, and prints ratios."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import console
from tilewright.cli.options import (
    Dims,
    Json,
    Npz,
    Quiet,
    parse_counts,
    parse_list,
    parse_sizes,
    refuse_unused,
)
from tilewright.cli.outputs import check_beside
from tilewright.core.errors import BadOption, UserError
from tilewright.core.plural import plural
from tilewright.core.whole_file import whole_file

if TYPE_CHECKING:
    from rich.table import Table

    from tilewright.compiler.bench import BenchReport, Comparison


def bench_models(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL...", help="ONNX files.")],
    against: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="Whom to compare with: onnxruntime,openvino,torch,torch.compile."
        ),
    ] = "onnxruntime",
    threads: Annotated[str, typer.Option(metavar="COUNTS", help="For example 1,2.")] = "1",
    npz: Npz = None,
    dim: Dims = None,
    rounds: Annotated[int, typer.Option(help="Batches of each runtime, 1 to 1000.")] = 15,
    batch_ms: Annotated[
        float, typer.Option(metavar="MS", help="Milliseconds of a batch, 1 to 10000.")
    ] = 60.0,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Greatest relative difference of outputs, 0 to 1; by default 1e-4, in bf16 6e-2."
        ),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(help="fp32, or bf16: Tilewright and OpenVINO; others stay in fp32."),
    ] = "fp32",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="OUT.json", help="Also write the results as JSON."),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Time Tilewright and other runtimes in turns on the same inputs, after comparing outputs.

    Inputs are those of --npz, else of the .npz beside the model, else random (sizes from --dim).
    Rounds in which the machine was slow do not count; the table says how many.
    """
    counts, peers, sizes = parse_counts(threads), tuple(parse_list(against)), parse_sizes(dim)
    refuse_unused((npz is not None and bool(sizes), "--dim", "--npz has the sizes"))
    _check_files(models, npz, output)

    from tilewright.compiler.bench import BenchOptions, BenchReport, bench, check_request
    from tilewright.compiler.feeds import load_npz

    wanted = [
        (
            model,
            BenchOptions(
                peers=peers,
                threads=count,
                rounds=rounds,
                batch_ms=batch_ms,
                tolerance=tolerance,
                precision=precision,
            ),
        )
        for model in models
        for count in counts
    ]
    for model, options in wanted:
        check_request(model, options)
    feeds, tell = load_npz(npz) if npz else None, console.teller(quiet=quiet)
    comparisons: list[Comparison] = []
    try:
        for model, options in wanted:
            comparisons.append(bench(model, options, feeds=feeds, sizes=sizes, progress=tell))
    except UserError:
        if comparisons and not as_json:  # what was measured before is not lost
            _print_report(BenchReport.of(comparisons))
        raise
    report = BenchReport.of(comparisons)
    if output is not None:
        with whole_file(output) as unfinished:
            unfinished.write_text(console.json_text(report) + "\n", encoding="utf-8")
    if as_json:
        console.write_json(report)
    else:
        _print_report(report)


def _check_files(models: Sequence[Path], npz: Path | None, output: Path | None) -> None:
    """Sees that files are what they are meant to be.

    Raises:
        BadOption: a model ends in .json, or the output is an input.
    """
    for model in models:
        if model.suffix == ".json":
            remedy = f"results are written with -o {model}; --json prints them"
            raise BadOption("is no ONNX file", file=str(model), remedy=remedy)
    if output is not None:
        beside = [model.with_suffix(".npz") for model in models]
        check_beside(output, models, (npz, *beside))


def _print_report(report: "BenchReport") -> None:
    for comparison in report.comparisons:
        console.show(_times(comparison))
        console.write(_canaries(comparison))
        for reason in comparison.left_out.values():
            console.write(f"Left out: {reason}")
        console.write("")
    console.show(_ratios(report))
    for comparison in report.comparisons:
        if comparison.canaries.are_few:
            console.write(_doubt(comparison))
        elif comparison.uneven:
            console.write(_unevenness(comparison))
        if comparison.canaries.is_slow:
            console.write(_slowness(comparison))
        if comparison.canaries.is_torn:
            console.write(_distance(comparison))
    console.write("A ratio above 1: Tilewright is faster. Error: difference from the first peer.")
    timings = [timing for one in report.comparisons for timing in one.timings]
    lines = (f"{one.contender} {one.version}: {one.precision} ({one.settings})" for one in timings)
    for line in dict.fromkeys(lines):
        console.write(line)
    console.write(report.comparisons[0].device)


def _title(comparison: "Comparison") -> str:
    return f"{comparison.model}, {plural(comparison.threads, 'thread')}"


def _times(comparison: "Comparison") -> "Table":
    from rich.table import Table

    table = Table(title=_title(comparison), title_justify="left")
    table.add_column("runtime")
    for title in ("min ms", "median ms", "runs", "error"):
        table.add_column(title, justify="right")
    for timing in comparison.timings:
        table.add_row(
            timing.contender,
            f"{timing.min_us / 1e3:.3f}",
            f"{timing.median_us / 1e3:.3f}",
            str(timing.num_runs),
            f"{timing.error:.1e}",
        )
    return table


def _canaries(comparison: "Comparison") -> str:
    found = comparison.canaries
    roof = f" (roof {found.roof_flops / 1e9:.0f})" if found.roof_flops else ""
    return (
        f"{plural(found.num_kept, 'round')} counted, {found.num_discarded} thrown away as the "
        f"machine was slow: canary {found.best_flops / 1e9:.0f} GFLOP/s at best{roof}, "
        f"{min(found.share):.0%} of it at worst{_trips(found.round_trip_ns)}"
    )


def _trips(round_trip_ns: "Sequence[float]") -> str:
    if not round_trip_ns:
        return ""
    return (
        f"; a cache line to another processor and back takes {min(round_trip_ns):.0f} to "
        f"{max(round_trip_ns):.0f} ns"
    )


def _doubt(comparison: "Comparison") -> str:
    found = comparison.canaries
    return (
        f"Doubtful: of {_title(comparison)}, only {found.num_kept} of {found.num_asked} rounds "
        "counted, as the machine was busy, and the mean is of these; measure again"
    )


def _slowness(comparison: "Comparison") -> str:
    found = comparison.canaries
    share = found.best_flops / (found.roof_flops or found.best_flops)
    return (
        f"Doubtful: in all rounds of {_title(comparison)} this machine gave at most {share:.0%} of "
        "what it did when its roofs were measured: something slowed down all of them; ratios may "
        "still hold, times do not (tilewright device --probe measures the roofs again)"
    )


def _distance(comparison: "Comparison") -> str:
    return (
        f"Doubtful: between rounds of {_title(comparison)} the processors moved apart"
        f"{_trips(comparison.canaries.round_trip_ns)}; minima are of rounds in which they were near"
    )


def _unevenness(comparison: "Comparison") -> str:
    return (
        f"Doubtful: of {_title(comparison)}, most runs of {', '.join(comparison.uneven)} took far "
        "longer than the fastest one, as the machine was busy between; measure again"
    )


def _ratios(report: "BenchReport") -> "Table":
    from rich.table import Table

    from tilewright.compiler.bench.results import BEST, with_best

    table = Table(title="times as long as Tilewright, medians (minima)", title_justify="left")
    table.add_column("model")
    several = max(len(one.ratio_median) for one in report.comparisons) > 1
    peers = [peer for peer in report.geomean_median if peer != BEST] + [BEST] * several
    for peer in peers:
        table.add_column(peer, justify="right")
    for one in report.comparisons:
        cells = _cells(peers, with_best(one.ratio_median), with_best(one.ratio_min))
        table.add_row(_title(one), *cells)
    table.add_section()
    table.add_row("geometric mean", *_cells(peers, report.geomean_median, report.geomean_min))
    return table


def _cells(
    peers: Sequence[str], medians: Mapping[str, float], minima: Mapping[str, float]
) -> list[str]:
    return [f"{medians[one]:.2f} ({minima[one]:.2f})" if one in medians else "-" for one in peers]
