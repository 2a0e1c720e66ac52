"""One quantisation under way: from a model and data to the numbers of the quantised model.

    import -> folding into weights -> layers -> calibration -> remedies -> integers -> ONNX
Input -> Output: a model, data and options -> ``Job``, which writes any part of it in 8 bits.
Not here: what is done with it (quantize, evaluate, search).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.compress.affine import FLOAT8, affine, symmetric
from tilewright.compress.calibrate import Calibration, Progress, calibrate
from tilewright.compress.contract import check_quantized
from tilewright.compress.data import Batches, open_data
from tilewright.compress.equalize import equalize
from tilewright.compress.layers import Plan, find_layers
from tilewright.compress.options import QuantizeOptions
from tilewright.compress.pictures import Preprocessing
from tilewright.compress.recipe import Weights, make_recipe
from tilewright.compress.remedies import applies, needs_moments, quantized_weights
from tilewright.compress.smooth import smooth
from tilewright.core import check_option as check
from tilewright.core.errors import BadOption
from tilewright.core.plural import plural
from tilewright.core.record import DecisionLog
from tilewright.graph.insert_qdq import Affine, Recipe
from tilewright.graph.quantizable import Quantizable, serialized
from tilewright.lower.families import LOWERINGS


@dataclass(slots=True, kw_only=True)
class Job:
    """One quantisation under way.

    Attributes:
        model: in float, after remedies that keep its function.
        plan: of that model.
        points: parameters of activations.
        weights: by layer.
    """

    model: Quantizable
    plan: Plan
    options: QuantizeOptions
    log: DecisionLog
    seen: Calibration | None
    points: Mapping[str, Affine]
    weights: Mapping[str, Weights]

    def recipe(self, float_nodes: Iterable[str] = (), log: DecisionLog | None = None) -> Recipe:
        """What is written, with some nodes in float."""
        return make_recipe(
            self.plan,
            self.points,
            self.weights,
            float_nodes=frozenset(float_nodes),
            dynamic=self.options.activations == "dynamic",
            log=log,
        )

    def emit(self, float_nodes: Iterable[str] = ()) -> bytes:
        """The quantised model."""
        recipe = self.recipe(float_nodes, self.log)
        return serialized(self.model.quantized(recipe, self.log), self.model.infos())


def prepare(
    model: Any,
    data: Any,
    options: QuantizeOptions,
    *,
    preprocessing: Preprocessing | None = None,
    limit: int | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Job:
    """Everything up to the numbers of the quantised model."""
    limit = None if limit is None else check.whole("limit", limit, 1)
    progress = check.function("progress", progress)
    log = DecisionLog()
    if progress is not None:
        progress("import", 0, 0)
    loaded = Quantizable.load(model, log, known=lambda *op: op in LOWERINGS)
    plan = _plan(loaded, options)
    if options.all_quantized:
        check_quantized(plan, loaded.name)
    batches = _open(data, loaded, options, preprocessing, limit)
    if applies("equalize", options):
        loaded = equalize(loaded, plan, log)
        plan = _plan(loaded, options)
    if batches is not None and _is_smoothed(plan, batches, options, log):
        channels = options.per_channel
        loaded = smooth(
            loaded, plan, batches, log, per_channel=channels, threads=threads, progress=progress
        )
        plan = _plan(loaded, options)
    seen = None
    if batches is not None:
        seen = calibrate(
            loaded,
            plan,
            batches,
            method=options.calibration,
            share=options.percentile,
            second=needs_moments(options),
            threads=threads,
            progress=progress,
        )
        log.add("calibrate", batches.name, plural(seen.num_samples, "sample"))
    for node, op_type, reason in plan.kept:
        log.add("quantize", node, f"{op_type} kept in float", ((options.format, reason),))
    return Job(
        model=loaded,
        plan=plan,
        options=options,
        log=log,
        seen=seen,
        points=_points(seen, options, log),
        weights=quantized_weights(plan, seen, options, log, progress),
    )


def _plan(model: Quantizable, options: QuantizeOptions) -> Plan:
    graph = model.view()
    unknown = set(options.exclude) - {node.name for node in graph.nodes}
    if unknown:
        raise BadOption(
            f"exclude: the model has no node {', '.join(sorted(unknown))}",
            file=model.name,
            remedy="name nodes as `tilewright explain` does; folded ones are gone",
        )
    infos = model.infos()
    floats = [name for name, info in infos.items() if info.dtype.is_float]
    plan = find_layers(graph, exclude=options.exclude, carriers=options.carriers, floats=floats)
    if options.activations == "dynamic":
        plan = _products_only(plan)
    if not plan.layers:
        reasons = "; ".join(f"{node}: {why}" for node, _, why in plan.kept[:3])
        raise BadOption(
            f"nothing can be quantised ({reasons or 'no Conv, Gemm or MatMul'})",
            file=model.name,
            remedy="quantise a float model with constant weights",
        )
    return plan


def _is_smoothed(plan: Plan, batches: Batches, options: QuantizeOptions, log: DecisionLog) -> bool:
    """Whether activations are looked at for smoothing, which takes a walk over the data."""
    reason = None
    if not applies("smooth", options):
        return False
    products = sum(layer.op_type in ("MatMul", "Gemm") for layer in plan.layers)
    if not batches.again:
        reason = "the data end after one walk, and it takes one of its own"
    elif options.remedies is None and 2 * products < len(plan.layers):
        reason = "most layers are convolutions"
    if reason is not None:
        log.add("remedies", "smooth", "not applied", (("smooth", reason),))
    return reason is None


def _products_only(plan: Plan) -> Plan:
    layers = tuple(layer for layer in plan.layers if layer.op_type in ("MatMul", "Gemm"))
    kept = [
        (layer.node, layer.op_type, "dynamic activations are for MatMul and Gemm")
        for layer in plan.layers
        if layer not in layers
    ]
    readers: dict[str, list[str]] = {}
    for layer in layers:
        readers.setdefault(layer.source, []).append(layer.node)
    return Plan(
        layers=layers,
        carriers=(),
        readers={name: tuple(nodes) for name, nodes in readers.items()},
        ties=(),
        kept=(*plan.kept, *kept),
    )


def _open(
    data: Any,
    model: Quantizable,
    options: QuantizeOptions,
    preprocessing: Preprocessing | None,
    limit: int | None,
) -> Batches | None:
    needed = options.activations != "dynamic" or needs_moments(options)
    if data is None:
        if needed:
            raise BadOption(
                "data is missing",
                remedy="give about 100 samples (--data), or use dynamic activations",
            )
        return None
    if not needed and not applies("bias-correction", options):
        raise BadOption(
            "data is given, and dynamic activations need none", remedy="leave out the data"
        )
    inputs = model.view().inputs
    return open_data(data, inputs, preprocessing=preprocessing, limit=limit)


def _points(
    seen: Calibration | None, options: QuantizeOptions, log: DecisionLog
) -> dict[str, Affine]:
    """Parameters of every activation."""
    if seen is None or options.activations == "dynamic":
        return {}
    found = {}
    for name, observer in seen.observers.items():
        low, high = observer.range(symmetric=options.symmetric)
        if low == high:
            log.add("calibrate", name, "is 0 on all data: scale 1")
        if options.symmetric:
            kind = FLOAT8 if options.format == "float8" else np.int8
            found[name] = symmetric(np.float64(max(-low, high)), dtype=kind)
        else:
            found[name] = affine(low, high)
    return found
