"""Data of matrix products that does not lie along the sum: a kernel turns it.

    y[i, n] = sum(k: x[k, i] * w[k, n])   ->
    t[i, k] = x[k, i];  y[i, n] = sum(k: t[i, k] * w[k, n])
Input -> Output: the items of a segment -> the same with such kernels.
Requires: known weights with columns enough to make up for the copy.
Why: two neighbours of a sum are multiplied at once.
Not here: what is rounded (compiler.bfloat16).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tilewright.core.dtypes import FLOAT32
from tilewright.core.shape import Dim
from tilewright.kernel.affine import access
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
    load,
    transform,
    walk,
)
from tilewright.lower.context import Item

_LEAST_COLUMNS = 64


def along_sums(items: Iterable[Item], constants: Mapping[str, Any]) -> list[Item]:
    """Puts a copy before each product whose data lies across the sum."""
    result: list[Item] = []
    for item in items:
        found = _match(item, constants) if isinstance(item, Kernel) else None
        if found is None or not isinstance(item, Kernel):
            result.append(item)
        else:
            result.extend(_rewritten(item, *found))
    return result


def _match(kernel: Kernel, constants: Mapping[str, Any]) -> tuple[Load, Axis] | None:
    """The data and the axis of its terms, where that is worth a copy."""
    if not kernel.is_pure:
        return None
    stage = kernel.stages[0]
    sums = [node for node in walk(stage.stores[0].value) if isinstance(node, Reduce)]
    if len(sums) != 1 or len(sums[0].axes) != 1 or sums[0].dtype is not FLOAT32:
        return None
    body = sums[0].body
    if sums[0].combiner != "sum" or not (isinstance(body, Call) and body.op == "mul"):
        return None
    data, weights = body.args
    if not (isinstance(data, Load) and isinstance(weights, Load)) or data.buffer in constants:
        return None
    if weights.buffer not in constants or data.dtype is not FLOAT32:
        return None
    columns, terms = stage.axes[-1], sums[0].axes[0]
    only_weights = columns.name in weights.free_axes - data.free_axes
    many = columns.extent.is_const and columns.extent.const >= _LEAST_COLUMNS
    shape = next(buffer.shape for buffer in kernel.inputs if buffer.name == data.buffer)
    form = access(data.index, shape)
    if not only_weights or not many or form.rest or form.stride(terms.name) == Dim.of(1):
        return None
    return data, terms


def _rewritten(kernel: Kernel, data: Load, terms: Axis) -> tuple[Kernel, Kernel]:
    """The kernel that turns the data, and the product that reads it."""
    stage = kernel.stages[0]
    axes = (*(axis for axis in stage.axes if axis.name in data.free_axes), terms)
    index = tuple(axis.var for axis in axes)
    name = f"{kernel.outputs[0].name}/turned"
    turned = Buffer(name, FLOAT32, tuple(axis.extent for axis in axes))
    source = next(buffer for buffer in kernel.inputs if buffer.name == data.buffer)
    copier = Kernel(
        name="Turned",
        inputs=(source,),
        outputs=(turned,),
        stages=(Stage(axes, (Store(name, index, data),)),),
        sources=kernel.sources,
    )

    def rule(node: Expr) -> Expr | None:
        return load(name, FLOAT32, index) if node is data else None

    stores = tuple(s.mapped(lambda root: transform(root, rule)) for s in stage.stores)
    made = replace(stage, stores=stores)
    read = {node.buffer for node in walk(*made.roots) if isinstance(node, Load)}
    inputs = tuple(buffer for buffer in (*kernel.inputs, turned) if buffer.name in read)
    return copier, replace(kernel, stages=(made,), inputs=inputs)
