"""Numbers of a quantised model: ranges and weights -> a ``Recipe``.

Input -> Output: a plan, parameters of activations, integers of weights, biases -> what
``graph.insert_qdq`` writes.
Guarantees: a bias of integers has the scale of its sums, input scale * weight scale, and fits
int32: where it would not, the weight scale of that channel is raised and recorded. One of float8
stays in float.
Not here: where ranges come from (observers), remedies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compress.affine import FLOAT8, dequantize, quantize
from tilewright.compress.layers import Layer, Plan
from tilewright.core.record import DecisionLog
from tilewright.graph.insert_qdq import Affine, QuantizedLayer, Recipe

Array = npt.NDArray[Any]

_BIAS_LIMIT = 2**30  # half of int32: sums are added to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Of one layer.

    Attributes:
        integers: int8 or float8, shaped as the layer's weights.
        params: their scale.
        bias: float32 [channels] after remedies, or None.
    """

    integers: Array
    params: Affine
    bias: Array | None


def make_recipe(
    plan: Plan,
    points: Mapping[str, Affine],
    weights: Mapping[str, Weights],
    *,
    float_nodes: Collection[str] = (),
    dynamic: bool = False,
    log: DecisionLog | None = None,
) -> Recipe:
    """What to write.

    Args:
        plan: where.
        points: parameters of activations by value.
        weights: by layer.
        float_nodes: layers and carriers to leave in float.
        dynamic: parameters of activations are found at run time.
        log: takes a decision for each scale that was raised.
    """
    readers = {
        name: kept
        for name, found in plan.readers.items()
        if (kept := tuple(node for node in found if node not in float_nodes))
    }
    layers = [
        _layer(layer, weights[layer.node], None if dynamic else points[layer.source], log)
        for layer in plan.layers
        if layer.node not in float_nodes
    ]
    return Recipe(
        points={} if dynamic else {name: points[name] for name in readers},
        readers=readers,
        layers=tuple(layers),
        dynamic=dynamic,
    )


def _layer(
    layer: Layer, weights: Weights, point: Affine | None, log: DecisionLog | None
) -> QuantizedLayer:
    if weights.bias is None or point is None:
        return QuantizedLayer(node=layer.node, weights=weights.integers, params=weights.params)
    if weights.integers.dtype == FLOAT8:
        bias = None if weights.bias is layer.bias else weights.bias
        return QuantizedLayer(
            node=layer.node, weights=weights.integers, params=weights.params, bias=bias
        )
    params, integers = weights.params, weights.integers
    raised = _raised(weights, float(point.scale))
    if raised is not None:
        params = Affine(scale=raised, zero=params.zero, axis=params.axis)
        integers = quantize(dequantize(integers, weights.params), params)
        if log is not None:
            log.add("quantize", layer.node, "weight scale raised so that the bias fits int32")
    scale = np.asarray(np.float32(point.scale) * _per_channel(layer, params.scale), np.float32)
    whole = np.rint(weights.bias.astype(np.float64) / scale.astype(np.float64))
    return QuantizedLayer(
        node=layer.node,
        weights=integers,
        params=params,
        bias=whole.astype(np.int32),
        bias_scale=scale,
    )


def _raised(weights: Weights, step: float) -> Array | None:
    """Scales with which each bias fits, None where it does already."""
    scale = weights.params.scale.astype(np.float64)
    needed = np.abs(weights.bias.astype(np.float64)) / step / _BIAS_LIMIT  # type: ignore[union-attr]
    if weights.params.axis is None:
        needed = needed.max(initial=0)
    elif needed.size != scale.size:  # ConvTranspose: channels of all groups share a scale
        needed = needed.reshape(-1, scale.size).max(0)
    return None if (needed <= scale).all() else np.maximum(scale, needed).astype(np.float32)


def _per_channel(layer: Layer, scale: Array) -> Array:
    """The weight scale of each output channel; a scalar stays one."""
    if not scale.ndim or scale.size == layer.num_channels:
        return scale
    return np.tile(scale, layer.num_channels // scale.size)
