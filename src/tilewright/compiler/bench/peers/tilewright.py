"""Tilewright itself, as its users meet it."""

from __future__ import annotations

from pathlib import Path

import tilewright as tw
from tilewright.compiler.bench.peers.opened import EXACT, Bound, Opened
from tilewright.compiler.feeds import InputSpec


def open_tilewright(model: Path, threads: int, precision: str = EXACT) -> Opened:
    """Compiles a model."""
    engine = tw.compile(model, target="cpu", precision=precision, threads=threads)
    # An input of unknown rank cannot be random: without a file for it the engine says so.
    inputs = [
        InputSpec.of(spec.name, spec.dtype, spec.shape)
        for spec in engine.inputs
        if spec.shape is not None
    ]
    return Opened(
        version=tw.__version__,
        inputs=inputs,
        bind=lambda feeds: Bound.of(lambda: engine.run(feeds)),
        settings="the model's types" if precision == EXACT else f"precision={precision}",
        precision=precision,
    )
