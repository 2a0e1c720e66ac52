"""Round weights one input after the other; later ones make up for the errors of earlier ones.

Input -> Output: weights, their scale and the second moments of the layer's inputs -> integers.
    for each element i of a patch:
    q_i = round(w_i / s);  w_j -= (w_i - q_i * s) * U_ij / U_ii  for j > i
    U: upper Cholesky factor of the inverse of G, whose diagonal is raised by 1 % of its mean
Guarantees: deterministic; an output whose error on G would grow keeps the nearest rounding.
Source: Frantar et al., GPTQ (2022).
Not here: scales (affine), G (moments).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compress.affine import quantize, spread
from tilewright.compress.layers import Layer
from tilewright.compress.moments import as_matrix, from_matrix
from tilewright.graph.insert_qdq import Affine

Array = npt.NDArray[Any]

_DAMPING = 0.01
_LIMIT = 127
_BLOCK = 32


def gptq(layer: Layer, params: Affine, gram: Array) -> Array:
    """Integers of a layer's weights.

    Args:
        layer: whose float weights are rounded.
        params: their scale.
        gram: [groups, elements, elements], mean products of two elements of a patch.
    """
    scale = np.broadcast_to(spread(params, layer.weights.shape)[0], layer.weights.shape)
    steps = as_matrix(layer, np.ascontiguousarray(scale)).astype(np.float64)
    exact = as_matrix(layer, layer.weights).astype(np.float64)
    nearest = as_matrix(layer, quantize(layer.weights, params)).astype(np.float64)
    found = _rounded(exact.copy(), steps, _factor(gram))
    better = squared_errors(found, exact, steps, gram) < squared_errors(nearest, exact, steps, gram)
    chosen = np.where(better[..., None], found, nearest)
    return from_matrix(layer, np.ascontiguousarray(chosen)).astype(np.int8)


def squared_errors(whole: Array, exact: Array, scale: Array, gram: Array) -> Array:
    """The mean squared error of each output, [groups, outputs]."""
    off = (whole * scale - exact).astype(np.float32)
    errors: Array = (np.matmul(off, gram.astype(np.float32)) * off).sum(-1)
    return errors


def _factor(gram: Array) -> Array:
    """[groups, elements, elements], upper triangular."""
    size = gram.shape[-1]
    diagonal = np.einsum("gii->gi", gram)
    raised = _DAMPING * diagonal.mean(1, keepdims=True) + 1e-12
    # An input that is always 0 takes part in no sum; 1 keeps the matrix regular.
    raised = raised + (diagonal <= 0)
    inverse = np.linalg.inv(gram + raised[:, :, None] * np.eye(size))
    inverse = (inverse + inverse.transpose(0, 2, 1)) / 2
    factor: Array = np.linalg.cholesky(inverse).transpose(0, 2, 1)
    return factor


def _rounded(weights: Array, scale: Array, factor: Array) -> Array:
    """Rounds element by element; ``weights`` is used up."""
    found = np.empty_like(weights)
    size = weights.shape[-1]
    for start in range(0, size, _BLOCK):
        end = min(start + _BLOCK, size)
        errors = np.empty((*weights.shape[:2], end - start))
        for i in range(start, end):
            found[:, :, i] = np.clip(np.rint(weights[:, :, i] / scale[:, :, i]), -_LIMIT, _LIMIT)
            error = weights[:, :, i] - found[:, :, i] * scale[:, :, i]
            error /= factor[:, i, i][:, None]
            weights[:, :, i + 1 : end] -= error[:, :, None] * factor[:, None, i, i + 1 : end]
            errors[:, :, i - start] = error
        # What lies beyond the block takes all of its errors at once.
        weights[:, :, end:] -= np.matmul(errors, factor[:, start:end, end:])
    return found
