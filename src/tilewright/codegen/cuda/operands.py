"""What tensor cores take: sums of products of values that a narrow type holds exactly.

Input -> Output: a stage -> its sum, its two factors and their axes, or the reason why not.
Two sums that are added, of the same rows and columns, are taken as one with a longer depth.
Guarantees: rows are the axes of one factor alone, columns those of the other (outputs side by side
belong to one row), the batch is what both have.
Not here: how a block computes them (contraction, deep).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from tilewright.codegen.cuda.elements import Elements, elements_of
from tilewright.codegen.cuda.layout import layout_of
from tilewright.codegen.cuda.plan import ONE, Draft
from tilewright.codegen.cuda.writer import Writer
from tilewright.core.dtypes import DType
from tilewright.core.shape import Dim, product
from tilewright.kernel.affine import ZERO, Affine
from tilewright.kernel.ir import (
    Axis,
    Call,
    Cast,
    Const,
    Expr,
    Kernel,
    Load,
    Reduce,
    constant,
    select,
    walk,
)
from tilewright.kernel.nest import prepare

CHUNK = 8  # neighbours of 16 bits that are copied at once, and outputs that are stored at once
FEW = 8  # rows or columns of many products


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One factor: its value as it is stored, the axes that only it depends on.

    Attributes:
        deep: chunks run along the depth, else along ``axes``.
        source: the load that a chunk copies, where its 16 bytes lie side by side; else None, and
            each element is computed.
        fill: what there is where a guard does not hold.
    """

    value: Expr
    axes: tuple[Axis, ...]
    deep: bool
    source: Load | None
    fill: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A sum and what it is made of.

    Attributes:
        second: another sum of the same rows and columns that is added to it.
        total: what a block computes: the sum, or that of both.
    """

    elements: Elements
    sum: Reduce
    left: Operand
    right: Operand
    batch: tuple[Axis, ...]
    depth: tuple[Axis, ...]
    second: Match | None = None
    total: Expr

    @property
    def parts(self) -> tuple[Match, ...]:
        """Its sums, one or two."""
        return (self,) if self.second is None else (self, self.second)

    @property
    def extents(self) -> tuple[Dim, Dim, Dim, Dim]:
        """Rows, columns, depth of all sums, number of contractions."""
        rows, columns, count = (
            product(axis.extent for axis in axes)
            for axes in (self.left.axes, self.right.axes, self.batch)
        )
        depth = ZERO
        for part in self.parts:
            depth = depth + product(axis.extent for axis in part.depth)
        return rows, columns, depth, count


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """A contraction of known sizes: ``count`` products of ``rows`` x ``depth`` x ``columns``."""

    sum: Reduce
    rows: int
    columns: int
    depth: int
    count: int
    match: Match


def draft_of(kernel: Kernel) -> Draft:
    """The draft of a kernel's first stage."""
    return Draft(kernel=kernel, nest=prepare(kernel, kernel.stages[0]), layout=layout_of(kernel))


def sizes_of(kernel: Kernel) -> Sizes | None:
    """The sizes of a kernel that is one contraction for tensor cores; None for any other."""
    if len(kernel.stages) != 1 or kernel.steps is not None:
        return None
    found = match(draft := draft_of(kernel), draft.writer())
    if isinstance(found, str):
        return None
    if not all(extent.is_const for extent in found.extents):
        return None
    rows, columns, depth, count = (extent.const for extent in found.extents)
    return Sizes(sum=found.sum, rows=rows, columns=columns, depth=depth, count=count, match=found)


# --- legality -------------------------------------------------------------------------------------


def match(draft: Draft, writer: Writer) -> Match | str:
    """The sum and its factors, or why there are none."""
    nest = draft.nest
    if any(axis.ordered for axis in nest.axes):
        return "an axis is ordered"
    if len(nest.stage.stores) != 1 or nest.stage.stores[0].guard is not None:
        return "not one store without a guard"
    if any(isinstance(n, Load) and n.buffer in writer.stored for n in walk(*nest.stage.roots)):
        return "it reads what it stores"
    value = nest.stage.stores[0].value
    always = writer.always(value)
    sums = [node for node in walk(value) if isinstance(node, Reduce)]
    if not sums or len(sums) > 2 or any(id(node) not in always for node in sums):
        return "not one sum that every output needs"
    first = _one(draft, sums[0])
    if len(sums) == 1 or isinstance(first, str):
        return first
    return _two(draft, always.values(), first, sums[1])


def _two(draft: Draft, nodes: Iterable[Expr], first: Match, other: Reduce) -> Match | str:
    """A sum with another that is added to it."""
    pair = {first.sum, other}
    adds = [n for n in nodes if isinstance(n, Call) and n.op == "add" and set(n.args) == pair]
    if not adds:
        return "not one sum that every output needs"
    second = _one(draft, other)
    if isinstance(second, str):
        return second
    if first.batch or (first.left.axes, first.right.axes) != (second.left.axes, second.right.axes):
        return "two sums of other rows or columns"
    if first.elements != second.elements:
        return "two sums of other types"
    return replace(first, second=second, total=adds[0])


