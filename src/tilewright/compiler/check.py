"""``tilewright verify``: a model, and perhaps a saved engine of it, against the float64 reference.

Input -> Output: model, engine file or None, inputs or None -> ``Verification``; where it failed, a
small reproducer if wanted.
Not here: the comparison (compiler.verify), finding the fault (compiler.bisect).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tilewright.codegen.cpu.target import host_target
from tilewright.compiler.build import compile
from tilewright.compiler.pipeline import run_graph_passes
from tilewright.compiler.reproducer import Reproducer, write_reproducer
from tilewright.compiler.verify import Verification, compare_engine, verify_engine
from tilewright.core.errors import BadOption
from tilewright.core.record import DecisionLog
from tilewright.core.shape import shape_text
from tilewright.graph.facade import Model
from tilewright.graph.view import ValueView
from tilewright.lower.families import LOWERINGS
from tilewright.runtime.engine import Engine, load
from tilewright.runtime.program import TensorSpec


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
    opened, imported = _opened(model, engine), _imported(model)
    _require_same_interface(opened, imported)
    return verify_engine(opened, imported, feeds=feeds, seed=seed)


def _require_same_interface(engine: Engine, model: Model) -> None:
    """Refuses an engine whose inputs or outputs cannot be the model's."""
    graph = model.original
    pairs = zip(engine.inputs, graph.inputs, strict=False)
    if len(engine.inputs) != len(graph.inputs) or not all(_alike(*pair) for pair in pairs):
        ours, theirs = ", ".join(map(str, engine.inputs)), _text(graph.inputs)
        raise _other_model(
            engine, f"the inputs differ: {ours} of the engine, {theirs} of the model"
        )
    names = [spec.name for spec in engine.outputs]
    if names != (wanted := [value.name for value in graph.outputs]):
        raise _other_model(
            engine, f"the outputs differ: {names} of the engine, {wanted} of the model"
        )


def _other_model(engine: Engine, message: str) -> BadOption:
    source = engine.info.get("model")
    return BadOption(
        f"the engine was built from another model, {source}: {message}",
        remedy="name the model that the engine was built from, or build the engine again",
    )


def _alike(spec: TensorSpec, value: ValueView) -> bool:
    if (spec.name, spec.dtype) != (value.name, value.dtype):
        return False
    if spec.shape is None or value.shape is None:
        return True
    return len(spec.shape) == len(value.shape) and all(
        not (mine.is_const and theirs.is_const) or mine == theirs
        for mine, theirs in zip(spec.shape, value.shape, strict=True)
    )


def _text(values: Iterable[ValueView]) -> str:
    return ", ".join(
        f"{value.name} {value.dtype}{shape_text(value.shape or ()).replace('`', '')}"
        for value in values
    )


def reproduce(
    model: Any, found: Verification, folder: Path, engine: Engine | str | Path | None = None
) -> Reproducer | None:
    """Writes a small model that shows what ``verify`` found.

    Args:
        model: the same as for ``verify``.
        found: its result.
        folder: where ``model.onnx`` and ``inputs.npz`` go.
        engine: the same as for ``verify``: parts are compiled for its processor and threads.

    Returns:
        None where the verification passed, or could not say where the fault is.

    Raises:
        CacheError: the folder cannot be written.
    """
    if found.fault is None:
        return None
    options = {} if engine is None else _options_of(_opened(model, engine))

    def fails(path: Path, feeds: Mapping[str, Any]) -> bool:
        small = compile(path, verify=False, **options)
        return not compare_engine(small, _imported(path), feeds).passed

    return write_reproducer(_imported(model), found.fault, folder, fails)


def _options_of(engine: Engine) -> dict[str, Any]:
    cpu = engine.info.get("cpu")
    return {"threads": engine.threads, "cpu": None if cpu == host_target().name else cpu}


def _opened(model: Any, engine: Engine | str | Path | None) -> Engine:
    if engine is None:
        return compile(model, verify=False)
    return engine if isinstance(engine, Engine) else load(engine)


def _imported(model: Any) -> Model:
    """The model, and the graph that the compiler makes of it."""
    log = DecisionLog()
    imported = Model.load(model, log, known=lambda domain, op_type: (domain, op_type) in LOWERINGS)
    run_graph_passes(imported, log)
    return imported
