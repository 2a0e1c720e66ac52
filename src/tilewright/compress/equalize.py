"""Make the channels between two convolutions alike, so that one scale suits them all.

    w2 . relu(w1 . x + b1)  ->  (w2 * s) . relu((w1 . x + b1) / s),   s = sqrt(r1 / r2)
    r1, r2: greatest magnitudes of a channel's weights before and after
Input -> Output: float layers -> float layers of the same function, whose channels have like ranges.
Requires: nothing but Relu (or nothing) in between, and nobody else reads the values.
Guarantees: factors are powers of two, so that every weight keeps all of its bits; pairs are gone
through until chains settle, a depthwise convolution between two others at the cube root of three
ranges.
Source: Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction (2019).
Not here: matrix products (smooth).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compress.layers import Layer, Plan
from tilewright.core.plural import plural
from tilewright.core.record import DecisionLog
from tilewright.graph.quantizable import Quantizable
from tilewright.graph.view import GraphView, NodeView

Array = npt.NDArray[Any]
Pair = tuple[Layer, Layer]

_ROUNDS = 30
_STAGE = "remedies"
_NOTHING = "no convolution is the only reader of another"


def equalize(model: Quantizable, plan: Plan, log: DecisionLog) -> Quantizable:
    """The same function with channels that are alike.

    Args:
        model, plan: in float.
        log: takes a decision for each pair, and for each convolution without a partner.
    """
    pairs = _pairs(model.view(), plan, log)
    if not pairs:
        log.add(_STAGE, "equalize", "not applied", (("equalize", _NOTHING),))
        return model
    weights = {layer.node: layer.weights.astype(np.float64) for pair in pairs for layer in pair}
    exponents = [np.zeros(first.num_channels) for first, _ in pairs]
    for _ in range(_ROUNDS):
        for exponent, (first, second) in zip(exponents, pairs, strict=True):
            before = _ranges(weights[first.node], 0)
            after = _ranges(weights[second.node], _input_axis(second))
            alive = (before > 0) & (after > 0)
            step = np.zeros(len(before))
            step[alive] = np.log2(before[alive] / after[alive]) / 2
            exponent += step
            _scale(weights, first, 0, -step)
            _scale(weights, second, _input_axis(second), step)
    log.add(_STAGE, "equalize", f"applied to {plural(len(pairs), 'pair')}")
    return model.with_weights(_applied(pairs, [np.rint(part) for part in exponents]))


def _applied(pairs: list[Pair], exponents: list[Array]) -> dict[tuple[str, int], Array]:
    """Weights and biases with whole exponents, which change no bit of a mantissa."""
    layers = {layer.node: layer for pair in pairs for layer in pair}
    weights = {name: layer.weights.astype(np.float64) for name, layer in layers.items()}
    changed: dict[tuple[str, int], Array] = {}
    for exponent, (first, second) in zip(exponents, pairs, strict=True):
        _scale(weights, first, 0, -exponent)
        _scale(weights, second, _input_axis(second), exponent)
        if first.bias is not None:
            changed[first.node, 2] = np.ldexp(first.bias, -exponent.astype(int))
    changed |= {(name, 1): array.astype(np.float32) for name, array in weights.items()}
    return changed


def _pairs(graph: GraphView, plan: Plan, log: DecisionLog) -> list[Pair]:
    layers = {layer.node: layer for layer in plan.layers}
    found: list[Pair] = []
    for layer in plan.layers:
        if layer.op_type != "Conv":
            continue
        partner = _partner(graph, layers, layer)
        if isinstance(partner, str):
            log.add(_STAGE, layer.node, "not equalised", (("equalize", partner),))
        else:
            found.append((layer, partner))
    return found


def _partner(graph: GraphView, layers: Mapping[str, Layer], layer: Layer) -> Layer | str:
    """Who alone reads a layer's result, or why there is none that can be scaled."""
    value = layer.result
    outputs = {output.name for output in graph.outputs}
    while True:
        readers = [node for node in graph.nodes if value in node.inputs]
        if value in outputs or len(readers) != 1:
            return "its result has several readers or is an output"
        (reader,) = readers
        found = layers.get(reader.name)
        if found is not None:
            if found.op_type != "Conv" or not (found.groups == 1 or _is_depthwise(found)):
                return f"{reader.name} is no convolution of all channels, nor of each"
            return found
        if not _is_homogeneous(reader):
            return f"{reader.name} ({reader.op_type}) does not scale with its input"
        value = reader.outputs[0] or ""


def _is_homogeneous(node: NodeView) -> bool:
    """Whether f(s * x) = s * f(x) for s > 0, channel by channel."""
    return node.op_type in ("Relu", "LeakyRelu", "Identity") and not node.domain


def _is_depthwise(layer: Layer) -> bool:
    return layer.weights.shape[1] == 1 and layer.groups == layer.num_channels


def _input_axis(layer: Layer) -> int:
    """Of the weights, that runs over the channels that are read."""
    return 0 if _is_depthwise(layer) else 1


def _ranges(weights: Array, axis: int) -> Array:
    """The greatest magnitude of each channel."""
    found: Array = np.abs(weights).max(axis=tuple(d for d in range(weights.ndim) if d != axis))
    return found


def _scale(weights: dict[str, Array], layer: Layer, axis: int, exponent: Array) -> None:
    sizes = [-1 if dim == axis else 1 for dim in range(layer.weights.ndim)]
    weights[layer.node] = weights[layer.node] * np.exp2(exponent).reshape(sizes)