def _one(draft: Draft, node: Reduce) -> Match | str:
    """A sum by itself."""
    body = node.body
    if node.combiner != "sum" or not (isinstance(body, Call) and body.op == "mul"):
        return "not a sum of products"
    left, right = (stored_type(part) for part in body.args)
    if left is None or right is None:
        return "a factor is not stored in a narrow type"
    if elements_of(left, right, node.dtype) is None:
        return f"no instruction multiplies {left} by {right} into {node.dtype}"
    first, second = as_stored(body.args[0], left), as_stored(body.args[1], right)
    if first is None or second is None:
        return f"a factor is no {left if first is None else right}"
    return _operands(draft, node, body.args, (first, second))


def _operands(
    draft: Draft, node: Reduce, factors: tuple[Expr, ...], stored: tuple[Expr, Expr]
) -> Match | str:
    nest = draft.nest
    inner = {axis.name for axis in node.axes}
    depends = [draft.varies_with(factor) for factor in factors]
    merged = {axis.name for axis in nest.reduce_axes[id(node)]}
    if any(not factor.free_axes & inner for factor in factors):
        return "a factor does not depend on the depth"
    sides = []
    for own, other in (depends, depends[::-1]):
        sides.append([a for a in nest.axes if a.name in own - other - merged])
    if not sides[0] and not sides[1]:
        return "no factor has axes of its own"
    operands = [
        _operand(draft, node, factor, own, tuple(axes))
        for factor, own, axes in zip(factors, stored, sides, strict=True)
    ]
    last = nest.axes[-1].name if nest.axes else ""
    if any(axis.name == last for axis in sides[0]):
        operands.reverse()  # outputs side by side belong to one row
    alone = {axis.name for side in operands for axis in side.axes}
    elements = elements_of(operands[0].value.dtype, operands[1].value.dtype, node.dtype)
    assert elements is not None
    return Match(
        elements=elements,
        sum=node,
        left=operands[0],
        right=operands[1],
        batch=tuple(axis for axis in nest.axes if axis.name not in alone),
        depth=nest.reduce_axes[id(node)],
        total=node,
    )


def stored_type(node: Expr) -> DType | None:
    """The type that a factor is converted from."""
    match node:
        case Cast() if not node.bits:
            return node.arg.dtype
        case Call() if node.op == "select":
            return stored_type(node.args[1]) or stored_type(node.args[2])
    return None


def as_stored(node: Expr, dtype: DType) -> Expr | None:
    """The same value in a narrow type, if that holds it exactly for sure."""
    match node:
        case Cast() if node.arg.dtype is dtype and not node.bits:
            return node.arg
        case Const():
            with np.errstate(over="ignore", invalid="ignore"):
                exact = float(np.asarray(node.value).astype(dtype.numpy)) == node.value
            return constant(node.value, dtype) if exact else None
        case Call() if node.op == "select":
            then, other = (as_stored(part, dtype) for part in node.args[1:])
            return None if then is None or other is None else select(node.args[0], then, other)
    return None


def _operand(
    draft: Draft, node: Reduce, factor: Expr, stored: Expr, axes: tuple[Axis, ...]
) -> Operand:
    """How an operand is read: along the direction in which it lies in memory."""
    depth = draft.nest.reduce_axes[id(node)]
    loads = [n for n in walk(factor) if isinstance(n, Load) and n.dtype is stored.dtype]
    forms = [draft.nest.loads[id(load)] for load in loads if id(load) in draft.nest.loads]
    deep = any(form.stride(depth[-1].name) == ONE for form in forms)
    along = depth if deep or not axes else axes
    deep = along is depth
    source, fill = _chunk_source(draft, stored, along)
    return Operand(value=stored, axes=axes, deep=deep, source=source, fill=fill)


def _chunk_source(draft: Draft, stored: Expr, along: tuple[Axis, ...]) -> tuple[Load | None, int]:
    """The load of a chunk, where 16 aligned bytes lie along the last of the axes, and what there
    is instead where its guards do not hold.
    """
    load, guards, fills = stored, [], set()
    while isinstance(load, Call) and load.op == "select":
        if not isinstance(load.args[2], Const):
            return None, 0
        guards.append(load.args[0])
        fills.add(load.args[2].value)
        load = load.args[1]
    if not isinstance(load, Load) or id(load) not in draft.nest.loads or len(fills) > 1:
        return None, 0
    if load.dtype.is_float and fills - {0}:
        return None, 0
    last, chunk = along[-1], CHUNK * 2 // load.dtype.storage_bytes
    if not last.extent.is_const or last.extent.const % chunk:
        return None, 0
    if any(last.name in draft.varies_with(guard) for guard in guards):
        return None, 0
    aligned = _is_aligned(draft.nest.loads[id(load)], last.name, chunk)
    return (load, int(fills.pop()) if fills else 0) if aligned else (None, 0)


def _is_aligned(form: Affine, last: str, chunk: int) -> bool:
    if form.rest or form.stride(last) != ONE:
        return False
    others = [factor for name, factor in form.terms.items() if name != last]
    return all((factor % chunk) == Dim.of(0) for factor in (*others, form.offset))
