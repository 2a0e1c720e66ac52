"""Look rows up before they are converted or scaled.

    Gather(Cast(w), i)  ->  Cast(Gather(w, i));    Gather(w * c, i)  ->  Gather(w, i) * c
    Gather(w * r, i)    ->  Gather(w, i) * Gather(r, i)    with one number a row
Requires: a constant table ``w``; axis 0; nobody else reads the converted table.
Guarantees: each element is computed from the same numbers in the same way.
Not here: tables that constant folding has converted already, because they are small.
"""

from __future__ import annotations

import onnx_ir as ir

from tilewright.graph.passes.base import Outcome, Pass, PassContext, Refused, attribute, enclosed
from tilewright.graph.passes.match import maker


def _attempt(ctx: PassContext, node: ir.Node) -> Outcome:
    above = maker(node.inputs[0], "Cast", "Mul", "Add", "Sub", "Div", graph=node.graph)
    if above is None or not _from_table(ctx, above):
        return None
    refused = enclosed([above], node)
    if refused is not None:
        return refused
    if attribute(node, "axis", 0) != 0:
        return Refused(reason="it does not look up rows")
    indices, inputs = node.inputs[1], []
    table_rank = ctx.rank(above.outputs[0])
    for value in above.inputs:
        array = ctx.constant(value)
        if array is not None and array.ndim == 0:
            inputs.append(value)
        elif ctx.rank(value) == table_rank and _rows(ctx, value) == _rows(ctx, above.outputs[0]):
            inputs.append(ctx.new_node("Gather", [value, indices], before=node).outputs[0])
        else:
            return Refused(reason="an operand has neither one number nor a row for each row")
    ctx.replace(node, [above], above.op_type, inputs, above.attributes)
    return f"before {above.op_type}"


def _from_table(ctx: PassContext, node: ir.Node) -> bool:
    """Whether constants alone determine the result."""
    for value in node.inputs:
        if ctx.constant(value) is not None:
            continue
        inner = maker(value, "Cast", "Mul", "Add", "Sub", "Div", graph=node.graph)
        if inner is None or not _from_table(ctx, inner):
            return False
    return True


def _rows(ctx: PassContext, value: ir.Value | None) -> object:
    shape = ctx.shape(value)
    return shape[0] if shape else None


def _run(ctx: PassContext) -> None:
    # A lookup moves past one operator at a time.
    while True:
        edits = ctx.changes
        ctx.each(("Gather",), _attempt)
        if ctx.changes == edits:
            return


hoist_gathers = Pass(name="hoist_gathers", run=_run)
