"""Options as callers give them -> values of the types that the code reads.

Input -> Output: an option's name and what was given for it -> a number, a path, names, sizes.
Guarantees: whatever was given, the result is of the stated type or the error is a ``BadOption``
that names the option, what was given and what is accepted.
Not here: what an option means (compiler.options), arrays (runtime.feeds).
"""

from __future__ import annotations

import operator
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.core.errors import BadOption, UserError

MAX_SIZE = 2**63 - 1
MAX_THREADS = 1024
_MAX_BITS = 256  # of a number that is worth printing


def shown(value: Any) -> str:
    """A value on one short line, whatever its ``repr`` does."""
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str | bytes | bool | int | float | None):
        line = repr(value)
        return line if len(line) <= 80 else f"{line[:80]}..."
    return " ".join(reprlib.repr(value).split())


def is_whole(value: Any) -> bool:
    """True for whole numbers, NumPy's too, and not for bools."""
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def whole(option: str, value: Any, low: int, high: int = MAX_SIZE) -> int:
    """A whole number of ``low`` to ``high``."""
    if not is_whole(value) or not low <= operator.index(value) <= high:
        most = "2**63 - 1" if high == MAX_SIZE else str(high)
        raise BadOption(
            f"{option} is {shown(value)}", remedy=f"use a whole number, {low} .. {most}"
        )
    return operator.index(value)


def thread_count(value: Any) -> int:
    """Threads of a run; None is as many as this process may use."""
    if value is None:
        return min(MAX_THREADS, len(os.sched_getaffinity(0)))
    return whole("threads", value, 1, MAX_THREADS)


def flag(option: str, value: Any) -> bool:
    """True or False; text and numbers are neither."""
    if isinstance(value, bool):
        return value
    import numpy as np  # late, as the command's help needs the other checks only

    if isinstance(value, np.bool_):
        return bool(value)
    raise BadOption(f"{option} is {shown(value)}", remedy="use True or False")


def one_of(
    option: str, value: Any, known: Sequence[str], error: type[UserError] = BadOption
) -> str:
    """One of some names; anything else is an ``error``."""
    if isinstance(value, str) and value in known:
        return value
    raise error(f"unknown {option} {shown(value)}", remedy=f"use {', '.join(known)}")


def text(option: str, value: Any) -> str:
    """Text, of which the reader decides what it means."""
    if isinstance(value, str):
        return value
    raise BadOption(f"{option} is {shown(value)}", remedy="give a name as str")


def file_path(option: str, value: Any) -> Path:
    """A path that the system can take; an empty one is none."""
    try:
        path = os.fspath(value)
    except TypeError:
        path = None
    problem = None
    if not isinstance(path, str):
        problem = f"{shown(value)} ({type(value).__name__})"
    elif not path:
        problem = "an empty path"
    elif "\0" in path or not _can_be_encoded(path):
        problem = f"{shown(path)}, which cannot be a path"
    if problem is not None:
        raise BadOption(f"{option} is {problem}", remedy="give a path as str or pathlib.Path")
    return Path(path)


def _can_be_encoded(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def names(option: str, value: Any, example: str) -> list[str]:
    """Names: None for none, text with commas between them, or several texts.

    Args:
        example: what to write, for the remedy.
    """
    if value is None:
        return []
    parts = value.split(",") if isinstance(value, str) else value
    listed = isinstance(parts, Iterable) and not isinstance(parts, bytes | bytearray)
    found = list(parts) if listed else []
    if not listed or not all(isinstance(part, str) for part in found):
        raise BadOption(f"{option} is {shown(value)}", remedy=f"give names, for example {example}")
    return [part.strip() for part in found]


def by_name(option: str, value: Any, example: str) -> dict[str, Any]:
    """A mapping whose keys are text, as a dict; None is an empty one.

    Args:
        example: what to write, for the remedy.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise BadOption(f"{option} is {shown(value)}", remedy=f"for example {example}")
    return dict(value)


def sizes(option: str, value: Any) -> dict[str, int]:
    """A size of each dim by its name."""
    given = by_name(option, value, f'{option}={{"batch": 8}}')
    return {name: whole(f"{option}[{name!r}]", size, 0) for name, size in given.items()}


def shapes(option: str, value: Any) -> dict[str, tuple[int, ...]]:
    """A shape of each input by its name."""
    given = by_name(option, value, f'{option}={{"x": (1, 3)}}')
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in given.items():
        if not isinstance(shape, list | tuple):
            raise BadOption(f"{option}[{name!r}] is {shown(shape)}", remedy="give its sizes")
        found[name] = tuple(whole(f"{option}[{name!r}]", size, 0) for size in shape)
    return found


def function(option: str, value: Any) -> Callable[..., Any] | None:
    """Something to call, or None."""
    if value is None or callable(value):
        return value  # type: ignore[no-any-return]
    raise BadOption(f"{option} is {shown(value)}", remedy="give a function, or None")
