"""Which remedies a layer gets, and its integers after them.

Input -> Output: layers, what calibration saw, options -> ``Weights`` by layer.
Guarantees: each decision is recorded: what was applied where, and why the rest was not.
Not here: the remedies themselves (adaround, bias_correction, equalize, smooth).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compress.adaround import adaround
from tilewright.compress.affine import FLOAT8, quantize_weights
from tilewright.compress.bias_correction import corrected
from tilewright.compress.calibrate import Calibration, Progress
from tilewright.compress.gptq import gptq
from tilewright.compress.layers import Layer, Plan
from tilewright.compress.moments import UNKNOWN, Moments, why_none
from tilewright.compress.options import FLOAT8_REMEDIES, REMEDIES, QuantizeOptions
from tilewright.compress.recipe import Weights
from tilewright.core.plural import plural
from tilewright.core.record import DecisionLog
from tilewright.graph.insert_qdq import Affine

Array = npt.NDArray[Any]

STAGE = "remedies"
ROUNDINGS: Mapping[str, Callable[[Layer, Affine, Array], Array]] = {
    "gptq": gptq,
    "adaround": adaround,
}


def needs_moments(options: QuantizeOptions) -> bool:
    """Whether second moments are needed."""
    return any(applies(remedy, options) for remedy in ROUNDINGS)


def applies(remedy: str, options: QuantizeOptions) -> bool:
    """Whether a remedy was asked for, or is chosen by rule."""
    if options.remedies is not None:
        return remedy in options.remedies
    if options.format == "float8":
        return remedy in FLOAT8_REMEDIES
    match remedy:
        case "equalize":
            return not options.per_channel
        case "adaround":
            return False
    return options.activations != "dynamic"


def reasons(options: QuantizeOptions) -> dict[str, str]:
    """Why each remedy is not applied at all, by remedy."""
    if options.remedies is not None:
        return {}
    if options.format == "float8":
        reason = "float8 has no equal steps: rounding is relative to each number"
        return dict.fromkeys((name for name in REMEDIES if name not in FLOAT8_REMEDIES), reason)
    found = {}
    if options.per_channel:
        found["equalize"] = "each channel has its scale already"
    found["adaround"] = "only on request: gptq is as close and takes less time"
    if options.activations == "dynamic":
        found |= dict.fromkeys(("gptq", "bias-correction", "smooth"), "nothing is calibrated")
    return found


def quantized_weights(
    plan: Plan,
    seen: Calibration | None,
    options: QuantizeOptions,
    log: DecisionLog,
    progress: Progress | None = None,
) -> dict[str, Weights]:
    """Integers and biases of all layers.

    Args:
        plan: its layers have float weights.
        seen: None where no data were needed.
        options: say which remedies.
        log: takes the decisions.
        progress: called with (stage, layers so far, layers in all).
    """
    for remedy, reason in reasons(options).items():
        log.add(STAGE, remedy, "not applied", ((remedy, reason),))
    found = {}
    counts = dict.fromkeys((*ROUNDINGS, "bias-correction"), 0)
    for number, layer in enumerate(plan.layers):
        if progress is not None:
            progress("weights", number, len(plan.layers))
        moments = None if seen is None else seen.moments[layer.node]
        found[layer.node] = _weights(layer, moments, options, log, counts)
    for remedy, count in counts.items():
        if count:
            log.add(STAGE, remedy, f"applied to {plural(count, 'layer')}")
    return found


def _weights(
    layer: Layer,
    moments: Moments | None,
    options: QuantizeOptions,
    log: DecisionLog,
    counts: dict[str, int],
) -> Weights:
    axis = layer.axis if options.per_channel else None
    kind = FLOAT8 if options.format == "float8" else np.int8
    integers, params = quantize_weights(layer.weights, axis, dtype=kind)
    correct = applies("bias-correction", options)
    for name, rounding in ROUNDINGS.items():
        if not applies(name, options):
            continue
        reason = why_none(moments)
        if reason is None and moments is not None:
            gram = moments.gram(centred=correct and layer.bias is not None)
            integers = rounding(layer, params, gram)
            counts[name] += 1
        else:
            log.add(STAGE, layer.node, "rounded to the nearest", ((name, reason or ""),))
    bias = layer.bias
    if correct:
        if moments is None or not moments.known:
            reason = UNKNOWN if moments else "no data"
            log.add(STAGE, layer.node, "bias kept", (("bias-correction", reason),))
        elif (new := corrected(layer, integers, params, moments.mean)) is not None:
            bias = new
            counts["bias-correction"] += 1
    return Weights(integers=integers, params=params, bias=bias)
