"""Move integers one at a time to where the products of their layer are nearest to the exact ones.

    for each element j of a patch:  q_j = round(w'_j - (G off)_j / G_jj),  off = w' - w
    w': what the integers stand for;  G: second moments of the inputs, their diagonal raised by 1 %
Input -> Output: integers of some rounding -> integers whose error on the raised G is no greater.
Guarantees: deterministic; memory is a few times that of the weights.
Not here: where the integers come from (gptq, blocks).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compress.gptq import DAMPING, Steps

Array = npt.NDArray[Any]

SWEEPS = 2  # over all elements: a third one changes little
_BLOCK = 32  # elements whose moves reach the rest at once


def refine(codes: Array, exact: Array, steps: Steps, gram: Array) -> Array:
    """Integers as floats, [groups, elements, outputs].

    Args:
        codes: integers to begin with.
        exact: weights, in the same shape.
        steps: what integers stand for.
        gram: [groups, elements, elements], mean products of two elements.
    """
    elements = exact.shape[1]
    diagonal = np.einsum("gii->gi", gram)
    raised = DAMPING * np.abs(diagonal).mean(1, keepdims=True) + 1e-12
    # Rounding may have left a square below 0: it is 0.
    raised = raised + np.maximum(-diagonal, 0)
    moments = gram + raised[:, :, None] * np.eye(elements)
    order = np.argsort(-diagonal, axis=1, kind="stable")
    found = codes.copy()
    now = steps.floats(codes)
    slope = np.matmul(moments, now - exact)
    rows = np.arange(len(exact))[:, None]
    for _ in range(SWEEPS):
        for start in range(0, elements, _BLOCK):
            block = order[:, start : start + _BLOCK]
            own = moments[rows[..., None], block[:, :, None], block[:, None, :]]
            whole, floats = _moved(now[rows, block], slope[rows, block], own, steps, block)
            change = floats - now[rows, block]
            found[rows, block], now[rows, block] = whole, floats
            slope += np.matmul(moments[rows, block].transpose(0, 2, 1), change)
    return found


def _moved(now: Array, slope: Array, own: Array, steps: Steps, block: Array) -> tuple[Array, Array]:
    """New integers of a block of elements and what they stand for, [groups, block, outputs]."""
    whole, floats = np.empty_like(now), np.empty_like(now)
    for i in range(block.shape[1]):
        best = now[:, i] - slope[:, i] / own[:, i, i][:, None]
        whole[:, i], floats[:, i] = steps.round(best, block[:, i])
        change = floats[:, i] - now[:, i]
        slope += own[:, :, i, None] * change[:, None]
    return whole, floats
