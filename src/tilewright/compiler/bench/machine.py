"""Which machine and which source a measurement is of."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tilewright.hw.machine import describe_machine


def describe_device() -> str:
    """Returns the processor's name and how many of them this process may use."""
    return (
        f"{describe_machine().cpu}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} processors"
    )


def describe_commit() -> str | None:
    """Returns the source tree's commit, with ``-dirty`` after changes; ``None`` outside one."""
    folder = Path(__file__).parent
    command = ["git", "-C", os.fspath(folder), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # there is no git
        return None
    return result.stdout.strip() if result.returncode == 0 else None
