"""Recognise Softmax from its arithmetic.

    e = Exp(x - ReduceMax(x, axis)); e / ReduceSum(e, axis)  ->  Softmax(x, axis)
    Reshape(Softmax(Flatten(x, rank - 1)), Shape(x))         ->  Softmax(x)    (or LogSoftmax)
Requires: one and the same axis, kept by both reductions; nothing else reads in between. For the
    second form, which old operator sets ask for: a known rank, the shape of ``x`` restored.
Guarantees: NaN and Inf as before: a row of -Inf, or with +Inf, is NaN in both.
Not here: exponentials without the maximum, which overflow where Softmax does not.
"""

from __future__ import annotations

import onnx_ir as ir

from tilewright.graph.passes.base import Outcome, Pass, PassContext, Refused, attribute, enclosed
from tilewright.graph.passes.match import maker, reduced_axes, same_shape


def _attempt(ctx: PassContext, node: ir.Node) -> Outcome:
    graph = node.graph
    exponential = maker(node.inputs[0], "Exp", graph=graph)
    total = maker(node.inputs[1], "ReduceSum", graph=graph)
    if exponential is None or total is None or total.inputs[0] is not node.inputs[0]:
        return None
    shifted = maker(exponential.inputs[0], "Sub", graph=graph)
    highest = maker(shifted.inputs[1], "ReduceMax", graph=graph) if shifted is not None else None
    if shifted is None or highest is None or highest.inputs[0] is not shifted.inputs[0]:
        return Refused(reason="the exponentials are not taken relative to the row's maximum")
    x = shifted.inputs[0]
    rank = ctx.rank(x)
    axes = reduced_axes(ctx, total, rank)
    if x is None or axes is None or axes != reduced_axes(ctx, highest, rank):
        return Refused(reason="sum and maximum are not over the same kept axes")
    if len(axes) != 1:
        return Refused(reason=f"over {len(axes)} axes")
    inside = [exponential, total, shifted, highest]
    refused = enclosed(inside, node)
    if refused is not None:
        return refused
    axis = axes[0] - rank if rank is not None and axes[0] >= 0 else axes[0]
    ctx.replace(node, inside, "Softmax", [x], {"axis": axis})
    return f"Softmax over axis {axis}"


def _of_rows(ctx: PassContext, node: ir.Node) -> Outcome:
    """``node`` restores the shape of a Softmax over rows."""
    softmax = maker(node.inputs[0], "Softmax", "LogSoftmax", graph=node.graph)
    flatten = maker(softmax.inputs[0], "Flatten", graph=node.graph) if softmax is not None else None
    if softmax is None or flatten is None or flatten.inputs[0] is None:
        return None
    if attribute(softmax, "axis", -1) not in (-1, 1):
        return None
    x = flatten.inputs[0]
    rank, axis = ctx.rank(x), attribute(flatten, "axis", 1)
    if rank is None or rank == 0:
        return Refused(reason="the rank is unknown")
    if axis % rank != rank - 1 or axis == rank:
        return Refused(reason=f"it runs over the axes from {axis} on, of {rank}")
    inside = [softmax, flatten]
    refused = enclosed(inside, node) or same_shape(ctx, x, node.outputs[0])
    if refused is not None:
        return refused
    info = ctx.info().nodes.get(node.name or "")
    if info is None or info.bindings:
        return Refused(reason="the shape is restored only if a check at run time holds")
    ctx.replace(node, inside, softmax.op_type, [x], {"axis": -1})
    return f"{softmax.op_type} over the last axis"


def _run(ctx: PassContext) -> None:
    ctx.each(("Div",), _attempt)
    ctx.each(("Reshape",), _of_rows)


recognise_softmax = Pass(name="recognise_softmax", run=_run)
