"""Recognise LayerNormalization and RMSNormalization from their arithmetic.

    d = x - ReduceMean(x); d / Sqrt(ReduceMean(d * d) + eps) [* g] [+ b]  ->  LayerNormalization
    x / Sqrt(ReduceMean(x * x) + eps) [* g]                               ->  RMSNormalization
    (also: * Reciprocal(Sqrt(..)), * (1 / Sqrt(..)), Pow(d, 2), two equal subtractions)
Requires: float32; the same trailing axes, kept; one positive constant eps; g and b of the shape of
    those axes (a bias of another shape stays an addition).
Guarantees: NaN and Inf as before: both spread over their row.
Not here: reduction of half precision in place, which rounds and overflows where the operator does
not; axes that are not the last ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tilewright.core.shape import Dim
from tilewright.graph.passes.base import Outcome, Pass, PassContext, Refused, enclosed
from tilewright.graph.passes.match import (
    maker,
    only_reader,
    other_input,
    plus_constant,
    reduced_axes,
    same_shape,
)


@dataclass(slots=True)
class _Statistics:
    """``sqrt(mean(d * d) + epsilon)`` over ``axes`` and the nodes that compute it."""

    squared: ir.Value
    axes: list[int]
    epsilon: float
    nodes: list[ir.Node]


def _attempt(ctx: PassContext, node: ir.Node) -> Outcome:
    """``node`` divides by (or multiplies with the reciprocal of) the standard deviation."""
    found = _normalised(ctx, node)
    if found is None:
        return None
    numerator, statistics = found
    squared = statistics.squared
    rank = ctx.rank(squared)
    inside = [node, *statistics.nodes]
    centred = _centred(ctx, squared, node.graph)
    if centred is not None:
        x, mean, subtractions = centred
        if reduced_axes(ctx, mean, rank) != statistics.axes:
            return Refused(reason="mean and variance are taken over different axes")
        twin = _twin(numerator, x, mean, node.graph)
        if numerator is not squared and twin is None:
            return Refused(reason="what is divided is not what the variance is taken of")
        inside += [mean, *subtractions, *([twin] if twin is not None else [])]
    elif numerator is squared:
        x = squared
    else:
        return Refused(reason="what is divided is not what the mean square is taken of")
    shape = ctx.shape(x)
    refused = _illegal(ctx, x, shape, statistics)
    if refused is not None or shape is None:
        return refused or Refused(reason="the rank is unknown")
    return _rewrite(
        ctx, node, x, shape[statistics.axes[0] :], statistics, inside, centred is not None
    )


def _illegal(
    ctx: PassContext, x: ir.Value, shape: tuple[Dim, ...] | None, statistics: _Statistics
) -> Refused | None:
    dtype = ctx.dtype(x)
    if dtype is None or dtype.name != "float32":
        return Refused(reason=f"the type is {dtype}; only float32 is computed as the operator does")
    if shape is None:
        return Refused(reason="the rank is unknown")
    if statistics.axes != list(range(statistics.axes[0], len(shape))):
        return Refused(reason=f"axes {statistics.axes} are not the last ones of {len(shape)}")
    if statistics.epsilon < 0 or not np.isfinite(statistics.epsilon):
        return Refused(reason=f"epsilon is {statistics.epsilon:g}")
    return None


# --- matching -------------------------------------------------------------------------------------


def _normalised(ctx: PassContext, node: ir.Node) -> tuple[ir.Value, _Statistics] | None:
    left, right = node.inputs[0], node.inputs[1]
    if node.op_type == "Div":
        if ctx.constant(left) is not None:
            return None  # a reciprocal
        statistics = _deviation(ctx, right, node.graph)
        return (left, statistics) if left is not None and statistics is not None else None
    for numerator, factor in ((left, right), (right, left)):
        inverse = maker(factor, "Reciprocal", "Div", graph=node.graph)
        if inverse is None or numerator is None:
            continue
        if inverse.op_type == "Div" and ctx.scalar(inverse.inputs[0]) != 1.0:
            continue
        statistics = _deviation(ctx, inverse.inputs[-1], node.graph)
        if statistics is not None:
            statistics.nodes.append(inverse)
            return numerator, statistics
    return None


def _deviation(
    ctx: PassContext, value: ir.Value | None, graph: ir.Graph | None
) -> _Statistics | None:
    root = maker(value, "Sqrt", graph=graph)
    add = maker(root.inputs[0], "Add", graph=graph) if root is not None else None
    shifted = plus_constant(ctx, add)
    if root is None or add is None or shifted is None:
        return None
    mean = maker(shifted[0], "ReduceMean", graph=graph)
    square = maker(mean.inputs[0], "Mul", "Pow", graph=graph) if mean is not None else None
    if mean is None or square is None or square.inputs[0] is None:
        return None
    base, other = square.inputs[0], square.inputs[1]
    if square.op_type == "Pow":
        if ctx.scalar(other) != 2.0:
            return None
    elif other is not base:
        return None
    axes = reduced_axes(ctx, mean, ctx.rank(base))
    if axes is None:
        return None
    return _Statistics(base, axes, shifted[1], [root, add, mean, square])


def _centred(
    ctx: PassContext, value: ir.Value, graph: ir.Graph | None
) -> tuple[ir.Value, ir.Node, list[ir.Node]] | None:
    """x, its mean and the subtraction, if the value is ``x - mean(x)``."""
    difference = maker(value, "Sub", graph=graph)
    if difference is None or difference.inputs[0] is None:
        return None
    x = difference.inputs[0]
    mean = maker(difference.inputs[1], "ReduceMean", graph=graph)
    if mean is None or mean.inputs[0] is not x or reduced_axes(ctx, mean, ctx.rank(x)) is None:
        return None
    return x, mean, [difference]


def _twin(value: ir.Value, x: ir.Value, mean: ir.Node, graph: ir.Graph | None) -> ir.Node | None:
    """A second ``x - mean(x)``, as some exporters write it."""
    node = maker(value, "Sub", graph=graph)
    if node is None or node.inputs[0] is not x or node.inputs[1] is not mean.outputs[0]:
        return None
    return node


# --- rewriting ------------------------------------------------------------------------------------


def _rewrite(
    ctx: PassContext,
    node: ir.Node,
    x: ir.Value,
    normal: tuple[Dim, ...],
    statistics: _Statistics,
    inside: list[ir.Node],
    centred: bool,
) -> Outcome:
    refused = enclosed(inside, node) or same_shape(ctx, x, node.outputs[0])
    if refused is not None:
        return refused
    scale, root = _parameter(ctx, node, "Mul", normal)
    if scale is None:
        if not all(dim.is_const for dim in normal):
            return Refused(reason="without a scale the normalised axes must be static")
        scale = ctx.new_constant(
            np.ones([dim.const for dim in normal], np.float32), f"{node.name}/scale"
        )
    bias, end = _parameter(ctx, root, "Add", normal) if centred else (None, root)
    attributes = {"axis": -len(normal), "epsilon": statistics.epsilon, "stash_type": 1}
    members = [*inside, node, root, end]
    if centred:
        inputs = [x, scale] if bias is None else [x, scale, bias]
        ctx.replace(end, members, "LayerNormalization", inputs, attributes)
        return f"LayerNormalization over {len(normal)} axes"
    ctx.replace(end, members, "RMSNormalization", [x, scale], attributes)
    return f"RMSNormalization over {len(normal)} axes"


def _parameter(
    ctx: PassContext, node: ir.Node, op_type: str, normal: tuple[Dim, ...]
) -> tuple[ir.Value | None, ir.Node]:
    """What the only reader multiplies or adds, if it has the shape of the axes; the last node."""
    value = node.outputs[0]
    reader = only_reader(value, op_type)
    other = other_input(reader, value) if reader is not None else None
    if reader is None or other is None or other is value:
        return None, node
    shape = ctx.shape(other)
    if shape is None or len(shape) < len(normal):
        return None, node
    leading, own = shape[: len(shape) - len(normal)], shape[len(shape) - len(normal) :]
    array = ctx.constant(other)
    if own != normal or any(dim != Dim.of(1) for dim in leading):
        return None, node
    if leading and array is None:
        return None, node
    if leading and array is not None:
        if len(shape) > (ctx.rank(value) or 0):
            return None, node
        other = ctx.new_constant(array.reshape(array.shape[len(leading) :]), f"{other.name}/row")
    return other, reader


recognise_normalization = Pass(
    name="recognise_normalization", run=lambda ctx: ctx.each(("Div", "Mul"), _attempt)
)
