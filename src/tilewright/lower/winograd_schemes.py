"""The algebra of Winograd's convolutions: tiles of 2x2 and of 4x4 results for 3x3 taps.

Input -> Output: expressions of a tile -> the transformed ones; weights -> transformed weights.
    Y = A^T [(G g G^T) * (B^T d B)] A
Guarantees: weights are transformed in float64.
Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2015), section 4.
Not here: kernels, and whether it pays (lower.winograd).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.kernel.ir import Expr

TAPS = 3
Array = npt.NDArray[Any]
Transform = Callable[[Sequence[Expr]], list[Expr]]


@dataclass(frozen=True, slots=True)
class Scheme:
    """One size of tile.

    Attributes:
        tile: results along one side; a tile reads ``points = tile + 2`` values along it.
        error: bound of the difference from direct sums, relative to the largest value.
        weights: ``G``, points x 3.
        into, back: ``B^T`` and ``A^T`` along one side.
    """

    tile: int
    error: str
    weights: tuple[tuple[float, ...], ...]
    into: Transform
    back: Transform

    @property
    def points(self) -> int:
        return self.tile + TAPS - 1

    @property
    def name(self) -> str:
        return f"F({self.tile}x{self.tile}, 3x3)"

    def transformed(self, taps: Array) -> Array:
        """Weights (m, c, 3, 3) -> float32 matrices (points * points, c, m)."""
        g = np.array(self.weights)
        whole = g @ taps.astype(np.float64) @ g.T
        m, c = taps.shape[:2]
        matrices = whole.transpose(2, 3, 1, 0).reshape(self.points * self.points, c, m)
        return np.ascontiguousarray(matrices.astype(np.float32))


def both_ways(grid: Sequence[Sequence[Expr]], one: Transform) -> list[list[Expr]]:
    """A transform over columns, then over rows."""
    across = [one(row) for row in grid]
    down = [one([row[j] for row in across]) for j in range(len(across[0]))]
    return [[down[j][i] for j in range(len(down))] for i in range(len(down[0]))]


def _into_4(d: Sequence[Expr]) -> list[Expr]:
    even, odd = d[4] - d[2] * 4.0, d[3] - d[1] * 4.0
    near, far = d[4] - d[2], (d[3] - d[1]) * 2.0
    return [
        d[0] * 4.0 - d[2] * 5.0 + d[4],
        even + odd,
        even - odd,
        near + far,
        near - far,
        d[1] * 4.0 - d[3] * 5.0 + d[5],
    ]


def _back_4(m: Sequence[Expr]) -> list[Expr]:
    sum1, difference1 = m[1] + m[2], m[1] - m[2]
    sum2, difference2 = m[3] + m[4], m[3] - m[4]
    return [
        m[0] + sum1 + sum2,
        difference1 + difference2 * 2.0,
        sum1 + sum2 * 4.0,
        difference1 + difference2 * 8.0 + m[5],
    ]


def _into_2(d: Sequence[Expr]) -> list[Expr]:
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _back_2(m: Sequence[Expr]) -> list[Expr]:
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


F4 = Scheme(
    4,
    "2e-5",
    (
        (1 / 4, 0, 0),
        (-1 / 6, -1 / 6, -1 / 6),
        (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6),
        (1 / 24, -1 / 12, 1 / 6),
        (0, 0, 1),
    ),
    _into_4,
    _back_4,
)
F2 = Scheme(
    2,
    "1e-5",
    ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    _into_2,
    _back_2,
)
# Larger tiles save more multiplications, smaller ones have fewer weights.
SCHEMES = (F4, F2)
