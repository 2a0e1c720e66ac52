"""Make one transposition, or none, of two in a row.

    Transpose(Transpose(x, p), q)  ->  Transpose(x, r) with r[i] = p[q[i]]; x if r keeps the order
Requires: a permutation in full, or a known rank.
Guarantees: the first one stays for its other readers.
Not here: moving transpositions past other operators.
"""

from __future__ import annotations

import onnx_ir as ir

from tilewright.graph.passes.base import Outcome, Pass, PassContext, Refused, attribute
from tilewright.graph.passes.match import maker


def _attempt(ctx: PassContext, node: ir.Node) -> Outcome:
    first = maker(node.inputs[0], "Transpose", graph=node.graph)
    if first is None or first.inputs[0] is None:
        return None
    x = first.inputs[0]
    rank = ctx.rank(x)
    one, two = (attribute(part, "perm") for part in (first, node))
    if one is None and two is None and rank is None:
        return Refused(reason="the rank is unknown")
    rank = len(one) if one is not None else len(two) if two is not None else rank or 0
    backwards = list(range(rank))[::-1]
    one, two = list(one or backwards), list(two or backwards)
    composed = [one[axis] for axis in two]
    output = first.outputs[0]
    unread = [first] if len(output.uses()) == 1 and not output.is_graph_output() else []
    if composed == list(range(rank)):
        ctx.bypass(node, x, unread)
        return "two transpositions cancel"
    ctx.replace(node, unread, "Transpose", [x], {"perm": composed})
    return f"two transpositions become {composed}"


cancel_transposes = Pass(
    name="cancel_transposes", run=lambda ctx: ctx.each(("Transpose",), _attempt)
)
