"""Round weights so that the layer's results, not the weights, are close.

Input -> Output: weights, their scale and the second moments of the layer's inputs -> integers,
each the floor of weight / scale or one more.
    minimises  tr(E G E') + 0.01 * sum(1 - |2h - 1|**beta),  E = (floor + h) * scale - weights, with
    scale and G relative to their greatest elements,
    h = clip(1.2 * sigmoid(v) - 0.1, 0, 1), by Adam; beta goes from 20 to 2 after a warm start
Guarantees: deterministic; the result is never worse on G than rounding to the nearest.
Source: Nagel et al., Up or Down? Adaptive Rounding for Post-Training Quantization (2020).
Not here: scales (affine), G (moments).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compress.affine import quantize, spread
from tilewright.compress.gptq import squared_errors
from tilewright.compress.layers import Layer
from tilewright.compress.moments import as_matrix, from_matrix
from tilewright.graph.insert_qdq import Affine

Array = npt.NDArray[Any]

STEPS = 400
_RATE, _WEIGHT, _WARM = 0.05, 0.01, 0.2
_LIMIT = 127


def adaround(layer: Layer, params: Affine, gram: Array, *, steps: int = STEPS) -> Array:
    """Integers of a layer's weights.

    Args:
        layer: whose float weights are rounded.
        params: their scale.
        gram: [groups, elements, elements], mean products of two elements of a patch.
        steps: of the search.
    """
    scale = np.broadcast_to(spread(params, layer.weights.shape)[0], layer.weights.shape)
    steps_of = as_matrix(layer, np.ascontiguousarray(scale))
    exact = as_matrix(layer, layer.weights) / steps_of
    nearest = as_matrix(layer, quantize(layer.weights, params)).astype(np.float32)
    moments = gram.astype(np.float32)
    best = _searched(exact, _relative(steps_of), _relative(moments), steps)
    real = as_matrix(layer, layer.weights)

    def lost(whole: Array) -> Array:
        return squared_errors((whole * steps_of - real).transpose(0, 2, 1), moments)

    better = lost(best) < lost(nearest)
    chosen = np.where(better[..., None], best, nearest)
    return from_matrix(layer, np.ascontiguousarray(chosen)).astype(np.int8)


def _relative(values: Array) -> Array:
    """To the greatest, so that the penalty weighs alike whatever the units are."""
    found: Array = values / (np.abs(values).max(initial=0) or 1)
    return found


def _searched(exact: Array, scale: Array, gram: Array, steps: int) -> Array:
    """The rounding that gradient descent finds."""
    floor = np.floor(exact)
    rest = np.clip((exact - floor + 0.1) / 1.2, 1e-4, 1 - 1e-4)
    v = np.log(rest / (1 - rest)).astype(np.float32)
    mean, square = np.zeros_like(v), np.zeros_like(v)
    warm = int(_WARM * steps)
    for step in range(1, steps + 1):
        sigma = 1 / (1 + np.exp(-v))
        h = np.clip(1.2 * sigma - 0.1, 0, 1)
        gradient = 2 * np.matmul((floor + h - exact) * scale, gram) * scale
        if step > warm:
            done = (step - warm) / max(steps - warm, 1)
            beta = 2 + 18 * (1 - done)
            side = 2 * h - 1
            gradient -= _WEIGHT * 2 * beta * np.abs(side) ** (beta - 1) * np.sign(side)
        gradient *= np.where((h > 0) & (h < 1), 1.2 * sigma * (1 - sigma), 0)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        v -= _RATE * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-12)
    h = 1.2 / (1 + np.exp(-v)) - 0.1
    rounded: Array = np.clip(floor + (h >= 0.5), -_LIMIT, _LIMIT)
    return rounded
