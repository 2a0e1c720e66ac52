"""Long sums in blocks, so that their error hardly grows with their length.

Input -> Output: a reduction -> which of its axes to cut, and totals that take finished blocks.
Not here: the loops (reductions, along).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.codegen.cpu.convert import emit_constant, register_type
from tilewright.codegen.cpu.emit import Value
from tilewright.codegen.cpu.scalar import emit_op
from tilewright.kernel.ir import Axis, Reduce

if TYPE_CHECKING:
    from tilewright.codegen.cpu.evaluate import Evaluator

BLOCK = 512  # elements that one accumulator of a plain sum takes


class Totals:
    """Sums of blocks, kept in memory: the loop inside needs the registers for its cells."""

    def __init__(self, ev: Evaluator, expr: Reduce, lanes: int, cells: Sequence[Value]) -> None:
        self.b, self.dtype, self.cells = ev.b, expr.dtype, cells
        self.kind = register_type(expr.dtype, lanes)
        self.zero = emit_constant(0, expr.dtype, lanes)
        self.totals = [self.b.alloca(self.kind) for _ in cells]
        for total in self.totals:
            self.b.store(self.zero, total, volatile=True)

    def take(self) -> None:
        """Adds the cells to the totals and empties them."""
        for total, cell in zip(self.totals, self.cells, strict=True):
            parts = [self.b.load(self.kind, total, volatile=True), self.b.load(self.kind, cell)]
            self.b.store(emit_op(self.b, "add", parts, self.dtype), total, volatile=True)
            self.b.store(self.zero, cell)

    def give(self) -> None:
        """Adds the totals to the cells, which hold what no block has taken."""
        for total, cell in zip(self.totals, self.cells, strict=True):
            parts = [self.b.load(self.kind, total, volatile=True), self.b.load(self.kind, cell)]
            self.b.store(emit_op(self.b, "add", parts, self.dtype), cell)


def cut_of(expr: Reduce, axes: tuple[Axis, ...], block: int = BLOCK) -> tuple[int, int] | None:
    """Which axis of a long float sum to cut into blocks, and how much of it makes a block."""
    if expr.combiner != "sum" or not expr.dtype.is_float:
        return None
    known = all(axis.extent.is_const for axis in axes)
    if known and math.prod(axis.extent.const for axis in axes) <= 2 * block:
        return None
    inside = 1
    for place in range(len(axes) - 1, -1, -1):
        extent = axes[place].extent
        if not extent.is_const or inside * extent.const > block:
            return place, max(1, block // inside)
        inside *= max(1, extent.const)
    return None
