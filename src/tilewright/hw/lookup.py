"""Finds the row of a device by the names that people use.

``sm_90``, ``sm_90a``, ``90`` and ``9.0`` -> the same ``CudaArch``; ``h200``, ``RTX4090`` and
``NVIDIA GeForce RTX 4090`` -> a ``Board``.
"""

from __future__ import annotations

import re

from tilewright.core.errors import BadTarget
from tilewright.hw.records import Board, CpuIsa, CudaArch
from tilewright.hw.tables.boards import BOARDS
from tilewright.hw.tables.cpu_isa import CPU_ISAS
from tilewright.hw.tables.cuda_arch import CUDA_ARCHS

_ARCH = re.compile(r"(?:sm_?|compute_?|cc ?)?(\d{1,2})(\.?)(\d)[af]?", re.IGNORECASE)
_BY_CAPABILITY = {arch.capability: arch for arch in CUDA_ARCHS}


def find_arch(name: str) -> CudaArch:
    """The compute capability of that name.

    Raises:
        BadTarget: there is no such row; the message lists all.
    """
    match = _ARCH.fullmatch(name.strip())
    found = _BY_CAPABILITY.get((int(match[1]), int(match[3]))) if match else None
    if found is None:
        raise BadTarget(
            f"unknown CUDA architecture {name!r}",
            remedy=f"use one of {', '.join(arch.name for arch in CUDA_ARCHS)}",
        )
    return found


def find_board(name: str) -> Board:
    """The board of that name; a part of the name is enough where only one board has it.

    Raises:
        BadTarget: no board or several have that name; the message lists them.
    """
    wanted = _plain(name)
    exact = [board for board in BOARDS if _plain(board.name) == wanted]
    partial = [board for board in BOARDS if wanted and wanted in _plain(board.name)]
    found = exact or partial
    if len(found) == 1:
        return found[0]
    choices = ", ".join(board.name for board in found or BOARDS)
    problem = "several boards are called" if found else "unknown board"
    raise BadTarget(f"{problem} {name!r}", remedy=f"use one of {choices}")


def board_of_device(device_name: str, num_sms: int) -> Board | None:
    """The row of a GPU by the name that its driver gives, if its SMs agree; else None."""
    wanted = _plain(device_name)
    named = [board for board in BOARDS if _plain(board.name) in wanted]
    fitting = [board for board in named if board.num_sms == num_sms]
    return max(fitting, key=lambda board: len(board.name), default=None)


def find_cpu(name: str) -> CpuIsa | None:
    """The row of a processor by LLVM's name; None where there is none."""
    return next((isa for isa in CPU_ISAS if isa.name == name), None)


def _plain(name: str) -> str:
    """A board's name without spaces, punctuation and the maker's words."""
    text = re.sub(r"nvidia|geforce|tesla", "", name.lower())
    return re.sub(r"[^a-z0-9]", "", text)
