"""What tactics share: the stage at hand, and what they give back.

Not here: the tactics (point, row, contraction) and their order (tactics).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.codegen.cuda.deep_tile import DeepTile
from tilewright.codegen.cuda.layout import Layout
from tilewright.codegen.cuda.tma_tile import TmaTile
from tilewright.codegen.cuda.writer import Writer
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Expr, Kernel
from tilewright.kernel.nest import Nest
from tilewright.runtime.program import Image, Matrix

ONE = Dim.of(1)
_REGISTERS = 65536  # of a multiprocessor
_WORKING_REGISTERS, _WORKING_ON_BYTES = 46, 32  # of a thread, beside its sums


def with_registers(resident: int, threads: int, sums: int, *, of_bytes: bool = False) -> int:
    """How many of the blocks that are to be resident have registers for their sums."""
    working = _WORKING_ON_BYTES if of_bytes else _WORKING_REGISTERS
    for count in range(resident, 1, -1):
        if sums // threads + working <= _REGISTERS // (count * threads):
            return count
    return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a function is launched.

    Attributes:
        tactic: its name and parameters, for reports.
        grid: blocks along x, y, z.
        threads: of a block.
        shared_bytes: dynamic shared memory of a block.
        cluster: neighbouring blocks that read each other's shared memory.
        resident: blocks that a multiprocessor is to have registers for at once.
        releases: the next kernel may be launched when this one's last block is. Short blocks
            that need most of the GPU would wait for room behind blocks that only wait.
        begins: its code waits for the kernel before it (``tw_begin``) by itself.
        beside: its code counts its blocks by ``block``, so that stages that do not need each other
            can share a launch.
        plain: what other kernels write is read by plain loads, which stay after ``tw_begin``; a
            compiler may move loads of what nobody writes (``__restrict__``) before it.
        preludes, support: C++ that its code needs.
        matrices: what the copy engine fetches from, parameters ``map0``, ``map1`` of its code.
    """

    tactic: str
    grid: tuple[Dim, Dim, Dim]
    threads: int
    shared_bytes: int = 0
    cluster: int = 1
    resident: int = 1
    releases: bool = False
    begins: bool = False
    beside: bool = False
    plain: bool = False
    preludes: tuple[str, ...] = ()
    support: str = ""
    matrices: tuple[Matrix | Image, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a tactic does not take a stage."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A stage of a kernel before a tactic is chosen.

    Attributes:
        constants: buffers that no kernel writes.
        clusters: all GPUs that the code is for have clusters of blocks.
        tile: blocks of a product, where they are not to be chosen by formula.
    """

    kernel: Kernel
    nest: Nest
    layout: Layout
    constants: frozenset[str] = frozenset()
    clusters: bool = False
    tile: DeepTile | TmaTile | None = None

    def varies_with(self, expr: Expr) -> frozenset[str]:
        """The merged axes that change a value; an axis of one point, merged into any, does not."""
        one = {axis.name for axis in self.nest.stage.axes if axis.extent == ONE}
        return frozenset(self.nest.merged.get(a, a) for a in expr.free_axes if a not in one)

    def writer(self) -> Writer:
        """A fresh writer for it."""
        return Writer(self.kernel, self.nest, self.layout)
