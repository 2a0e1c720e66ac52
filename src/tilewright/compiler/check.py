"""``tilewright verify``: a model, and perhaps a saved engine of it, against the float64 reference.

Input -> Output: model, engine file or None, inputs or None -> ``Verification``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.compiler.build import compile
from tilewright.compiler.verify import Verification, verify_engine
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model
from tilewright.lower.families import LOWERINGS
from tilewright.runtime.engine import Engine, load


def verify(
    model: Any,
    engine: Engine | str | Path | None = None,
    feeds: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
) -> Verification:
    """Compares an engine with the model; compiles the model when no engine is given.

    Raises:
        UserError: model, engine or inputs cannot be used.
    """
    imported = Model.load(
        model, DecisionLog(), known=lambda domain, op_type: (domain, op_type) in LOWERINGS
    )
    if engine is None:
        engine = compile(model, verify=False)
    elif not isinstance(engine, Engine):
        engine = load(engine)
    return verify_engine(engine, imported.original, feeds=feeds, seed=seed)
