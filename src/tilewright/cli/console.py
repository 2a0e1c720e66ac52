"""Writes for the verbs: data to stdout, progress and errors to stderr.

Guarantees: with ``--json`` stdout is one JSON document; data that cannot be written end the command
with a message, progress that cannot be written is left out.
Not here: files (core.whole_file).
"""

import dataclasses
import errno
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING

from tilewright.core.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tilewright.runtime.program import TensorSpec


def open_streams() -> None:
    """Replaces standard streams that are closed, or that cannot hold every character.

    What is written to a closed stdout is an error; a closed stderr drops it, a closed stdin is
    empty.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # Reading only: a write to stdout then fails, as it does after `>&-` anywhere else.
            handle = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
            os.set_inheritable(number, True)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def write(text: str) -> None:
    """Writes a line of data to stdout; ends the command where that fails."""
    try:
        sys.stdout.write(text + "\n")
    except OSError as error:
        raise SystemExit(lost_stdout(error)) from None


def finish() -> int:
    """Sees that all data reached stdout; returns the exit code."""
    _flush_stderr()
    try:
        sys.stdout.flush()
    except OSError as error:
        return lost_stdout(error)
    return 0


def lost_stdout(error: OSError) -> int:
    """Says why data could not be written, and returns the exit code."""
    if error.errno != errno.EPIPE:  # the reader of a pipe may have read enough
        log(f"error: stdout cannot be written: {error.strerror}")
    _discard(1)
    return 1


def _discard(stream: int) -> None:
    """Sends a stream nowhere, else the interpreter writes what is left again at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream)
    os.close(nowhere)


def _flush_stderr() -> None:
    try:
        sys.stderr.flush()
    except OSError:
        _discard(2)


def write_json(value: object) -> None:
    """Writes a value to stdout as JSON: records as objects, paths as text, arrays as lists."""
    write(json_text(value))


def json_text(value: object) -> str:
    """Returns a value as JSON: records as objects, paths as text, arrays as lists."""
    # A stdout of few characters would make of others what JSON does not have.
    escaped = (getattr(sys.stdout, "encoding", None) or "utf-8").lower() not in ("utf-8", "utf8")
    return json.dumps(_plain(value), indent=2, ensure_ascii=escaped, allow_nan=False)


def show(renderable: "RenderableType") -> None:
    """Shows a table or other rich object on stdout."""
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    with console.capture() as captured:
        console.print(renderable)
    write(captured.get().removesuffix("\n"))


def log(message: str) -> None:
    """Writes a line of progress to stderr."""
    with suppress(OSError):  # nobody can be told
        sys.stderr.write(message + "\n")
    _flush_stderr()


def teller(*, quiet: bool) -> Callable[[str], None]:
    """Returns what writes progress, which says nothing with ``--quiet`` or ``--json``."""
    return (lambda _: None) if quiet or wants_json() else log


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
    log(f"error: {error}")
    if wants_json():
        facts = {"error": type(error).__name__, "message": error.message, "remedy": error.remedy}
        write_json({**facts, "file": error.file, "node": error.node})


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
