"""Round weights one input after the other; later ones make up for the errors of earlier ones.

Input -> Output: weights, what integers stand for, the second moments of the inputs -> integers.
    for each element i of a patch:
    q_i = round(w_i);  w_j -= (w_i - q_i) * U_ij / U_ii  for j that are not rounded yet
    U: upper Cholesky factor of the inverse of G, whose diagonal is raised by 1 % of its mean
Guarantees: deterministic; an output whose error on G would grow keeps the nearest rounding.
Source: Frantar et al., GPTQ (2022).
Not here: scales (affine, blocks), G (moments).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compress.affine import quantize, spread
from tilewright.compress.layers import Layer
from tilewright.compress.moments import as_matrix, from_matrix
from tilewright.graph.insert_qdq import Affine

Array = npt.NDArray[Any]

DAMPING = 0.01
_BLOCK = 32  # elements whose errors reach the rest at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What integers stand for: ``(integer - zero) * scale``.

    Attributes:
        scale, zero: [groups, blocks, outputs].
        block: elements that share a scale.
        limits: the least and the greatest integer.
    """

    scale: Array
    zero: Array
    block: int
    limits: tuple[int, int]

    def round(self, weights: Array, element: Array) -> tuple[Array, Array]:
        """Integers of weights [groups, outputs], and what they stand for.

        Args:
            weights: of one element of each group.
            element: [groups], which one.
        """
        which = (np.arange(len(element)), element // self.block)
        scale, zero = self.scale[which], self.zero[which]
        whole = np.clip(np.rint(weights / scale) + zero, *self.limits)
        return whole, (whole - zero) * scale

    def floats(self, whole: Array) -> Array:
        """What integers [groups, elements, outputs] stand for."""
        repeated = (np.repeat(part, self.block, axis=1) for part in (self.scale, self.zero))
        scale, zero = repeated
        found: Array = (whole - zero) * scale
        return found


def gptq(layer: Layer, params: Affine, gram: Array) -> Array:
    """Integers of a layer's weights, int8 and symmetric.

    Args:
        layer: whose float weights are rounded.
        params: their scale.
        gram: [groups, elements, elements], mean products of two elements of a patch.
    """
    exact = as_matrix(layer, layer.weights).transpose(0, 2, 1)
    scale = np.broadcast_to(spread(params, layer.weights.shape)[0], layer.weights.shape)
    scale = as_matrix(layer, np.ascontiguousarray(scale))[..., 0][:, None, :].astype(np.float64)
    steps = Steps(scale=scale, zero=np.zeros_like(scale), block=exact.shape[1], limits=(-127, 127))
    nearest = as_matrix(layer, quantize(layer.weights, params)).transpose(0, 2, 1)
    found = closer(exact, steps, gram, factor_of(gram), nearest)
    return from_matrix(layer, np.ascontiguousarray(found.transpose(0, 2, 1))).astype(np.int8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """What errors of one element are made up for with.

    Attributes:
        upper: Cholesky factor of the inverse, [groups, elements, elements], in the order.
        order: [groups, elements], in which they are rounded.
    """

    upper: Array
    order: Array


def factor_of(gram: Array, *, ordered: bool = False) -> Factor:
    """The factor of second moments.

    Args:
        gram: [groups, elements, elements], mean products of two elements.
        ordered: elements with the greatest moments are rounded first.
    """
    groups, elements, _ = gram.shape
    diagonal = np.einsum("gii->gi", gram)
    order = np.broadcast_to(np.arange(elements), (groups, elements))
    if ordered:
        order = np.argsort(-diagonal, axis=1, kind="stable")
    rows = np.arange(groups)[:, None, None]
    sorted_gram = gram[rows, order[:, :, None], order[:, None, :]]
    return Factor(upper=_factor(sorted_gram), order=order)


def closer(exact: Array, steps: Steps, gram: Array, factor: Factor, nearest: Array) -> Array:
    """Integers whose products are nearer to the exact ones than those of the nearest integers.

    Args:
        exact: weights [groups, elements, outputs].
        steps: what integers stand for.
        gram: [groups, elements, elements], mean products of two elements.
        factor: of ``gram``.
        nearest: the nearest integers, in the shape of ``exact``.

    Returns:
        Integers as floats.
    """
    rows = np.arange(len(exact))[:, None]
    wanted = exact.astype(np.float64)
    made = np.empty_like(wanted)
    made[rows, factor.order] = _rounded(
        wanted[rows, factor.order], steps, factor.order, factor.upper
    )
    plain = nearest.astype(np.float64)
    better = _error(made, steps, wanted, gram) < _error(plain, steps, wanted, gram)
    return np.where(better[:, None], made, plain)


def _error(whole: Array, steps: Steps, exact: Array, gram: Array) -> Array:
    return squared_errors(steps.floats(whole) - exact, gram)


def squared_errors(off: Array, gram: Array) -> Array:
    """The mean squared error of each output, [groups, outputs].

    Args:
        off: errors of weights, [groups, elements, outputs].
        gram: [groups, elements, elements].
    """
    # In float32, as it takes half the time; far from 1 it would overflow.
    unit, power = (float(np.abs(part).max(initial=0)) or 1.0 for part in (off, gram))
    plain, moments = (off / unit).astype(np.float32), (gram / power).astype(np.float32)
    errors: Array = (np.matmul(moments, plain) * plain).sum(1).astype(np.float64)
    return errors * power * unit * unit


def _factor(gram: Array) -> Array:
    """The factor of the inverse, [groups, elements, elements], upper triangular.

    The matrix itself is factored, from its last element on, and the factor inverted: the inverse
    of a matrix of moments that differ by 1e8 is no longer positive definite in floats. Where even
    the matrix is not, as rounding of its sums made it so, it is damped until it is.
    """
    exact = gram.astype(np.float64)
    if not np.isfinite(exact).all():
        raise ValueError("moments are not finite")
    size = exact.shape[-1]
    diagonal = np.einsum("gii->gi", exact)
    # An input that is always 0 takes part in no sum; its own damping keeps the matrix regular.
    mean = np.abs(diagonal).mean(1, keepdims=True) + 1e-12
    raised = np.where(diagonal <= 0, mean, DAMPING * mean)
    while True:
        damped = exact + raised[:, :, None] * np.eye(size)
        try:
            lower = np.linalg.cholesky(damped[:, ::-1, ::-1])
            break
        except np.linalg.LinAlgError:
            raised = 10 * raised
    factor: Array = np.triu(np.linalg.inv(lower[:, ::-1, ::-1]))
    return factor


def _rounded(weights: Array, steps: Steps, order: Array, factor: Array) -> Array:
    """Rounds element by element, in their order; ``weights`` is used up."""
    found = np.empty_like(weights)
    size = weights.shape[1]
    for start in range(0, size, _BLOCK):
        end = min(start + _BLOCK, size)
        errors = np.empty((len(weights), end - start, weights.shape[2]))
        for i in range(start, end):
            found[:, i], floats = steps.round(weights[:, i], order[:, i])
            error = (weights[:, i] - floats) / factor[:, i, i][:, None]
            weights[:, i + 1 : end] -= factor[:, i, i + 1 : end, None] * error[:, None]
            errors[:, i - start] = error
        # What lies beyond the block takes all of its errors at once.
        weights[:, end:] -= np.matmul(factor[:, start:end, end:].transpose(0, 2, 1), errors)
    return found
