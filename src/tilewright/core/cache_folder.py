"""Where results are kept between runs: compiled kernels and engines, measured roofs; and how much.

Input -> Output: the environment -> a folder, which need not exist, and what it may hold.
Guarantees: what was used least recently goes first.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tilewright.core.errors import CacheError

VARIABLE = "TILEWRIGHT_CACHE"
LIMIT = "TILEWRIGHT_CACHE_GIB"


def cache_folder() -> Path:
    """``$TILEWRIGHT_CACHE``, or ``tilewright`` in the user's cache folder.

    Raises:
        CacheError: nothing is set, and this user has no home.
    """
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "tilewright"
    try:
        return Path.home() / ".cache" / "tilewright"
    except RuntimeError as error:
        raise CacheError(
            f"there is no cache folder: {error}", remedy=f"set {VARIABLE} to a writable folder"
        ) from error


def is_chosen() -> bool:
    """Whether the caller named the folder, and so expects that it is used."""
    return bool(os.environ.get(VARIABLE))


def most_bytes(otherwise: int) -> int:
    """What one kind of entries may take together: ``$TILEWRIGHT_CACHE_GIB``, if it is set.

    Raises:
        CacheError: it is no positive number.
    """
    text = os.environ.get(LIMIT)
    if not text:
        return otherwise
    try:
        size = float(text)
    except ValueError:
        size = math.nan
    if not 0 < size < math.inf:
        raise CacheError(
            f"{LIMIT}={text} is no size of a cache", remedy="set it to GiB, as 0.5, or unset it"
        )
    return int(size * (1 << 30))


def make_room(folder: Path, pattern: str, most: int) -> None:
    """Removes files until what fits a pattern takes no more bytes, those used longest ago first.

    Raises:
        OSError: the folder cannot be written.
    """
    entries = list(_entries(folder, pattern))
    total = sum(stat.st_size for _, stat in entries)
    for path, stat in sorted(entries, key=lambda entry: entry[1].st_mtime_ns):
        if total <= most:
            break
        path.unlink(missing_ok=True)
        total -= stat.st_size


def _entries(folder: Path, pattern: str) -> Iterator[tuple[Path, os.stat_result]]:
    for path in folder.glob(pattern):
        with suppress(FileNotFoundError):  # another process has made room as well
            if path.is_file():
                yield path, path.stat()
