"""A model and checked options to a new engine, compared with the reference.

Input -> Output: a model, ``CompileOptions``, ``Wishes`` -> ``Engine`` with its decisions and times.
Guarantees: dumps are written whole or not at all; on any error no engine exists.
Not here: options and the cache of engines (compiler.build), the stages (compiler.pipeline),
comparing values (compiler.verify).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.compiler.object_cache import ObjectCache
from tilewright.compiler.options import USER_CACHE, CompileOptions, Range, Wishes
from tilewright.compiler.pipeline import Build, compile_parts
from tilewright.compiler.verify import check_tolerance, verify_engine
from tilewright.core.cache_folder import cache_folder, is_chosen
from tilewright.core.errors import ContractBreach
from tilewright.core.whole_file import check_folder, check_output, whole_files
from tilewright.graph.external_files import external_files
from tilewright.graph.facade import Model
from tilewright.lower.families import LOWERINGS
from tilewright.runtime.engine import Engine
from tilewright.runtime.engine_file import EngineParts, source_suffix


def new_engine(
    model: Any, options: CompileOptions, wishes: Wishes, example_inputs: Any, dynamic_shapes: Any
) -> Engine:
    """Builds an engine; arguments are those of ``compile``, checked.

    Raises:
        UserError: one of its kinds; see ``tilewright.core.errors``.
    """
    _check_dumps(model, wishes)
    build = Build(
        options=options,
        cache=_object_cache(wishes.cache),
        progress=wishes.progress,
        tuning=wishes.tuning,
        feeds=wishes.verify_feeds,
        reproducer=wishes.reproducer,
    )
    imported = _import(model, build, example_inputs, dynamic_shapes)
    parts = _parts(imported, build, wishes)
    engine = Engine(parts)
    _conclude(engine, parts, imported, build, wishes)
    return engine


def _import(model: Any, build: Build, example_inputs: Any, dynamic_shapes: Any) -> Model:
    """The model as a graph; the ranges that it declares become options of the build."""
    with build.stage("import"):
        imported = Model.load(
            model,
            build.log,
            example_inputs=example_inputs,
            dynamic_shapes=dynamic_shapes,
            known=lambda domain, op_type: (domain, op_type) in LOWERINGS,
        )
        ranges = _ranges(imported, build.options.ranges)
        fixed = _only_sizes(imported, ranges)
        imported.fix_sizes(fixed, build.log)
        if build.options.integer_only:
            imported.make_integer_only(build.log)
    left = {name: ends for name, ends in ranges.items() if name not in fixed}
    build.options = replace(build.options, ranges=left)
    return imported


def _parts(model: Model, build: Build, wishes: Wishes) -> EngineParts:
    """The engine, and the dumps of its graph and kernels that were asked for."""
    if build.options.target == "cpu":
        parts = compile_parts(model, build, verify_passes=wishes.verify_passes)
    else:
        from tilewright.compiler.cuda_pipeline import compile_cuda_parts

        parts = compile_cuda_parts(model, build, verify_passes=wishes.verify_passes)
    if wishes.dump_graph is not None:
        model.save(wishes.dump_graph)
    if wishes.dump_kernels is not None:
        _dump(wishes.dump_kernels, build, parts)
    return parts


def _conclude(
    engine: Engine, parts: EngineParts, imported: Model, build: Build, wishes: Wishes
) -> None:
    """Verifies, and writes down what the build decided and took."""
    parts.decisions = tuple(build.log.entries)  # tolerances go by them
    with build.stage("verify"):
        if wishes.verify:
            summary = _verified(engine, imported, build, wishes.verify_feeds)
        else:
            summary = _unverified(build)
    parts.info["summary"].update(summary)
    build.log.add("verify", Path(imported.name).name, summary["verification"])
    parts.decisions = tuple(build.log.entries)
    parts.times["seconds"] = {name: round(value, 4) for name, value in build.times_s.items()}
    parts.times["notes"] = list(build.cache.notes)
    if build.effort:
        parts.times["tuning"] = dict(build.effort)


def _object_cache(chosen: str | Path | None) -> ObjectCache:
    """The cache that was asked for; the user's own may be of no use without being an error."""
    if chosen == USER_CACHE:
        return ObjectCache(cache_folder() / "objects", required=is_chosen())
    return ObjectCache(None if chosen is None else Path(chosen))


def _check_dumps(model: Any, wishes: Wishes) -> None:
    """Sees before the work that dumps can be written, and do not replace the model."""
    if wishes.dump_graph is not None:
        is_file = isinstance(model, str | os.PathLike)
        inputs = (model, *external_files(model)) if is_file else ()
        check_output(wishes.dump_graph, inputs)
    for folder in (wishes.dump_kernels, wishes.reproducer):
        if folder is not None:
            check_folder(folder)


def _ranges(model: Model, stated: Mapping[str, Range]) -> dict[str, Range]:
    """The ranges of ``dims=``, and those of the model's ``torch.export.Dim`` objects below them."""
    known = _dims(model)
    declared = {name: ends for name, ends in model.declared.items() if name in known}
    return {**declared, **stated}


def _only_sizes(model: Model, ranges: Mapping[str, Range]) -> dict[str, int]:
    """Dims of the model with one size in their range."""
    known = _dims(model)
    return {
        name: low
        for name, (low, high) in ranges.items()
        if low is not None and low == high and name in known
    }


def _dims(model: Model) -> set[str]:
    inputs = model.view().inputs
    return {name for value in inputs for dim in value.shape or () for name in dim.symbols}


def _verified(
    engine: Engine, model: Model, build: Build, feeds: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Compares the engine with the reference; raises if it is wrong or breaks the contract."""
    if not engine.runs_here:
        _require_no_error_limit(build, "this machine cannot run the engine")
        return {"verification": f"skipped: compiled for {engine.info['cpu']}, which is not here"}
    found = verify_engine(engine, model, feeds=feeds)
    check_tolerance(found, model, build.options)
    return {
        "verification": found.text,
        "max_error": found.max_error,
        "arena_bytes": engine.arena_bytes(found.symbols),
        "arena_sizes": dict(found.symbols),
    }


def _unverified(build: Build) -> dict[str, Any]:
    _require_no_error_limit(build, "verification is switched off")
    return {"verification": "skipped on request"}


def _require_no_error_limit(build: Build, reason: str) -> None:
    if build.options.require.max_error is not None:
        raise ContractBreach(
            f"max_error is required, but {reason}",
            remedy="drop the contract, or compile and verify on the machine that runs the engine",
        )


def _dump(folder: Path, build: Build, parts: EngineParts) -> None:
    with whole_files(folder) as unfinished:
        for key, text in build.kernels.items():
            (unfinished / f"{key}.txt").write_text(text + "\n")
            (unfinished / f"{key}{source_suffix(parts)}").write_text(parts.sources[key])
