"""Integers of few bits for the weights of one product, by what these weights meet.

    G' = G + raised * mean(diagonal of G) * I
Input -> Output: weights, perhaps the second moments G of the product's inputs -> what the integers
stand for, and integers: ranges that lose least (blocks), rounding that makes up for its errors on
G' (gptq), moves of single integers (refine).  Without moments: to the nearest.
Guarantees: deterministic; memory is bounded for products with many columns.
Not here: which products, and how they are written (weight_only).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compress.blocks import Grid, best_grid
from tilewright.compress.gptq import Steps, closer, factor_of
from tilewright.compress.refine import refine

Array = npt.NDArray[Any]

# Of the mean diagonal of moments, so that integers do not fit the calibration data alone. Chosen on
# windows of text that are neither calibrated with nor scored (bench/quantization.py --only raised):
# within 0.1 % of the least mean error, which 0.5 has, where single products lose 14 %.
RAISED = 0.2
_COLUMNS = 4096  # at a time
_TINY = float(np.finfo(np.float32).tiny)


def rounded(
    rows: Array, block: int, bits: int, gram: Array | None = None, *, raised: float = RAISED
) -> tuple[Grid, Array]:
    """What the integers stand for, and integers as floats, ``[depth, columns]``.

    Args:
        rows: float32 weights, ``[depth, columns]``.
        block: rows that share a scale; the depth is a multiple of it.
        bits: 8 or 4.
        gram: ``[1, depth, depth]``, mean products of two inputs; None: it is not known.
        raised: what the diagonal is raised by, of its mean.
    """
    if gram is None:
        grid = best_grid(rows, block, bits)
        return grid, grid.nearest(rows)
    depth = gram.shape[-1]
    more = raised * float(np.trace(gram[0])) / depth + _TINY
    wider = gram + more * np.eye(depth)
    grid = best_grid(rows, block, bits, moments=_of_blocks(wider, block))
    return grid, _with_moments(rows, grid, wider)


def _of_blocks(gram: Array, block: int) -> Array:
    """The moments of the rows of each block."""
    groups = gram.shape[-1] // block
    found: Array = np.einsum("gigj->gij", gram[0].reshape(groups, block, groups, block))
    return found


def _with_moments(rows: Array, grid: Grid, gram: Array) -> Array:
    """Integers that make up for each other's errors; some columns at a time bound memory."""
    found = grid.nearest(rows).astype(np.float64)
    factor = factor_of(gram, ordered=True)
    for start in range(0, rows.shape[1], _COLUMNS):
        part = np.s_[:, start : start + _COLUMNS]
        scale, zero = (one[part][None].astype(np.float64) for one in (grid.scale, grid.zero))
        steps = Steps(scale=scale, zero=zero, block=grid.block, limits=grid.limits)
        exact = rows[part][None].astype(np.float64)
        codes = closer(exact, steps, gram, factor, found[part][None])
        found[part] = refine(codes, exact, steps, gram)[0]
    return found
