"""Starts Python programs of this package that work for their caller.

Guarantees: Ctrl-C in a terminal reaches only the caller, who ends them; they find this package
wherever it was imported from.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any


def start_undisturbed(command: list[str], **options: Any) -> subprocess.Popen[Any]:
    """``subprocess.Popen`` of a program that SIGINT does not reach."""
    # A new process inherits what is blocked; one that arrives meanwhile waits for the caller.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(command, **options)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def source_path() -> str:
    """``PYTHONPATH`` with the folder of this package first."""
    source = str(Path(__file__).resolve().parents[2])
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([source, *([given] if given else [])])
