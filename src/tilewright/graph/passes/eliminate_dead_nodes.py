"""Remove what no output needs.

    y = f(x), nobody reads y       ->  (nothing)
    y, mask = Dropout(x), no mask  ->  y, _ = Dropout(x)
Guarantees: readers in sub-graphs and graph outputs count as readers; graph inputs stay; only
outputs that the operator declares optional become absent; unread constants go too.
Not here: unread results of If, Loop and Scan, whose positions carry meaning.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from tilewright.graph.check_nodes import schema
from tilewright.graph.passes.base import Pass, PassContext
from tilewright.graph.walk import node_label, subgraphs

_OPTIONAL = onnx.defs.OpSchema.FormalParameterOption.Optional


def _run(ctx: PassContext) -> None:
    _clean(ctx, ctx.model.graph)
    for graph in ctx.graphs():
        for name, value in list(graph.initializers.items()):
            if value.is_graph_input() or value.is_graph_output() or value.uses():
                continue
            del graph.initializers[name]
            ctx.did(name, "constant without readers removed")


eliminate_dead_nodes = Pass(name="eliminate_dead_nodes", run=_run)


def _clean(ctx: PassContext, graph: ir.Graph) -> None:
    """Consumers come before producers, and a node before the nodes of its sub-graphs."""
    for node in reversed(list(graph)):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            label = node_label(node)
            ctx.remove([node])
            ctx.did(label, "node without readers removed")
            continue
        _drop_optional_outputs(ctx, node)
        for inner in subgraphs(node):
            _clean(ctx, inner)


def _drop_optional_outputs(ctx: PassContext, node: ir.Node) -> None:
    if len(node.outputs) < 2:
        return
    definition = schema(node.domain, node.op_type, node.version or 1)
    if definition is None:
        return
    for value, formal in zip(node.outputs, definition.outputs, strict=False):
        unread = value.name and not value.uses() and not value.is_graph_output()
        if unread and formal.option == _OPTIONAL:
            ctx.did(node_label(node), f"optional output {value.name} without readers dropped")
            value.name = ""
