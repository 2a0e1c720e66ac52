"""``tilewright tune``: chooses between the candidates of an engine by the clock of the GPU here."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import console
from tilewright.cli.options import Device, Dims, Inputs, Json, Npz, Quiet, parse_files, parse_sizes
from tilewright.cli.run import gather_feeds, read_inputs
from tilewright.core.plural import plural
from tilewright.core.whole_file import check_output

if TYPE_CHECKING:
    from tilewright.tune.on_gpu import Report

_TOP = 20


def tune_engine(
    engine: Annotated[
        Path, typer.Argument(metavar="ENGINE", help="A .tw file, compiled with --candidates.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The tuned engine; by default it replaces ENGINE."),
    ] = None,
    inputs: Inputs = None,
    npz: Npz = None,
    dim: Dims = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of inputs that are not given.")] = 0,
    timing_store: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Timings that are known and are added; equal ones give equal engines.",
        ),
    ] = None,
    device: Device = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Time the candidates of every kernel on this machine's GPU, and keep the fastest."""
    files, sizes = parse_files(inputs), parse_sizes(dim)
    target = engine if output is None else output
    check_output(target, () if output is None else (engine, npz, *files.values()))

    import tilewright as tw
    from tilewright.cli.progress import stages
    from tilewright.tune.on_gpu import tune_on_gpu
    from tilewright.tune.store import TimingStore

    given = read_inputs(files, npz)
    opened = tw.load(engine, device=device)
    opened.on_gpu()  # an engine for CPUs is told before its inputs are
    feeds = gather_feeds(opened, given, random=True, sizes=sizes, seed=seed)
    store = None if timing_store is None else TimingStore(timing_store, write=True)
    with stages(engine.name, quiet=quiet) as progress:

        def report_progress(done: int, total: int) -> None:
            if progress is not None:
                progress("time candidates", done, total)

        tuned, report = tune_on_gpu(opened, feeds, store, report_progress)
    tuned.save(target)
    if as_json:
        console.write_json(_values(target, report))
        return
    for line in _lines(target, report):
        console.write(line)


def _values(target: Path, report: "Report") -> dict[str, Any]:
    from dataclasses import asdict

    return {"engine": str(target), **asdict(report)}


def _lines(target: Path, report: "Report") -> list[str]:
    changed = [row for row in report.rows if row.chosen != row.formula]
    gain = 1 - report.after_us / report.before_us if report.before_us else 0.0
    total = f"kernels of a run took {report.before_us:.1f} us on {report.device}, "
    total += f"and take {report.after_us:.1f} us now ({-gain:+.1%})"
    counts = f"{report.timed} candidates timed, {report.known} known; "
    counts += f"{len(changed)} of {len(report.rows)} kernels changed"
    counts += f", on {plural(report.streams, 'stream')}"
    lines = [f"{target}: {total}", counts, *([report.whole] if report.whole else [])]
    lines += [
        f"  {row.formula_us:8.2f} -> {row.us:7.2f} us  {row.name[:60]}: "
        f"{row.chosen} instead of {row.formula}"
        for row in sorted(changed, key=lambda row: row.us - row.formula_us)[:_TOP]
    ]
    lines += [
        f"  {row.name[:60]}: {text} gives other values and was left out"
        for row in report.rows
        for text in row.wrong
    ]
    return lines
