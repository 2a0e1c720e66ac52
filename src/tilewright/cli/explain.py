"""``tilewright explain``: why an engine is as fast as it is, or what a model would cost."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import console
from tilewright.cli.options import (
    Dims,
    EngineOrModel,
    Inputs,
    Json,
    Npz,
    Quiet,
    Runs,
    Threads,
    available_threads,
    parse_files,
    parse_sizes,
    refuse_unused,
)
from tilewright.cli.outputs import check_beside
from tilewright.cli.run import gather_feeds, open_engine, read_inputs
from tilewright.core.recognise import is_engine

if TYPE_CHECKING:
    import numpy.typing as npt

    from tilewright import Engine
    from tilewright.report.explanation import Explanation


def explain_model(
    model: EngineOrModel,
    html: Annotated[
        Path | None, typer.Option(metavar="OUT.html", help="Also write one page to look at.")
    ] = None,
    diff: Annotated[
        Path | None, typer.Option(metavar="B.tw", help="Say what differs in this engine.")
    ] = None,
    board: Annotated[
        str | None, typer.Option("--on", metavar="BOARD", help="Take the roofs of a GPU: H200.")
    ] = None,
    what_if: Annotated[
        str | None,
        typer.Option(metavar="PRECISION", help="Say what int8, bf16 or fp16 would be worth."),
    ] = None,
    build: Annotated[
        bool,
        typer.Option("--build", help="Compile an ONNX file and time it; else it is estimated."),
    ] = False,
    inputs: Inputs = None,
    npz: Npz = None,
    dim: Dims = None,
    runs: Runs = None,
    no_probe: Annotated[
        bool, typer.Option("--no-probe", help="Do not measure this machine's roofs.")
    ] = False,
    threads: Threads = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Explain an engine: time, roofline, decisions, what would save time.

    An ONNX file is not built: its bytes, operations, least times and memory are estimated.
    """
    files, sizes, tell = parse_files(inputs), parse_sizes(dim), console.teller(quiet=quiet)
    if html is not None:
        check_beside(html, (model,), (diff, npz, *files.values()))
    is_saved = is_engine(model)
    is_built = is_saved or build
    if diff is not None and not is_built:
        raise typer.BadParameter("--diff compares two engine files")

    is_gpu = board is not None
    refuse_unused(
        (html is not None and diff is not None, "--html", "--diff prints text, or --json"),
        (build and is_saved, "--build", "this is an engine already"),
        (runs is not None and is_gpu, "--runs", "nothing is timed with --on"),
        (runs is not None and not is_built, "--runs", "nothing is timed without --build"),
        (no_probe and is_gpu, "--no-probe", "this machine is not measured with --on"),
        (threads is not None and is_gpu and not build, "--threads", "--on takes roofs of a GPU"),
        (
            what_if is not None and diff is not None,
            "--what-if",
            "--diff takes engines as they are",
        ),
    )
    if what_if is not None:
        from tilewright.runtime.explain.what_if import check_precision

        check_precision(what_if)
    given = read_inputs(files, npz)
    if not is_built:
        explanation = _estimated(
            model, given, sizes, board, threads, what_if=what_if, probe=not no_probe, tell=tell
        )
        _print(explanation, html, as_json=as_json)
        tell(f"estimated; for times: tilewright explain {model} --build")
        return
    engines = [_open(path, threads, quiet=quiet) for path in (model, diff) if path is not None]
    feeds: dict[str, Any] = {}
    if given:
        feeds = gather_feeds(engines[0], given, random=True, sizes=sizes)
    if diff is not None:
        _check_alike(*engines, has_inputs=bool(feeds or sizes))

    def explained(engine: "Engine", runs: int | None) -> "Explanation":
        return engine.explain(feeds, sizes=sizes, runs=runs, board=board, what_if=what_if)

    if board is None and engines[0].runs_here:
        if not no_probe:
            from tilewright.compiler.roofs import ensure_roofs

            ensure_roofs(
                engines[0].threads,
                tell,
                rehearse=lambda: [explained(engine, 1) for engine in engines],
            )
        tell("timing runs")
    if diff is None:
        _print(explained(engines[0], runs), html, as_json=as_json)
    else:
        old, new = (partial(explained, engine, runs) for engine in engines)
        _print_difference(old, new, (str(model), str(diff)), tell, as_json=as_json)


def _print_difference(
    old: "Callable[[], Explanation]",
    new: "Callable[[], Explanation]",
    names: tuple[str, str],
    tell: "Callable[[str], None]",
    *,
    as_json: bool,
) -> None:
    from tilewright.runtime.explain.difference import difference, explain_in_turns

    def told(done: int, total: int) -> None:
        tell(f"{names[done % 2]}: turn {done // 2 + 1} of {total // 2}")

    found = difference(*explain_in_turns(old, new, told), names)
    if as_json:
        console.write_json(found.json())
    else:
        console.write(found.text())


def _estimated(
    model: Path,
    given: "Mapping[str, npt.NDArray[Any]]",
    sizes: Mapping[str, int],
    board: str | None,
    threads: int | None,
    *,
    what_if: str | None,
    probe: bool,
    tell: "Callable[[str], None]",
) -> "Explanation":
    """An estimate with the sizes of the inputs that were given."""
    from tilewright.compiler.estimate import estimate
    from tilewright.compiler.roofs import ensure_roofs

    shapes = {name: array.shape for name, array in given.items()}

    def estimated() -> "Explanation":
        return estimate(
            model, sizes=sizes, board=board, threads=threads, shapes=shapes, what_if=what_if
        )

    if board is None and probe:
        ensure_roofs(threads or available_threads(), tell, rehearse=estimated)
    return estimated()


def _check_alike(first: "Engine", second: "Engine", *, has_inputs: bool) -> None:
    """Inputs and sizes that were given are for both engines.

    Raises:
        BadOption: their inputs are not the same.
    """
    from tilewright.core.errors import BadOption

    old, new = ([f"{s.name} {s.dtype} {s.shape}" for s in e.inputs] for e in (first, second))
    if has_inputs and old != new:
        raise BadOption(
            "these engines are of different models: their inputs differ",
            remedy="leave out --npz, --input and --dim, or compare engines of one model",
        )


def _open(path: Path, threads: int | None, *, quiet: bool) -> "Engine":
    """An engine for any processor; a model is compiled."""
    import tilewright as tw

    if is_engine(path):
        return tw.load(path, threads=threads, inspect=True)
    return open_engine(path, threads or available_threads(), quiet=quiet)


def _print(explanation: "Explanation", html: Path | None, *, as_json: bool) -> None:
    if html is not None:
        explanation.html(html)
        console.log(f"wrote {html}")
    if as_json:
        console.write_json(explanation.json())
    else:
        console.write(explanation.text())
