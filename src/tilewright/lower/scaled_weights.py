"""Scales of channels in the weights that the scaled image meets next.

Input -> Output: kernels over packed weights -> the same, some images not scaled but the weights
    y[c, p] = x[c, p] * s[c];  z[m, p] = sum_c y[c, p] * w[m, c]
    ->  v[m, c] = w[m, c] * s[c];  z[m, p] = sum_c x[c, p] * v[m, c]
Requires: nothing else reads the scaled image; there are fewer weights than half its elements.
Why: squeeze-and-excite scales each image by what it computes of it; its weights are fewer numbers.
Guarantees: values are unchanged up to rounding.
Not here: scales that are constants (graph.passes).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tilewright.core.dtypes import FLOAT32, INT64
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim, product
from tilewright.kernel.ir import (
    Axis,
    AxisVar,
    Buffer,
    Call,
    Const,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    Store,
    call,
    constant,
    load,
    loaded,
    substitute,
    transform,
    walk,
)
from tilewright.lower.context import Item, View

_ONE = Dim.of(1)
_GAIN = 2  # elements of the image for each weight


@dataclass(frozen=True, slots=True)
class _Scaled:
    """An image times a scale: ``data`` at the index of the kernel's axes, ``scale`` at some."""

    kernel: Kernel
    data: Load
    scale: Expr


def with_scaled_weights(
    items: Sequence[Item], keep: Collection[str], constants: Collection[str], log: DecisionLog
) -> list[Item]:
    """Moves every scale that may be moved.

    Args:
        keep: names of buffers that are read outside.
        constants: names of the weights.
    """
    users: dict[str, list[int]] = {}
    for number, item in enumerate(items):
        read = [item.source] if isinstance(item, View) else item.inputs
        for buffer in read:
            users.setdefault(buffer.name, []).append(number)
    result = list(items)
    for number, item in enumerate(items):
        scaled = None if isinstance(item, View) else _scaled(item)
        if scaled is None:
            continue
        name = scaled.kernel.outputs[0].name
        user = users.get(name, [])
        consumer = result[user[0]] if len(user) == 1 and name not in keep else None
        made = _moved(scaled, consumer, constants) if isinstance(consumer, Kernel) else None
        if made is not None:
            result[number], result[user[0]] = made
            log.add("layout", "+".join(made[1].sources), "the weights are scaled, not the image")
    return result


def _scaled(kernel: Kernel) -> _Scaled | None:
    """A product of an image with what is the same for its pixels."""
    if not kernel.is_pure or kernel.outputs[0].dtype is not FLOAT32:
        return None
    (stage,) = kernel.stages
    index = tuple(axis.var for axis in stage.axes)
    value = stage.stores[0].value
    if _is_call(value, "blend") and _is_zero(value.children[2]):
        value = value.children[1]  # elements that pad blocks: the weights are 0 there
    if not _is_call(value, "mul") or any(isinstance(node, Reduce) for node in walk(value)):
        return None
    for data, scale in (value.children, value.children[::-1]):
        if isinstance(data, Load) and data.index == index and _is_load(scale):
            return _Scaled(kernel, data, scale)
    return None


def _is_load(expr: Expr) -> bool:
    """A load, perhaps with zeros around it."""
    if _is_call(expr, "select") and _is_zero(expr.children[2]):
        expr = expr.children[1]
    return isinstance(expr, Load)


def _is_call(expr: Expr, op: str) -> bool:
    return isinstance(expr, Call) and expr.op == op


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.value == 0


def _moved(
    scaled: _Scaled, consumer: Kernel, constants: Collection[str]
) -> tuple[Kernel, Kernel] | None:
    """The kernel that scales the weights, and the consumer over them; None where that is not so."""
    image = scaled.kernel.outputs[0]
    nodes = walk(*consumer.roots)
    reads = [node for node in nodes if isinstance(node, Load) and node.buffer == image.name]
    sums = [node for node in nodes if isinstance(node, Reduce) and reads[0] in node.body.children]
    if len(reads) != 1 or len(sums) != 1 or sums[0].combiner != "sum":
        return None
    if not _is_call(sums[0].body, "mul") or consumer.steps is not None:
        return None
    weight = next(part for part in sums[0].body.children if part is not reads[0])
    if not isinstance(weight, Load) or weight.buffer not in constants:
        return None
    stage = next(stage for stage in consumer.stages if sums[0] in walk(*stage.roots))
    extents = {axis.name: axis for axis in (*stage.axes, *sums[0].axes)}
    axes = [extents[part.name] for part in weight.index if isinstance(part, AxisVar)]
    scale = _at(scaled, reads[0], list(extents.values()))
    if len(axes) != len(weight.index) or not scale.free_axes <= {axis.name for axis in axes}:
        return None
    if not _is_worth(axes, image):
        return None
    weights = Buffer(f"{image.name}/weights", FLOAT32, tuple(axis.extent for axis in axes))
    value = call("mul", weight, scale)
    scaling = Kernel(
        name="Scale",
        inputs=_inputs(scaled.kernel, consumer, value),
        outputs=(weights,),
        stages=(Stage(tuple(axes), (Store(weights.name, weight.index, value),)),),
        sources=scaled.kernel.sources,
    )

    def rule(node: Expr) -> Expr | None:
        if node is reads[0]:
            return load(scaled.data.buffer, FLOAT32, node.children)
        return load(weights.name, FLOAT32, node.children) if node is weight else None

    stages = tuple(
        replace(part, stores=tuple(s.mapped(lambda e: transform(e, rule)) for s in part.stores))
        for part in consumer.stages
    )
    roots = [root for part in stages for root in part.roots]
    inputs = (*_inputs(scaled.kernel, consumer, *roots), weights)
    return scaling, replace(consumer, inputs=inputs, stages=stages)


def _at(scaled: _Scaled, read: Load, axes: Sequence[Axis]) -> Expr:
    """The scale of what a load reads, without axes of one index."""
    own = scaled.kernel.stages[0].axes
    places = {axis.name: part for axis, part in zip(own, read.index, strict=True)}
    single = {axis.name: constant(0, INT64) for axis in axes if axis.extent == _ONE}
    return substitute(substitute(scaled.scale, places), single)


def _is_worth(axes: Sequence[Axis], image: Buffer) -> bool:
    weights, elements = product(axis.extent for axis in axes), product(image.shape)
    known = weights.is_const and elements.is_const
    return known and weights.const * _GAIN <= elements.const


def _inputs(first: Kernel, second: Kernel, *roots: Expr) -> tuple[Buffer, ...]:
    """The inputs of two kernels that expressions load."""
    buffers = {buffer.name: buffer for buffer in (*first.inputs, *second.inputs)}
    return tuple(buffers[name] for name in loaded(*roots) if name in buffers)
