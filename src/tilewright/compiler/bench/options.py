"""How to compare runtimes, and what of it is refused.

Not here: whether a peer is installed, which only its process finds out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.compiler.bench.peers import OURS, PEERS
from tilewright.compiler.bench.peers.opened import EXACT, PRECISIONS
from tilewright.core.check_option import one_of
from tilewright.core.errors import BadOption
from tilewright.core.plural import listed

MAX_ROUNDS = 1000
TOLERANCES = {EXACT: 1e-4, "bf16": 6e-2}
MIN_BATCH_MS, MAX_BATCH_MS = 1.0, 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """How to compare.

    Attributes:
        peers: whom to compare with.
        threads: of each contender.
        rounds: batches of each contender that count.
        batch_ms: milliseconds of one batch.
        tolerance: the greatest difference of outputs, relative to each output's greatest value;
            None: what the precision allows.
        precision: what contenders compute in, if they can; others compute in ``fp32``.
    """

    peers: tuple[str, ...] = ("onnxruntime",)
    threads: int = 1
    rounds: int = 15
    batch_ms: float = 60.0
    tolerance: float | None = None
    precision: str = EXACT

    @property
    def allowed(self) -> float:
        """The tolerance that holds."""
        return TOLERANCES[self.precision] if self.tolerance is None else self.tolerance


def check_options(options: BenchOptions) -> None:
    """Refuses what cannot be measured.

    Raises:
        BadOption: a peer is unknown or named twice, or a number is out of its range (or is none).
    """
    _check_peers(options.peers)
    one_of("precision", options.precision, PRECISIONS)
    available = len(os.sched_getaffinity(0))
    ranges = (
        ("threads", options.threads, 1, available),
        ("rounds", options.rounds, 1, MAX_ROUNDS),
        ("batch_ms", options.batch_ms, MIN_BATCH_MS, MAX_BATCH_MS),
        ("tolerance", options.allowed, 0.0, 1.0),
    )
    for name, value, low, high in ranges:
        if not low <= value <= high:  # NaN too
            raise BadOption(f"{name} is {value}", remedy=f"give {low:g} to {high:g}")


def _check_peers(peers: Sequence[str]) -> None:
    remedy = f"choose from {listed(PEERS)}"
    if unknown := sorted(set(peers) - set(PEERS)):
        message = f"unknown peers {listed(unknown)}"
        if OURS in unknown:
            message += f" ({OURS} takes part anyway)"
        raise BadOption(message, remedy=remedy)
    if not peers:
        raise BadOption("there is nothing to compare with", remedy=f"name a peer: {remedy}")
    if len(set(peers)) != len(peers):
        raise BadOption("a peer is named twice", remedy="name each once")
