"""Whether this processor can run code that was compiled for another.

Input -> Output: a target triple and the feature names that its code may use -> the features that
are missing.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from functools import cache

import llvmlite.binding as llvm


def missing_features(triple: str, required: Iterable[str]) -> list[str]:
    """Features of the code that this machine lacks; the architecture itself if it differs."""
    wanted = triple.split("-", 1)[0].replace("arm64", "aarch64")
    here = platform.machine().lower().replace("arm64", "aarch64").replace("amd64", "x86_64")
    if wanted and wanted != here:
        return [wanted]
    return [name for name in required if not _present().get(name, False)]


@cache
def _present() -> dict[str, bool]:
    return dict(llvm.get_host_cpu_features())
