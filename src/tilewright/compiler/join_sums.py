"""Compute a sum of products where what it makes is added to another one, as one longer sum.

    d = sum over k: x[m, k] * v[n, k];  y = f(sum over k: z[m, k] * w[n, k] + d[m, n])
    ->  y = f(sum over k: z[m, k] * w'[n, k]  +  sum over k: x[m, k] * w'[n, K + k]),  w' = w | v
Input -> Output: a fused draft of narrow values, edited in place; such weights join the constants
again, side by side.
Why: d is neither written nor read, and a launch is saved: residual blocks whose shortcut is a
convolution.
Requires: what the copy engine takes (codegen.cuda.tma); values of d that nothing else reads.
Guarantees: d is no longer rounded.
Not here: the code (codegen.cuda.tma).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.codegen.cuda import tma
from tilewright.codegen.cuda.operands import draft_of, match
from tilewright.compiler.build_program import DraftProgram, DraftSegment
from tilewright.compiler.join_attention import makers_of
from tilewright.core.dtypes import FLOAT32, INT64
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.kernel.ir import (
    Axis,
    AxisVar,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Kernel,
    Load,
    Reduce,
    constant,
    load,
    reduce_axes,
    substitute,
    walk,
)
from tilewright.kernel.ir import transform as rewrite

Array = npt.NDArray[Any]
_SUFFIX = "$beside"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sum:
    """A sum of products with a weight, and what else is added to it.

    Attributes:
        tree: the addition of all.
        weight: its factor of a constant, whose first dim is that of the outputs.
        depth: products of an output.
    """

    tree: Expr
    node: Reduce
    rest: tuple[Expr, ...]
    weight: Load
    depth: int


def join_sums_program(program: DraftProgram, constants: dict[str, Array], log: DecisionLog) -> None:
    """Joins in every segment, those of sub-programs too."""
    for segment in program.segments():
        _segment(segment, constants, log)


def _segment(step: DraftSegment, constants: dict[str, Array], log: DecisionLog) -> None:
    kernels = [item for item in step.items if isinstance(item, Kernel)]
    makers = makers_of(step, kernels)
    gone: set[int] = set()
    made: dict[int, Kernel] = {}
    for kernel in kernels:
        for node in _addends(kernel, makers):
            maker = makers[node.buffer]
            joined = _joined(kernel, node, maker, constants)
            if isinstance(joined, Kernel):
                made[id(kernel)] = joined
                gone.add(id(maker))
                log.add("sums", "+".join(joined.sources), f"one sum with {maker.name}")
                break
            log.add("sums", "+".join(kernel.sources), "two kernels", (("one", joined),))
    step.items = [made.get(id(item), item) for item in step.items if id(item) not in gone]


def _addends(kernel: Kernel, makers: Mapping[str, Kernel]) -> list[Load]:
    """Values of sums of products that are added to one, and that only this kernel reads."""
    if not kernel.is_pure or len(_reductions(kernel)) != 1:
        return []
    (node,) = _reductions(kernel)
    terms = _terms(_tree(_value(kernel), node))
    loads = [t.arg for t in terms if isinstance(t, Cast) and isinstance(t.arg, Load)]
    return [n for n in loads if n.buffer in makers and len(_reductions(makers[n.buffer])) == 1]


def _joined(kernel: Kernel, node: Load, maker: Kernel, constants: dict[str, Array]) -> Kernel | str:
    """The kernel that computes both sums, or why there is none."""
    value = _value(maker)
    if not isinstance(value, Cast) or value.dtype is not node.dtype or value.arg.dtype != FLOAT32:
        return f"{maker.name} stores something else than a rounded sum"
    axes = (axis.name for axis in maker.stages[0].axes)
    inner = substitute(value.arg, dict(zip(axes, node.index, strict=True)))
    last = kernel.stages[0].axes[-1]
    sums = [_sum(root, last, constants) for root in (_value(kernel), inner)]
    first, second = sums
    if isinstance(first, str) or isinstance(second, str):
        return first if isinstance(first, str) else str(second)
    if second.tree is not inner:
        return f"{maker.name} does more than to add to its sum"
    parts = [
        constants[part.weight.buffer].reshape(last.extent.const, -1) for part in (first, second)
    ]
    name = first.weight.buffer + _SUFFIX
    total = _beside(first, name, last, 0) + _beside(second, name, last, first.depth)
    for term in (*first.rest, *second.rest):
        if term is not node.cast(FLOAT32):
            total = total + term
    tree = first.tree
    stage = kernel.stages[0]
    stores = tuple(
        s.mapped(lambda e: rewrite(e, lambda n: total if n is tree else None)) for s in stage.stores
    )
    both = Buffer(name, first.weight.dtype, (last.extent, Dim.of(first.depth + second.depth)))
    buffers = {b.name: b for b in (*kernel.inputs, *maker.inputs, both)}
    made = replace(stage, stores=stores)
    read = dict.fromkeys(n.buffer for n in walk(*made.roots) if isinstance(n, Load))
    result = replace(
        kernel,
        inputs=tuple(buffers[name] for name in read),
        stages=(made,),
        sources=(*maker.sources, *kernel.sources),
    )
    draft = replace(draft_of(result), clusters=True)
    found = match(draft, draft.writer())
    reason = found if isinstance(found, str) else tma.refusal(draft, found)
    if reason is None:
        constants[name] = np.ascontiguousarray(np.concatenate(parts, axis=1))
    return result if reason is None else reason


def _sum(value: Expr, last: Axis, constants: Mapping[str, Array]) -> _Sum | str:
    """The one sum in a value."""
    (node,) = (part for part in walk(value) if isinstance(part, Reduce))
    body = node.body
    if node.combiner != "sum" or not (isinstance(body, Call) and body.op == "mul"):
        return "no sum of products"
    weights = [p for p in walk(body) if isinstance(p, Load) and p.buffer in constants]
    if len(weights) != 1 or not _is_line(weights[0], node, last, constants):
        return "no constant whose dims are outputs and what is summed"
    tree = _tree(value, node)
    return _Sum(
        tree=tree,
        node=node,
        rest=tuple(term for term in _terms(tree) if term is not node),
        weight=weights[0],
        depth=constants[weights[0].buffer].size // last.extent.const,
    )


def _is_line(weight: Load, node: Reduce, last: Axis, constants: Mapping[str, Array]) -> bool:
    """Whether the products of an output take all values of a line of a weight, in order."""
    shape = constants[weight.buffer].shape
    long = [
        (index.name if isinstance(index, AxisVar) else "", size)
        for index, size in zip(weight.index[1:], shape[1:], strict=True)
        if not (isinstance(index, Const) and size == 1)
    ]
    axes = [(axis.name, axis.extent.const) for axis in node.axes if axis.extent.is_const]
    own = [pair for pair in axes if pair[1] != 1]
    whole = [pair for pair in long if pair[1] != 1] == own and len(axes) == len(node.axes)
    first = weight.index[0]
    return whole and isinstance(first, AxisVar) and first.name == last.name


def _beside(part: _Sum, name: str, last: Axis, offset: int) -> Expr:
    """The sum, of a part of the lines of both weights."""
    place: Expr = constant(0, INT64)
    for axis in part.node.axes:
        place = place * axis.extent.const + axis.var
    moved = load(name, part.weight.dtype, (last.var, place + offset))
    body = rewrite(part.node.body, lambda n: moved if n is part.weight else None)
    return reduce_axes("sum", part.node.axes, body)


def _tree(value: Expr, node: Expr) -> Expr:
    """The largest addition of which a node is a term."""
    found = node
    for other in walk(value):  # operands come before what is made of them
        if isinstance(other, Call) and other.op == "add" and found in other.args:
            found = other
    return found


def _terms(tree: Expr) -> list[Expr]:
    found, stack = [], [tree]
    while stack:
        part = stack.pop()
        if isinstance(part, Call) and part.op == "add":
            stack.extend(reversed(part.args))
        else:
            found.append(part)
    return found


def _value(kernel: Kernel) -> Expr:
    return kernel.stages[0].stores[0].value


def _reductions(kernel: Kernel) -> list[Reduce]:
    return [node for node in walk(_value(kernel)) if isinstance(node, Reduce)]
