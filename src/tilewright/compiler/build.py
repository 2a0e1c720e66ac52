"""``tilewright.compile``: a model in, a verified engine out.

Input -> Output: a model and options -> ``Engine``, compared with the float64 reference before it
is returned.
Guarantees: nothing is written unless asked for; on any error no engine exists; where the cache has
the engine, no compiler is loaded.
Not here: building what the cache has not (compiler.new_engine).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from tilewright.compiler.engine_cache import EngineCache, key_of
from tilewright.compiler.options import (
    USER_CACHE,
    Progress,
    Require,
    check_tunable,
    make_options,
    make_wishes,
)
from tilewright.core.cache_folder import cache_folder
from tilewright.runtime.engine import Engine


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
    engines = _engine_cache(wishes.cache)
    for_torch = example_inputs is not None or dynamic_shapes is not None  # of no use to a file
    key = None if for_torch else key_of(model, options, wishes)
    if (kept := engines.find(key)) is not None:
        kept.times["total_seconds"] = round(perf_counter() - start, 4)
        return Engine(kept)
    from tilewright.compiler.new_engine import new_engine  # which takes longer than to load one

    engine = new_engine(model, options, wishes, example_inputs, dynamic_shapes)
    # Not what could not be verified, and not where the model's file has changed meanwhile.
    if (engine.runs_here or not wishes.verify) and key == key_of(model, options, wishes):
        engines.keep(key, engine.parts)
    engine.parts.times["total_seconds"] = round(perf_counter() - start, 4)
    return engine


def _engine_cache(chosen: str | Path | None) -> EngineCache:
    if chosen == USER_CACHE:
        return EngineCache(cache_folder() / "engines")
    return EngineCache(None if chosen is None else Path(chosen) / "engines")
