"""``tilewright demo``: reads a picture of text and compares with ONNX Runtime.

Exit code 1 when a line is not what the expected text says.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import console
from tilewright.cli.options import (
    Json,
    Quiet,
    Threads,
    available_threads,
    parse_list,
    warn_of_threads,
)
from tilewright.core.errors import UserError
from tilewright.core.plural import plural

if TYPE_CHECKING:
    from rich.table import Table

    from tilewright.demo.compare import Result

EXAMPLES = Path(__file__).parents[3] / "examples"


def read_picture(
    picture: Annotated[
        Path | None,
        typer.Argument(help="An image of text; by default the example of the source tree."),
    ] = None,
    expect: Annotated[
        Path | None,
        typer.Option(help="Its lines; by default the file beside the picture that ends in .txt."),
    ] = None,
    runtimes: Annotated[
        str, typer.Option("--with", metavar="NAMES", help="Runtimes to read with.")
    ] = "tilewright,onnxruntime",
    threads: Threads = None,
    repeats: Annotated[int, typer.Option(min=1, help="Times each runtime reads.")] = 5,
    folder: Annotated[Path, typer.Option(help="Where the engine files go.")] = Path("build/demo"),
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Compile again instead of loading engine files.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Read a picture of text with three compiled networks, side by side with ONNX Runtime."""
    warn_of_threads(threads)

    from tilewright.demo.networks import require_packages

    require_packages()
    from tilewright.demo.compare import compare

    picture = picture or _example()
    result = compare(
        picture,
        _expected_lines(picture, expect),
        runtimes=parse_list(runtimes),
        threads=threads or available_threads(),
        folder=folder,
        repeats=repeats,
        progress=console.teller(quiet=quiet),
        rebuild=rebuild,
    )
    if as_json:
        console.write_json(result)
    else:
        _print_result(result)
    if result.mistakes:
        raise typer.Exit(1)


def _example() -> Path:
    """The picture of the source tree, of which the working folder may be the root."""
    for folder in (EXAMPLES, Path("examples")):
        if (folder / "text.png").is_file():
            return folder / "text.png"
    raise UserError(
        "the example picture is not here: it lies in the source tree (examples/text.png)",
        remedy="name a picture of text: tilewright demo PICTURE",
    )


def _expected_lines(picture: Path, expect: Path | None) -> list[str] | None:
    file = expect or picture.with_suffix(".txt")
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8").splitlines()
        except ValueError:
            raise UserError("is no UTF-8 text", file=str(file), remedy="save it as UTF-8") from None
    if expect is not None:
        raise UserError("no such file", file=str(expect), remedy="check --expect")
    return None


def _print_result(result: "Result") -> None:
    for line in result.sides[0].lines:
        mark = "  (was upside down)" if line.is_upside_down else ""
        console.write(f"  {line.text}{mark}")
    console.write("")
    console.show(_times(result))
    threads = plural(result.threads, "thread")
    for side in result.sides:
        console.write(
            f"{side.runtime} {side.version}: {threads}, {side.precision}, "
            f"{side.how} in {side.prepare_s:.2f} s"
        )
    for side in result.sides:
        if side.runtime == "tilewright":
            console.write("engine files: " + ", ".join(str(file) for file in side.files))
    for side in result.sides:
        if result.num_expected is not None:
            wrong = [one for one in result.mistakes if one.runtime == side.runtime]
            right = result.num_expected - sum(one.expected is not None for one in wrong)
            console.write(f"{side.runtime}: {right} of {result.num_expected} lines as expected")
    for mistake in result.mistakes:
        console.log(
            f"error: {mistake.runtime}: line {mistake.number} is {mistake.read!r}, "
            f"should be {mistake.expected!r}"
        )


def _times(result: "Result") -> "Table":
    from rich.table import Table

    from tilewright.demo.compare import NETWORK_STAGES

    table = Table(title="milliseconds for the picture, best of the repeats")
    table.add_column("stage")
    for side in result.sides:
        table.add_column(side.runtime, justify="right")
    has_ratio = len(result.sides) > 1
    if has_ratio:
        table.add_column(f"{result.sides[1].runtime} / {result.sides[0].runtime}", justify="right")
    for stage in NETWORK_STAGES:
        table.add_row(stage, *_cells([side.stage_s[stage] for side in result.sides]))
    table.add_section()
    table.add_row("the three networks", *_cells([side.networks_s for side in result.sides]))
    # No ratio: it is the same code, slowed by whatever threads a runtime leaves spinning.
    others = [f"{side.stage_s['other'] * 1e3:.1f}" for side in result.sides]
    table.add_row("other (the same code)", *others, *[""] * has_ratio)
    return table


def _cells(seconds: list[float]) -> list[str]:
    cells = [f"{value * 1e3:.1f}" for value in seconds]
    return [*cells, f"{seconds[1] / seconds[0]:.2f}"] if len(seconds) > 1 else cells
