"""Integers of few bits for weights, a scale for each block of rows in a column.

    w = (code - zero) * scale      8 bits: -127 .. 127, zero = 0;   4 bits: 0 .. 15 with a zero
Input -> Output: rows of weights -> ``Grid`` (what the integers stand for) -> integers.
Method: each block's range is the one, of a list of shares of the full range, that loses least:
squared errors of weights, or of their products with what they meet.
Guarantees: 0 is exact; a block of zeros has scale 1.
Not here: rounding that knows the other rows (gptq), the model (weight_only).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LEAST_BLOCK = 16
# Shares of the full range that are tried. 8 bits lose little by outliers; with 4 a zero that is a
# whole number may want more than the full range.
SHARES = {8: tuple(np.linspace(1.0, 0.88, 7)), 4: tuple(np.linspace(1.06, 0.7, 19))}
_TINY = float(np.finfo(np.float32).tiny)
_COLUMNS = 128  # at a time: what is tried stays in the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What integers stand for.

    Attributes:
        scale, zero: float32 ``[groups, columns]``; zeros are whole numbers.
        block: rows of a group.
        bits: 8 or 4.
    """

    scale: Array
    zero: Array
    block: int
    bits: int

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest integer."""
        return (-127, 127) if self.bits == 8 else (0, 15)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the integers."""
        return np.dtype(np.int8) if self.bits == 8 else np.dtype(ml_dtypes.uint4)

    def nearest(self, rows: Array) -> Array:
        """The nearest integers of rows ``[depth, columns]``, as floats."""
        groups = rows.reshape(-1, self.block, rows.shape[1])
        return _codes(groups, self.scale, self.zero, self.limits).reshape(rows.shape)

    def floats(self, codes: Array) -> Array:
        """What integers ``[depth, columns]`` stand for."""
        groups = codes.astype(np.float32).reshape(-1, self.block, codes.shape[1])
        found: Array = ((groups - self.zero[:, None]) * self.scale[:, None]).reshape(codes.shape)
        return found


def block_of(depth: int, most: int) -> int:
    """The largest block up to ``most`` that divides the rows; all of them where it is too small."""
    found = most
    while found >= LEAST_BLOCK and depth % found:
        found //= 2
    return found if found >= LEAST_BLOCK else depth


def best_grid(
    rows: Array,
    block: int,
    bits: int,
    *,
    shares: Sequence[float] | None = None,
    moments: Array | None = None,
) -> Grid:
    """The grid of each block that loses least.

    Args:
        rows: float32 ``[depth, columns]``; the depth is a multiple of the block.
        block: rows of a group.
        bits: 8 or 4.
        shares: of the full range, the first one wins ties; None: ``SHARES``.
        moments: ``[groups, block, block]``, mean products of what two rows of a block meet; None:
            errors are those of weights.
    """
    depth, columns = rows.shape
    tried = SHARES[bits] if shares is None else shares
    weigh = None if moments is None else (moments / _unit(moments, (1, 2))).astype(np.float32)
    grid = Grid(
        scale=np.empty((depth // block, columns), np.float32),
        zero=np.zeros((depth // block, columns), np.float32),
        block=block,
        bits=bits,
    )
    for start in range(0, columns, _COLUMNS):
        part = np.s_[:, start : start + _COLUMNS]
        groups = rows[part].reshape(depth // block, block, -1)
        unit = _unit(groups, (1,))
        groups = groups / unit  # squares of 1e30 are no float32
        least: Array = np.full(grid.scale[part].shape, np.inf, np.float32)
        for scale, zero in _candidates(groups, bits, tried):
            codes = _codes(groups, scale, zero, grid.limits)
            off = (codes - zero[:, None]) * scale[:, None] - groups
            lost = ((off if weigh is None else weigh @ off) * off).sum(1)
            better = lost < least
            least[better] = lost[better]
            grid.scale[part][better], grid.zero[part][better] = scale[better], zero[better]
        grid.scale[part] = _guarded(grid.scale[part] * unit[:, 0])
    return grid


def _unit(values: Array, axes: tuple[int, ...]) -> Array:
    """The power of two at or below the greatest magnitude."""
    most = np.abs(values).max(axes, keepdims=True)
    unit: Array = np.ldexp(np.ones_like(most), np.frexp(most)[1] - 1)
    return unit


def _candidates(groups: Array, bits: int, shares: Sequence[float]) -> Iterator[tuple[Array, Array]]:
    """Scales and zeros worth trying, ``[groups, columns]``."""
    if bits == 8:
        most = np.abs(groups).max(1)
        for share in shares:
            scale = _guarded(most * np.float32(share / 127))
            yield scale, np.zeros_like(scale)
        return
    low, high = np.minimum(groups.min(1), 0), np.maximum(groups.max(1), 0)
    for share in shares:
        scale = _guarded((high - low) * np.float32(share / 15))
        exact = -low * np.float32(share) / scale
        for zero in (np.floor(exact), np.ceil(exact)):  # the better one is not always the nearer
            yield scale, np.clip(zero, 0, 15)


def _codes(groups: Array, scale: Array, zero: Array, limits: tuple[int, int]) -> Array:
    whole = np.rint(groups / scale[:, None]) + zero[:, None]
    clipped: Array = np.clip(whole, *limits)
    return clipped


def _guarded(scale: Array) -> Array:
    """A block of zeros has scale 1."""
    return np.where(scale < _TINY, np.float32(1), scale).astype(np.float32)
