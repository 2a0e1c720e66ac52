"""Move what follows an If into its branches, where the branches give different ranks.

    y = If(c, a, b); z = f(y)  ->  z = If(c, f(a), f(b))
Requires: a condition that only execution tells; ranks that are known in each branch.
Guarantees: everything after the If that reads its results moves, so that each branch has shapes of
    its own; at most ``MAX_COPIES`` nodes are added to a model.
Not here: folding what the known rank decides (fold_constants, inline_branches).
"""

from __future__ import annotations

import onnx_ir as ir

from tilewright.graph.clone import clone_graph, clone_node
from tilewright.graph.passes.base import Pass, PassContext, Refused
from tilewright.graph.walk import node_label, subgraphs

MAX_COPIES = 2_000
_BRANCHES = ("then_branch", "else_branch")


def _run(ctx: PassContext) -> None:
    copies = 0
    refused: set[ir.Node] = set()
    while True:
        ctx.info(fresh=True)
        node = _find(ctx, refused)
        if node is None:
            return
        tail = _readers(node)
        copies += len(tail)
        if copies > MAX_COPIES:
            reason = f"more than {MAX_COPIES} nodes would be copied"
            ctx.refuse(node_label(node), Refused(reason=reason))
            return
        label = node_label(node)
        refused.add(_sink(ctx, node, tail))
        ctx.did(label, f"{len(tail)} nodes moved into the branches, which have different ranks")


sink_into_branches = Pass(name="sink_into_branches", run=_run)


def _find(ctx: PassContext, done: set[ir.Node]) -> ir.Node | None:
    """The first If, outer graphs first, whose readers would see two ranks."""
    for graph in ctx.graphs():
        for node in graph:
            if node.op_type == "If" and not node.domain and node not in done:
                known = ctx.tensor(node.inputs[0])
                if known is not None and known.content is None and _ranks_differ(ctx, node):
                    return node
    return None


def _ranks_differ(ctx: PassContext, node: ir.Node) -> bool:
    then, other = (node.attributes[name].as_graph().outputs for name in _BRANCHES)
    for result, one, two in zip(node.outputs, then, other, strict=True):
        ranks = ctx.rank(one), ctx.rank(two)
        if result.uses() and None not in ranks and ranks[0] != ranks[1]:
            return True
    return False


def _readers(node: ir.Node) -> list[ir.Node]:
    """The nodes of the same graph that depend on a node's results, in order."""
    tainted = set(node.outputs)
    found: list[ir.Node] = []
    for other in node.graph or ():
        if _reads(other, tainted):
            found.append(other)
            tainted.update(other.outputs)
    return found


def _reads(node: ir.Node, values: set[ir.Value]) -> bool:
    if any(value in values for value in node.inputs if value is not None):
        return True
    return any(
        any(value in values for value in inner.outputs) or any(_reads(n, values) for n in inner)
        for inner in subgraphs(node)
    )


def _sink(ctx: PassContext, node: ir.Node, tail: list[ir.Node]) -> ir.Node:
    """Replaces an If and its readers by one If at the end of their graph; returns that."""
    graph = node.graph
    if graph is None:
        return node
    own = {node, *tail}
    wanted = list(dict.fromkeys(value for value in graph.outputs if value.producer() in own))
    branches = [_branch(ctx, node, name, tail, wanted) for name in _BRANCHES]
    last = graph[-1]
    fresh = ctx.new_node(
        "If",
        [node.inputs[0]],
        {branch.name: branch for branch in branches},
        before=last,
        num_outputs=len(wanted),
    )
    graph.remove(fresh)
    graph.append(fresh)
    for old, new in zip(wanted, fresh.outputs, strict=True):
        ctx.adopt(old, new)
    ctx.remove([*reversed(tail), node])
    return fresh


def _branch(
    ctx: PassContext, node: ir.Node, name: str, tail: list[ir.Node], wanted: list[ir.Value]
) -> ir.Attr:
    """A copy of a branch that goes on with the tail; what was in the branch keeps its names."""
    branch = clone_graph(node.attributes[name].as_graph(), {}, {})
    values: dict[ir.Value, ir.Value | None] = dict(zip(node.outputs, branch.outputs, strict=True))
    copies = [clone_node(reader, values, {}) for reader in tail]
    branch.extend(copies)
    branch.outputs.clear()
    for value in wanted:
        result = values[value]
        if result is not None:
            branch.outputs.append(result)
    for copy in copies:
        _rename(ctx, copy)
    return ir.AttrGraph(name, branch)


def _rename(ctx: PassContext, node: ir.Node) -> None:
    """Gives a copied node, its results and all inside it names of their own."""
    node.name = ctx.names.claim(node.name or node.op_type)
    for value in node.outputs:
        if value.name:
            value.name = ctx.names.claim(value.name)
    for graph in subgraphs(node):
        for value in graph.inputs:
            value.name = ctx.names.claim(value.name or "value")
        for inner in graph:
            _rename(ctx, inner)
