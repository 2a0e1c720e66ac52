"""Copy nodes and graphs, with values and attributes replaced on the way.

Input -> Output: nodes of one graph -> new nodes that read other values, for another graph.
Guarantees: the originals are not changed; weights are shared; references to attributes are filled.
Not here: unique names (walk).
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir


def clone_node(
    node: ir.Node,
    values: dict[ir.Value, ir.Value | None],
    attributes: Mapping[str, ir.Attr],
    prefix: str = "",
) -> ir.Node:
    """Copies a node; its outputs are entered into ``values``, names get a prefix."""
    outputs = [
        ir.Value(name=_prefixed(prefix, value.name or ""), type=value.type, shape=value.shape)
        for value in node.outputs
    ]
    cloned = ir.Node(
        node.domain,
        node.op_type,
        [values.get(value, value) if value is not None else None for value in node.inputs],
        [
            attribute
            for old in node.attributes.values()
            if (attribute := _clone_attribute(old, values, attributes, prefix)) is not None
        ],
        overload=node.overload,
        outputs=outputs,
        version=node.version,
        name=_prefixed(prefix, node.name or node.op_type),
    )
    values.update(zip(node.outputs, outputs, strict=True))
    return cloned


def _clone_attribute(
    attribute: ir.Attr,
    values: dict[ir.Value, ir.Value | None],
    attributes: Mapping[str, ir.Attr],
    prefix: str,
) -> ir.Attr | None:
    if attribute.is_ref():
        given = attributes.get(attribute.ref_attr_name or "")
        if given is None or given.value is None:
            return None  # an optional attribute of the call that was not given
        if given.type is ir.AttributeType.GRAPH:
            graph = clone_graph(given.as_graph(), {}, {}, prefix)
            return ir.AttrGraph(attribute.name, graph)
        return ir.Attr(attribute.name, given.type, given.value)
    if attribute.type is ir.AttributeType.GRAPH:
        graph = clone_graph(attribute.as_graph(), values, attributes, prefix)
        return ir.AttrGraph(attribute.name, graph)
    if attribute.type is ir.AttributeType.GRAPHS:
        graphs = [clone_graph(g, values, attributes, prefix) for g in attribute.as_graphs()]
        return ir.AttrGraphs(attribute.name, graphs)
    return attribute


def clone_graph(
    graph: ir.Graph,
    outer: Mapping[ir.Value, ir.Value | None],
    attributes: Mapping[str, ir.Attr],
    prefix: str = "",
) -> ir.Graph:
    """Copies a graph; values of the graphs around it are looked up in ``outer``."""
    values = dict(outer)
    inputs = []
    for value in graph.inputs:
        inputs.append(ir.Value(name=value.name, type=value.type, shape=value.shape))
        values[value] = inputs[-1]
    weights = []
    for value in graph.initializers.values():
        if value.is_graph_input():
            continue
        weights.append(
            ir.Value(
                name=value.name, type=value.type, shape=value.shape, const_value=value.const_value
            )
        )
        values[value] = weights[-1]
    nodes = [clone_node(node, values, attributes, prefix) for node in graph]
    outputs = []
    for value in graph.outputs:
        new = values.get(value, value)
        if new is not None:
            outputs.append(new)
    return ir.Graph(inputs, outputs, nodes=nodes, initializers=weights, name=graph.name)


def _prefixed(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix and name else name
