"""Writes for the verbs: data to stdout, progress and errors to stderr, files whole or not at all.

Guarantees: with ``--json`` stdout is one JSON document; an interrupted verb leaves no partial file.
"""

import dataclasses
import errno
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.core.errors import CacheError, UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tilewright.runtime.program import TensorSpec


def write(text: str) -> None:
    """Writes a line of data to stdout; ends the command where that fails."""
    try:
        sys.stdout.write(text + "\n")
    except OSError as error:
        raise SystemExit(_lost_stdout(error)) from None


def finish() -> int:
    """Sees that all data reached stdout; returns the exit code."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return _lost_stdout(error)
    return 0


def _lost_stdout(error: OSError) -> int:
    if error.errno != errno.EPIPE:  # the reader of a pipe may have read enough
        log(f"error: stdout cannot be written: {error.strerror}")
    with Path(os.devnull).open("w") as nowhere:  # else the interpreter tries again at its end
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    return 1


def write_json(value: object) -> None:
    """Writes a value to stdout as JSON: records as objects, paths as text, arrays as lists."""
    write(json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False))


def show(renderable: "RenderableType") -> None:
    """Shows a table or other rich object on stdout."""
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    with console.capture() as captured:
        console.print(renderable)
    write(captured.get().removesuffix("\n"))


def log(message: str) -> None:
    """Writes a line of progress to stderr."""
    sys.stderr.write(message + "\n")


_wants_json: ContextVar[bool] = ContextVar("wants_json", default=False)


@contextmanager
def json_mode(wanted: bool) -> Iterator[None]:
    """While a verb runs that was given ``--json``, or was not."""
    token = _wants_json.set(wanted)
    try:
        yield
    finally:
        _wants_json.reset(token)


def wants_json() -> bool:
    """Whether the verb that runs was given ``--json``."""
    return _wants_json.get()


def print_error(error: UserError) -> None:
    """Writes what is wrong, where, and the remedy to stderr; with ``--json`` to stdout too."""
    if wants_json():
        facts = {"error": type(error).__name__, "message": error.message, "remedy": error.remedy}
        write_json({**facts, "file": error.file, "node": error.node})
    sys.stderr.write(f"error: {error}\n")


def check_output(path: Path) -> None:
    """Checks before long work that a file can be written later.

    Raises:
        CacheError: the folder does not exist or cannot be written, or the path is a folder.
    """
    folder = path.parent
    problem = None
    if not folder.is_dir():
        problem = "no such folder"
    elif path.is_dir():
        problem, folder = "is a folder", path
    elif not os.access(folder, os.W_OK):
        problem = "the folder cannot be written"
    if problem is not None:
        raise CacheError(
            problem, file=str(folder), remedy="make it or mend it, or choose another with -o"
        )


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Gives a path to write to, which becomes ``path`` only when the block ends well.

    Raises:
        CacheError: the folder does not exist or cannot be written, or the disk is full.
    """
    check_output(path)
    unfinished = path.with_name(f".{os.getpid()}-{path.name}")  # keeps the suffix
    try:
        yield unfinished
        unfinished.replace(path)
    except OSError as error:
        raise CacheError(
            error.strerror or str(error),
            file=str(path),
            remedy="check the permissions and the free space, or choose another with -o",
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)


def _plain(value: object) -> object:
    """Returns a value in the types that JSON has; NaN and infinities become text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, str) or value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    return str(value)


def describe(spec: "TensorSpec") -> str:
    """Returns a tensor's name, dtype and dims as text."""
    return str(spec)
