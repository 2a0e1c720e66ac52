"""``tilewright.compile``: a model in, a verified engine out.

Input -> Output: a model and options -> ``Engine``, compared with the float64 reference before it
is returned.
Guarantees: nothing is written unless asked for; on any error no engine exists.
Not here: the stages (compiler.pipeline), comparing values (compiler.verify).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from tilewright.compiler.engine_cache import EngineCache, key_of
from tilewright.compiler.object_cache import ObjectCache
from tilewright.compiler.options import (
    USER_CACHE,
    Progress,
    Range,
    Require,
    Wishes,
    check_tunable,
    make_options,
    make_wishes,
)
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


def compile(
    model: Any,
    example_inputs: Any = None,
    *,
    target: str = "cpu",
    cpu: str | None = None,
    precision: str = "fp32",
    threads: int | None = None,
    dims: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    require: Require | Iterable[str] | Mapping[str, Any] | None = None,
    disable: Iterable[str] | None = (),
    integer_only: bool = False,
    candidates: int = 1,
    verify: bool = True,
    verify_passes: bool = False,
    verify_feeds: Mapping[str, Any] | None = None,
    reproducer: str | Path | None = None,
    dump_graph: str | Path | None = None,
    dump_kernels: str | Path | None = None,
    cache: str | Path | None = USER_CACHE,
    tune: bool = False,
    time_budget: float | None = None,
    timing_store: str | Path | None = None,
    progress: Progress | None = None,
) -> Engine:
    """Compiles a model.

    Args:
        model: a path, the bytes of an ONNX file, ``onnx.ModelProto``, ``onnx_ir.Model``, or a
            ``torch.nn.Module`` together with ``example_inputs``.
        example_inputs: arguments of the torch module (a tuple of tensors); for no other model.
        target: ``cpu``; ``cuda`` or architectures of NVIDIA GPUs (``sm_90``, ``sm_80+sm_90``).
        cpu: processor to compile for (``haswell``, ``znver4`` ...); None is this machine.
        precision: ``fp32``: the types that the model states; ``fp16`` (GPUs only): float32 values
            inside of the network are kept as float16, sums stay float32; ``bf16``: on GPUs
            as bfloat16, on CPUs weights and what they multiply are rounded to it, sums stay
            float32 (docs/precision.md).
        threads: threads of one run; None is the number of cores.
        dims: range of symbolic dims, ``{"batch": (1, 8)}``, checked at run time; a range of one
            size, or a size, makes it that size.
        dynamic_shapes: passed to ``torch.onnx.export``, for no other model; the ``min`` and
            ``max`` of a ``torch.export.Dim`` are its range unless ``dims`` states one.
        require: contracts: ``["compiled", "max_error=1e-5"]``, or one text with commas between
            them; a breach is an error.
        disable: algorithms and tactics not to choose, to see what they are worth: ``winograd``,
            ``strassen``, ``layout``, ``pack``, ``contraction``, ``row_reduction``,
            ``elementwise``; a list, or one text with commas between them.
        candidates: ways to run each kernel of a GPU that the engine is to have, for
            ``tilewright tune`` to choose from on the GPU (docs/cuda.md).
        integer_only: compute Softmax, Gelu, LayerNormalization, Sigmoid, Exp and Sqrt between
            integers (of Q and DQ) in integers alone, with the error that the decisions state.
        verify: compare the engine with the float64 reference before returning it.
        verify_passes: compare the graph after every pass with the graph before it.
        verify_feeds: inputs for these comparisons; by default random ones.
        reproducer: folder for the smallest part that a wrong pass changes (``verify_passes``).
        dump_graph: write the graph after the passes as ONNX.
        dump_kernels: write the readable text and LLVM IR of every kernel into this folder.
        cache: folder of compiled kernels and of engines of model files, by default the user's;
            ``None`` keeps nothing. One that can only be read is read, and ``summary["notes"]``
            says so, as it does of an engine that was taken whole from it.
        tune: time schedules of kernels inside the network, and choose by that (docs/tuning.md).
        time_budget: seconds for it; implies ``tune``. None: until every candidate was timed.
        timing_store: file of timings, which choices are made by; with ``tune`` it is made and
            grows, without it nothing is timed. Equal stores give equal engines.
        progress: called with (stage, done, total); the counts of ``tune`` are seconds.

    Raises:
        UserError: one of its kinds; see ``tilewright.core.errors``.
    """
    start = perf_counter()
    options = make_options(
        target=target,
        cpu=cpu,
        precision=precision,
        threads=threads,
        dims=dims,
        require=require,
        disable=disable,
        integer_only=integer_only,
        candidates=candidates,
    )
    wishes = make_wishes(
        verify=verify,
        verify_passes=verify_passes,
        verify_feeds=verify_feeds,
        reproducer=reproducer,
        dump_graph=dump_graph,
        dump_kernels=dump_kernels,
        cache=cache,
        tune=tune,
        time_budget=time_budget,
        timing_store=timing_store,
        progress=progress,
    )
    if wishes.tuning is not None:
        check_tunable(options.target, search=wishes.tuning.search, candidates=options.candidates)
    _check_dumps(model, wishes)
    engines = _engine_cache(wishes.cache)
    for_torch = example_inputs is not None or dynamic_shapes is not None  # of no use to a file
    key = None if for_torch else key_of(model, options, wishes)
    if (kept := engines.find(key)) is not None:
        kept.times["total_seconds"] = round(perf_counter() - start, 4)
        return Engine(kept)
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
    # Not what could not be verified, and not where the model's file has changed meanwhile.
    if (engine.runs_here or not wishes.verify) and key == key_of(model, options, wishes):
        engines.keep(key, parts)
    parts.times["total_seconds"] = round(perf_counter() - start, 4)
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


def _engine_cache(chosen: str | Path | None) -> EngineCache:
    if chosen == USER_CACHE:
        return EngineCache(cache_folder() / "engines")
    return EngineCache(None if chosen is None else Path(chosen) / "engines")


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
