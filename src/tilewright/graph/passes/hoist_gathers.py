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
    by_row = [_has_rows(ctx, value, above.outputs[0]) for value in above.inputs]
    if None in by_row:
        return Refused(reason="an operand has neither one number nor a row for each row")
    inputs = [
        ctx.new_node("Gather", [value, node.inputs[1]], before=node).outputs[0] if rows else value
        for value, rows in zip(above.inputs, by_row, strict=True)
    ]
    ctx.replace(node, [above], above.op_type, inputs, above.attributes)
    return f"before {above.op_type}"


def _has_rows(ctx: PassContext, value: ir.Value | None, table: ir.Value) -> bool | None:
    """Whether an operand has a row for each row (True) or one number (False); None for others."""
    own, whole = ctx.shape(value), ctx.shape(table)
    if own == ():
        return False
    if own is None or whole is None or len(own) != len(whole) or own[0] != whole[0]:
        return None
    return True


def _from_table(ctx: PassContext, node: ir.Node) -> bool:
    """Whether constants alone determine the result."""
    for value in node.inputs:
        if ctx.constant(value) is not None:
            continue
        inner = maker(value, "Cast", "Mul", "Add", "Sub", "Div", graph=node.graph)
        if inner is None or not _from_table(ctx, inner):
            return False
    return True


def _run(ctx: PassContext) -> None:
    # A lookup moves past one operator at a time.
    while True:
        edits = ctx.changes
        ctx.each(("Gather",), _attempt)
        if ctx.changes == edits:
            return


hoist_gathers = Pass(name="hoist_gathers", run=_run)
