"""The kernel IR: buffers, and loop nests that store expressions in them.

Input -> Output: lowering builds ``Kernel``s; the interpreter and code generators read them.
Guarantees: every record is frozen.  This module has the whole IR: expressions and what reads and
rewrites them are here under the same names.
Not here: expressions themselves (kernel.expr, kernel.traverse), scheduling (kernel.schedule),
legality (kernel.verify).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.core.dtypes import DType
from tilewright.core.errors import InternalError
from tilewright.core.shape import Dim
from tilewright.kernel.expr import (
    Axis,
    AxisVar,
    Call,
    Cast,
    Const,
    DimValue,
    Expr,
    Load,
    Reduce,
    Scalar,
    axis_var,
    call,
    cast,
    constant,
    dim_value,
    identity_of,
    load,
    reduce_axes,
    reduce_over,
    select,
)
from tilewright.kernel.traverse import loaded, products, rebuild, substitute, transform, walk

__all__ = [
    "Axis",
    "AxisVar",
    "Buffer",
    "Call",
    "Cast",
    "Const",
    "DimValue",
    "Expr",
    "Kernel",
    "Load",
    "Reduce",
    "Scalar",
    "Stage",
    "Store",
    "axis_var",
    "call",
    "cast",
    "constant",
    "dim_value",
    "identity_of",
    "load",
    "loaded",
    "products",
    "rebuild",
    "reduce_axes",
    "reduce_over",
    "select",
    "substitute",
    "transform",
    "walk",
]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A dense row-major array."""

    name: str
    dtype: DType
    shape: tuple[Dim, ...]

    def __getitem__(self, index: Expr | int | tuple[Expr | int, ...]) -> Expr:
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) != len(self.shape):
            raise InternalError(f"{self.name} has rank {len(self.shape)}, index {len(indices)}")
        return load(self.name, self.dtype, indices)


@dataclass(frozen=True, slots=True)
class Store:
    """Writes ``value`` to ``buffer[index]`` where ``guard`` (bool; None means always) holds."""

    buffer: str
    index: tuple[Expr, ...]
    value: Expr
    guard: Expr | None = None

    @property
    def roots(self) -> tuple[Expr, ...]:
        """Its expressions: index, value and guard."""
        guard = () if self.guard is None else (self.guard,)
        return (*self.index, self.value, *guard)

    def mapped(self, rule: Callable[[Expr], Expr]) -> Store:
        """The store with every expression replaced."""
        guard = None if self.guard is None else rule(self.guard)
        return replace(
            self, index=tuple(map(rule, self.index)), value=rule(self.value), guard=guard
        )


@dataclass(frozen=True, slots=True)
class Stage:
    """A loop nest: for all points of ``axes``, the stores in order."""

    axes: tuple[Axis, ...]
    stores: tuple[Store, ...]

    @property
    def roots(self) -> list[Expr]:
        """The expressions of all stores."""
        return [root for store in self.stores for root in store.roots]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Stages run one after another, all of them once for each step of ``steps`` (in order) if
    given.

    Attributes:
        name: for people; not part of the meaning.
        inputs, outputs, temporaries: every buffer used; stages may load what earlier stages stored.
        stages: loop nests; a stage's parallel axes may run in any order and on any thread.
        steps: an ordered axis around all stages (recurrent networks), or None.
        sources: names of the graph nodes computed here.
    """

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    stages: tuple[Stage, ...]
    temporaries: tuple[Buffer, ...] = ()
    steps: Axis | None = None
    sources: tuple[str, ...] = ()

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return (*self.inputs, *self.outputs, *self.temporaries)

    @property
    def roots(self) -> list[Expr]:
        """The expressions of all stages."""
        return [root for stage in self.stages for root in stage.roots]

    @property
    def is_pure(self) -> bool:
        """One unguarded store of one output at exactly its axes: the kernel is a function of
        its index.
        """
        if len(self.stages) != 1 or self.steps or self.temporaries or len(self.outputs) != 1:
            return False
        stage = self.stages[0]
        store = stage.stores[0]
        return (
            len(stage.stores) == 1
            and store.guard is None
            and store.index == tuple(axis.var for axis in stage.axes)
            and not any(axis.ordered for axis in stage.axes)
            and tuple(axis.extent for axis in stage.axes) == self.outputs[0].shape
        )
