"""Names, blocks and faults of the interpreter: which axes are array dimensions, and where.

Input -> Output: axes with extents -> scopes, blocks of bounded size; arrays -> aligned arrays.
Guarantees: an axis keeps its dimension in all scopes within; a value belongs to the outermost scope
that binds all of its axes, so work that does not depend on a reduction is done once.
Not here: evaluation (kernel.interp).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.errors import InternalError
from tilewright.kernel.ir import Axis, Expr

Array = npt.NDArray[Any]
# A value and, where some lanes are not usable, the code of the fault in each lane (0: usable).
Value = tuple[Array, Array | None]
BLOCK_POINTS = 1 << 20


@dataclass(slots=True)
class Scope:
    """Axes that are array dimensions here: a stage's parallel axes, or those of one reduction."""

    ranges: dict[str, tuple[int, int]]
    parent: Scope | None = None
    fixed: dict[str, int] = field(default_factory=dict)
    cache: dict[int, Value] = field(default_factory=dict)
    positions: dict[str, int] = field(init=False)
    depth: int = field(init=False)

    def __post_init__(self) -> None:
        start = self.parent.depth if self.parent else 0
        self.positions = {name: start + k for k, name in enumerate(self.ranges)}
        self.depth = start + len(self.ranges)

    def home(self, node: Expr) -> Scope:
        """The outermost scope in which the node has its value."""
        scope = self
        while scope.parent is not None and not (node.free_axes & scope.ranges.keys()):
            scope = scope.parent
        return scope

    def find(self, axis: str) -> Scope | None:
        """The scope that binds an axis; None where it is fixed."""
        scope: Scope | None = self
        while scope is not None and axis not in scope.ranges:
            scope = scope.parent
        return scope

    def fixed_index(self, axis: str) -> int:
        """The current index on an ordered axis or ``steps``."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        if axis not in scope.fixed:
            raise InternalError(f"axis {axis} is not bound")
        return scope.fixed[axis]


@dataclass(slots=True)
class Fault:
    """Why some lanes of a value are not usable, with the index in each lane."""

    text: str
    indices: tuple[Array, ...]
    error: type[Exception]

    def raise_at(self, lane: int) -> None:
        """Raises the error of one lane."""
        index = [int(part.reshape(-1)[lane]) for part in self.indices]
        raise self.error(f"{self.text}: index {index}")


def align(array: Array, depth: int) -> Array:
    """The array with dims of size 1 behind it, up to ``depth``."""
    return array.reshape(array.shape + (1,) * (depth - array.ndim))


def aligned(*arrays: Array) -> list[Array]:
    """The arrays with as many dims as the deepest of them."""
    depth = max(array.ndim for array in arrays)
    return [align(array, depth) for array in arrays]


def worst(*faults: Array | None) -> Array | None:
    """Lane by lane, some fault if any operand has one."""
    result: Array | None = None
    for fault in faults:
        if fault is not None:
            result = fault if result is None else np.maximum(*aligned(result, fault))
    return result


def blocks(
    axes: list[Axis], extents: list[int], outer: int
) -> Iterator[dict[str, tuple[int, int]]]:
    """Cuts an iteration space so that a block, times ``outer``, has a bounded number of points."""
    room = max(1, BLOCK_POINTS // max(1, outer))
    sizes: list[int] = []
    for extent in reversed(extents):
        sizes.insert(0, max(1, min(extent, room)))
        room = max(1, room // max(1, sizes[0]))
    starts = [range(0, extent, size) for extent, size in zip(extents, sizes, strict=True)]
    for point in product(*starts):
        yield {
            axis.name: (low, min(low + size, extent))
            for axis, low, size, extent in zip(axes, point, sizes, extents, strict=True)
        }
