"""Replace an If whose condition is known by the branch that is taken.

    y = If(true, then, else)  ->  the nodes of ``then``, in the graph around
Requires: a constant condition of one element.
Guarantees: names stay unique; the other branch goes, with what only it read.
Not here: conditions that depend on run-time sizes.
"""

from __future__ import annotations

import onnx_ir as ir

from tilewright.graph.passes.base import Pass, PassContext, Refused
from tilewright.graph.walk import node_label


def _run(ctx: PassContext) -> None:
    _in_graph(ctx, ctx.model.graph)


inline_branches = Pass(name="inline_branches", run=_run)


def _in_graph(ctx: PassContext, graph: ir.Graph) -> None:
    """Outer conditions first: a branch that is dropped needs no look."""
    waiting = list(graph)[::-1]
    while waiting:
        node = waiting.pop()
        if node.graph is not graph:
            continue
        if node.op_type == "If" and not node.domain and (moved := _inline(ctx, node)) is not None:
            waiting.extend(reversed(moved))
            continue
        for attribute in node.attributes.values():
            if attribute.type is ir.AttributeType.GRAPH:
                _in_graph(ctx, attribute.as_graph())


def _inline(ctx: PassContext, node: ir.Node) -> list[ir.Node] | None:
    condition = ctx.constant(node.inputs[0])
    if condition is None:
        return None
    label = node_label(node)
    if condition.size != 1:
        ctx.refuse(label, Refused(reason=f"the condition has {condition.size} elements"))
        return None
    taken = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
    branch, graph = node.attributes[taken].as_graph(), node.graph
    if graph is None:
        return None
    nodes, results = list(branch), list(branch.outputs)
    weights = [value for value in branch.initializers.values() if not value.is_graph_input()]
    branch.outputs.clear()
    branch.remove(nodes)
    graph.insert_before(node, nodes)
    for value in weights:
        branch.initializers.pop(value.name or "")
        ctx.model.graph.register_initializer(value)
    for old, new in zip(node.outputs, results, strict=True):
        if not ctx.redirect(old, new):
            identity = ctx.new_node("Identity", [new], before=node)
            ctx.adopt(old, identity.outputs[0])
    ctx.remove([node])
    ctx.did(label, f"{taken} inlined, {len(nodes)} nodes")
    return nodes
