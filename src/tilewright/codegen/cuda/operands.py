"""What tensor cores take: sums of products of values that float16 holds exactly.

Input -> Output: a stage -> its sum, its two factors and their axes, or the reason why not.
Guarantees: rows are the axes of one factor alone, columns those of the other (outputs side by side
belong to one row), the batch is what both have.
Not here: how a block computes them (contraction, deep).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.codegen.cuda.layout import layout_of
from tilewright.codegen.cuda.plan import ONE, Draft
from tilewright.codegen.cuda.writer import Writer
from tilewright.core.dtypes import FLOAT16, FLOAT32
from tilewright.core.shape import Dim, product
from tilewright.kernel.affine import Affine
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

CHUNK = 8  # neighbours that are copied at once
FEW = 8  # rows or columns of many products


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One factor: its value in float16, the axes that only it depends on.

    Attributes:
        deep: chunks run along the depth, else along ``axes``.
        source: the load that a chunk copies, where its 8 elements lie side by side; else None, and
            each element is computed.
    """

    value: Expr
    axes: tuple[Axis, ...]
    deep: bool
    source: Load | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A sum and what it is made of."""

    sum: Reduce
    left: Operand
    right: Operand
    batch: tuple[Axis, ...]
    depth: tuple[Axis, ...]

    @property
    def extents(self) -> tuple[Dim, Dim, Dim, Dim]:
        """Rows, columns, depth, number of contractions."""
        rows, columns, depth, count = (
            product(axis.extent for axis in axes)
            for axes in (self.left.axes, self.right.axes, self.depth, self.batch)
        )
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
    sums = [node for node in walk(value) if isinstance(node, Reduce)]
    if len(sums) != 1 or id(sums[0]) not in writer.always(value):
        return "not one sum that every output needs"
    node = sums[0]
    body = node.body
    is_product = isinstance(body, Call) and body.op == "mul" and body.dtype is FLOAT32
    if node.combiner != "sum" or not is_product:
        return "not a sum of float32 products"
    factors = [as_half(part) for part in body.children]
    if factors[0] is None or factors[1] is None:
        return "a factor is not stored as float16"
    return _operands(draft, node, (body.children[0], body.children[1]), (factors[0], factors[1]))


def _operands(
    draft: Draft, node: Reduce, factors: tuple[Expr, Expr], halves: tuple[Expr, Expr]
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
        _operand(draft, node, factor, half, tuple(axes))
        for factor, half, axes in zip(factors, halves, sides, strict=True)
    ]
    last = nest.axes[-1].name if nest.axes else ""
    if any(axis.name == last for axis in sides[0]):
        operands.reverse()  # outputs side by side belong to one row
    alone = {axis.name for side in operands for axis in side.axes}
    return Match(
        sum=node,
        left=operands[0],
        right=operands[1],
        batch=tuple(axis for axis in nest.axes if axis.name not in alone),
        depth=nest.reduce_axes[id(node)],
    )


def as_half(node: Expr) -> Expr | None:
    """The same value in float16, if that holds it exactly for sure."""
    match node:
        case Cast() if node.arg.dtype is FLOAT16 and not node.bits:
            return node.arg
        case Const():
            exact = float(np.float16(node.value)) == node.value
            return constant(node.value, FLOAT16) if exact else None
        case Call() if node.op == "select":
            then, other = (as_half(part) for part in node.args[1:])
            return None if then is None or other is None else select(node.args[0], then, other)
    return None


def _operand(
    draft: Draft, node: Reduce, factor: Expr, half: Expr, axes: tuple[Axis, ...]
) -> Operand:
    """How an operand is read: along the direction in which it lies in memory."""
    depth = draft.nest.reduce_axes[id(node)]
    loads = [n for n in walk(factor) if isinstance(n, Load) and n.dtype is FLOAT16]
    forms = [draft.nest.loads[id(load)] for load in loads if id(load) in draft.nest.loads]
    deep = any(form.stride(depth[-1].name) == ONE for form in forms)
    along = depth if deep or not axes else axes
    deep = along is depth
    source = _chunk_source(draft, half, along)
    return Operand(value=half, axes=axes, deep=deep, source=source)


def _chunk_source(draft: Draft, half: Expr, along: tuple[Axis, ...]) -> Load | None:
    """The load of a chunk, where 8 elements along the last of the axes are 16 aligned bytes."""
    load, guards = half, []
    while isinstance(load, Call) and load.op == "select":
        if not isinstance(load.args[2], Const) or float(load.args[2].value) != 0:
            return None
        guards.append(load.args[0])
        load = load.args[1]
    if not isinstance(load, Load) or id(load) not in draft.nest.loads:
        return None
    last = along[-1]
    if not last.extent.is_const or last.extent.const % CHUNK:
        return None
    if any(last.name in draft.varies_with(guard) for guard in guards):
        return None
    return load if _is_aligned(draft.nest.loads[id(load)], last.name) else None


def _is_aligned(form: Affine, last: str) -> bool:
    if form.rest or form.stride(last) != ONE:
        return False
    others = [factor for name, factor in form.terms.items() if name != last]
    return all((factor % CHUNK) == Dim.of(0) for factor in (*others, form.offset))
