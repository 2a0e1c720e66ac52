"""Where results are kept between runs: compiled kernels, measured roofs.

Input: the environment. Output: a folder, which need not exist.
"""

from __future__ import annotations

import os
from pathlib import Path

from tilewright.core.errors import CacheError

VARIABLE = "TILEWRIGHT_CACHE"


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
