"""What tactics share: the stage at hand, and what they give back.

Not here: the tactics (point, row, contraction) and their order (tactics).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.codegen.cuda.layout import Layout
from tilewright.codegen.cuda.writer import Writer
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Expr, Kernel
from tilewright.kernel.nest import Nest

ONE = Dim.of(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a function is launched.

    Attributes:
        tactic: its name and parameters, for reports.
        grid: blocks along x, y, z.
        threads: of a block.
        shared_bytes: dynamic shared memory of a block.
    """

    tactic: str
    grid: tuple[Dim, Dim, Dim]
    threads: int
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a tactic does not take a stage."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A stage of a kernel before a tactic is chosen."""

    kernel: Kernel
    nest: Nest
    layout: Layout

    def varies_with(self, expr: Expr) -> frozenset[str]:
        """The merged axes that change a value; an axis of one point, merged into any, does not."""
        one = {axis.name for axis in self.nest.stage.axes if axis.extent == ONE}
        return frozenset(self.nest.merged.get(a, a) for a in expr.free_axes if a not in one)

    def writer(self) -> Writer:
        """A fresh writer for it."""
        return Writer(self.kernel, self.nest, self.layout)
