"""Products of two computed tensors on bfloat16: the right one is put in pairs by a kernel.

    y[b, i, n] = sum(k: a[b, i, k] * v[b, k, n])   ->
    p[b, no, ko, ni, kj] = bf16(v[b, 2*ko + kj, 16*no + ni])
    y[b, i, n] = sum(ko, kj: float32(a[b, i, 2*ko + kj]) * float32(p[b, no, ko, ni, kj]))
Input -> Output: the items of a segment -> the same with such kernels, and the values ``a``, which
the caller keeps in bfloat16.
Requires: known sizes, whole pairs and vectors, rows enough to make up for the copy.
Guarantees: a refusal has a reason.
Not here: products with known weights (compiler.bfloat16).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilewright.core.dtypes import BFLOAT16, FLOAT32, INT64, UINT16, UINT32
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.kernel.affine import access
from tilewright.kernel.bfloat16 import to_bfloat16
from tilewright.kernel.blocked import Blocker
from tilewright.kernel.dot import PAIRS
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Call,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    Store,
    call,
    cast,
    constant,
    load,
    substitute,
    transform,
    walk,
)
from tilewright.lower.context import Item, View
from tilewright.lower.fuse import fuse

_PAIRS = "Pairs"
_LEAST = 16  # products of a sum, and rows that use a pair
ONE = Dim.of(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """A product in a kernel: its sum and operands, the axes of columns and terms."""

    kernel: Kernel
    left: Load
    right: Load
    columns: Axis
    terms: Axis


def in_pairs(
    items: list[Item],
    keep: Collection[str],
    constants: Mapping[str, Any],
    narrow: Collection[str],
    lanes: int,
    log: DecisionLog,
) -> tuple[list[Item], set[str]]:
    """Rewrites every product that can be.

    Args:
        narrow: values that may be kept in bfloat16.
        lanes: float32 numbers of a vector.
    """
    result: list[Item] = []
    left: set[str] = set()
    for item in items:
        found = _match(item, constants, lanes) if isinstance(item, Kernel) else None
        if found is None or not isinstance(item, Kernel):
            result.append(item)
            continue
        reason = found if isinstance(found, str) else None
        if isinstance(found, _Product) and found.left.buffer not in narrow:
            reason = f"{found.left.buffer} is read outside of the segment, or is an input of it"
        subject = "+".join(item.sources)
        if reason is not None or isinstance(found, str):
            log.add("precision", subject, "float32", (("bfloat16", reason or ""),))
            result.append(item)
            continue
        log.add("precision", subject, "products of bfloat16 in pairs, sums in float32")
        result.extend(_rewritten(found, lanes))
        left.add(found.left.buffer)
    if not left:
        return items, left
    # What only moves values for the right operand is done while they are put in pairs.
    fused = fuse(result, keep, DecisionLog())
    return [part for item in fused for part in _by_words(item)], left


def _by_words(item: Item) -> tuple[Item, ...]:
    """A kernel that makes pairs, a word of 32 bits for each: vectors of words lie in a row."""
    if not isinstance(item, Kernel) or item.name != _PAIRS:
        return (item,)
    (stage,), (pairs,) = item.stages, item.outputs
    *axes, last = stage.axes
    value = stage.stores[0].value

    def half(place: int) -> Expr:
        one = substitute(value, {last.name: constant(place, INT64)})
        return cast(one, UINT16, bits=True).cast(UINT32)

    word = call("or", half(0), call("shl", half(1), constant(16, UINT32)))
    words = Buffer(f"{pairs.name}/words", UINT32, pairs.shape[:-1])
    index = tuple(axis.var for axis in axes)
    made = Stage(tuple(axes), (Store(words.name, index, word),))
    return replace(item, outputs=(words,), stages=(made,)), View(pairs, words)


def _match(kernel: Kernel, constants: Mapping[str, Any], lanes: int) -> _Product | str | None:
    """The product of two computed tensors in a kernel, why it stays as it is, or None."""
    if not kernel.is_pure:
        return None
    stage = kernel.stages[0]
    sums = [node for node in walk(stage.stores[0].value) if isinstance(node, Reduce)]
    if len(sums) != 1 or sums[0].combiner != "sum" or sums[0].dtype is not FLOAT32:
        return None
    body = sums[0].body
    if not (isinstance(body, Call) and body.op == "mul") or len(sums[0].axes) != 1:
        return None
    left, right = body.args
    if not (isinstance(left, Load) and isinstance(right, Load)):
        return None
    if left.buffer in constants or right.buffer in constants or left is right:
        return None
    columns, terms = stage.axes[-1], sums[0].axes[0]
    shapes = {buffer.name: buffer.shape for buffer in kernel.buffers}
    return _reason(stage, left, right, shapes, terms, lanes) or _Product(
        kernel=kernel, left=left, right=right, columns=columns, terms=terms
    )


def _reason(
    stage: Stage,
    left: Load,
    right: Load,
    shapes: Mapping[str, tuple[Dim, ...]],
    terms: Axis,
    lanes: int,
) -> str | None:
    """Why a product stays in float32, or None."""
    columns = stage.axes[-1]
    rows = [axis for axis in stage.axes if axis.name not in right.free_axes]
    sizes = [axis.extent for axis in (*stage.axes, terms)]
    if not all(size.is_const for size in sizes):
        return "a size is not known"
    if terms.extent.const < _LEAST or terms.extent.const % PAIRS.unit:
        return f"{terms.extent} products of a sum, which is not {_LEAST} or more, or is odd"
    if columns.extent.const % lanes or columns.name in left.free_axes:
        return f"{columns.extent} columns are no whole vectors"
    if not any(axis.extent.const >= _LEAST for axis in rows):
        return "too few rows use the right operand"
    form, other = access(left.index, shapes[left.buffer]), access(right.index, shapes[right.buffer])
    if form.rest or other.rest or form.stride(terms.name) != ONE:
        return "the left operand does not lie along the sum"
    return None


def _rewritten(found: _Product, lanes: int) -> tuple[Kernel, Kernel]:
    """The kernel that makes pairs, and the product that reads them."""
    kernel, stage = found.kernel, found.kernel.stages[0]
    columns, terms = found.columns, found.terms
    batch = [
        axis for axis in stage.axes if axis.name in found.right.free_axes and axis is not columns
    ]
    inner = Axis(f"{columns.name}i", Dim.of(lanes)), Axis(f"{terms.name}i", Dim.of(PAIRS.unit))
    outer = tuple(
        Axis(f"{axis.name}o", axis.extent // size)
        for axis, size in ((columns, lanes), (terms, PAIRS.unit))
    )
    axes = (*batch, *outer, *inner)
    index = tuple(axis.var for axis in axes)
    name = f"{kernel.outputs[0].name}/pairs"
    pairs = Buffer(name, BFLOAT16, tuple(axis.extent for axis in axes))
    shapes = {buffer.name: buffer.shape for buffer in kernel.buffers}
    split = {columns.name: lanes, terms.name: PAIRS.unit}
    blocked = Blocker({}, shapes).kernel(kernel, split)
    value = blocked.stages[0].stores[0].value
    total = next(node for node in walk(value) if isinstance(node, Reduce))
    if not isinstance(total.body, Call):
        raise AssertionError("a product stays one")
    right = total.body.args[1]
    source = next(buffer for buffer in kernel.inputs if buffer.name == found.right.buffer)
    packer = Kernel(
        name=_PAIRS,
        inputs=(source,),
        outputs=(pairs,),
        stages=(Stage(axes, (Store(name, index, to_bfloat16(right)),)),),
        sources=kernel.sources,
    )

    def rule(node: Expr) -> Expr | None:
        return cast(load(name, BFLOAT16, index), FLOAT32) if node is right else None

    stages = tuple(
        replace(one, stores=tuple(s.mapped(lambda root: transform(root, rule)) for s in one.stores))
        for one in blocked.stages
    )
    read = {node.buffer for one in stages for node in walk(*one.roots) if isinstance(node, Load)}
    inputs = tuple(buffer for buffer in (*blocked.inputs, pairs) if buffer.name in read)
    return packer, replace(blocked, stages=stages, inputs=inputs)
