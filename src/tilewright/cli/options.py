"""Options that several verbs share, and their parsing.

Text of the command line -> values. Raises ``typer.BadParameter`` (exit code 2) on bad text.
"""

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import console
from tilewright.core.check_option import MAX_THREADS
from tilewright.core.errors import BadOption
from tilewright.core.plural import plural

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")]
EngineOrModel = Annotated[
    Path, typer.Argument(metavar="ENGINE|MODEL", help="An engine or an ONNX file.")
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1, max=MAX_THREADS, help="Threads to use; by default all that this process may."
    ),
]
Precision = Annotated[
    str, typer.Option(help="Precision to compute in: fp32; also bf16, on GPUs fp16.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress on stderr.")]
Device = Annotated[int | None, typer.Option(min=0, help="Number of the GPU, by default the first.")]
Runs = Annotated[
    int | None,
    typer.Option(min=1, help="How many runs to time; by default 50, or what 10 s are enough for."),
]
Dims = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=LO..HI", help="Range of a symbolic dim, or NAME=SIZE."),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME=FILE.npy", help="An input; repeat for each."),
]
Npz = Annotated[Path | None, typer.Option(metavar="IN.npz", help="Inputs by name.")]


def parse_dims(texts: Sequence[str] | None) -> dict[str, tuple[int, int]]:
    """Parses ``name=lo..hi`` and ``name=size`` to the least and greatest size of each dim."""
    dims: dict[str, tuple[int, int]] = {}
    for text in texts or ():
        match = re.fullmatch(r"(?P<name>.+)=(?P<low>\d+)(\.\.(?P<high>\d+))?", text)
        if match is None:
            raise typer.BadParameter(f"{text!r} is not NAME=LO..HI or NAME=SIZE")
        low = int(match["low"])
        high = int(match["high"] or low)
        if low > high:
            raise typer.BadParameter(f"{text!r}: sizes must satisfy LO <= HI")
        _once("--dim", match["name"], dims)
        dims[match["name"]] = (low, high)
    return dims


def parse_sizes(texts: Sequence[str] | None) -> dict[str, int]:
    """Parses ``name=size``, where a verb needs one size of each dim."""
    dims = parse_dims(texts)
    if ranges := [name for name, (low, high) in dims.items() if low != high]:
        raise typer.BadParameter(f"{', '.join(ranges)}: give one size, NAME=SIZE")
    return {name: low for name, (low, _) in dims.items()}


def parse_files(texts: Sequence[str] | None) -> dict[str, Path]:
    """Parses ``name=file``."""
    files: dict[str, Path] = {}
    for text in texts or ():
        name, separator, file = text.partition("=")
        if not (name and separator and file):
            raise typer.BadParameter(f"{text!r} is not NAME=FILE")
        _once("--input", name, files)
        files[name] = Path(file)
    return files


def _once(option: str, name: str, known: Collection[str]) -> None:
    if name in known:
        raise typer.BadParameter(f"{option} {name} is given twice; give it once")


def parse_list(text: str) -> list[str]:
    """Parses words with commas between them."""
    return [word.strip() for word in text.split(",") if word.strip()]


def parse_counts(text: str) -> list[int]:
    """Parses positive integers with commas between them."""
    words = parse_list(text)
    if not words or not all(word.isdecimal() and int(word) > 0 for word in words):
        raise typer.BadParameter(f"{text!r} is not a list of positive integers such as 1,2")
    return [int(word) for word in words]


def refuse_unused(*cases: tuple[bool, str, str]) -> None:
    """Refuses options that would have no effect.

    Args:
        cases: whether an option was given in vain, its name, and why it would do nothing.

    Raises:
        BadOption: one was.
    """
    for is_unused, option, why in cases:
        if is_unused:
            raise BadOption(f"{option} would have no effect: {why}", remedy=f"leave out {option}")


def warn_of_threads(threads: int | None) -> None:
    """Tells on stderr where more threads than processors are asked for."""
    if threads is not None and threads > (cores := available_threads()):
        console.log(
            f"warning: --threads {threads} is more than the {plural(cores, 'processor')} "
            "of this process: runs get slower"
        )


def available_threads() -> int:
    """Returns how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
