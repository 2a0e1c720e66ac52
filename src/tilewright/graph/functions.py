"""Replace calls of functions by their bodies.

Call(f, x) -> the nodes of f with x for its input, its attributes by reference filled in
Input -> Output: a model with model-local functions -> the same model without any.
Guarantees: nested functions, sub-graphs in bodies and a body's own operator versions are kept;
functions that call themselves and expansions beyond a million nodes are refused.
Not here: unique names (walk.unique_names, run afterwards).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from tilewright.core.errors import InvalidModel
from tilewright.graph.walk import all_nodes, node_label, subgraphs

MAX_NODES = 1_000_000
Identifier = tuple[str, str, str]


def inline_functions(model: ir.Model, *, file: str | None = None) -> None:
    """Inlines every call of a model-local function and drops the functions, in place.

    Raises:
        InvalidModel: functions call each other in a circle, get the wrong number of arguments, or
            expand beyond a million nodes.
    """
    if not model.functions:
        return
    _check_size(model, file)
    _inline_in(model.graph, model.functions, file)
    model.functions.clear()


def _check_size(model: ir.Model, file: str | None) -> None:
    """Counts the nodes after expansion without expanding; finds circles on the way."""
    sizes: dict[Identifier, int] = {}
    path: list[Identifier] = []

    def size(identifier: Identifier) -> int:
        if identifier in path or len(path) > 200:
            circle = [
                name for _, name, _ in path[path.index(identifier) if identifier in path else 0 :]
            ]
            raise InvalidModel(
                "functions call each other in a circle or too deeply: "
                + " -> ".join([*circle[:12], identifier[1]]),
                file=file,
                node=identifier[1],
                remedy="ONNX functions must not be recursive; use Loop",
            )
        if identifier not in sizes:
            path.append(identifier)
            sizes[identifier] = total(all_nodes(model.functions[identifier].graph))
            path.pop()
        return sizes[identifier]

    def total(nodes: Iterable[ir.Node]) -> int:
        count = 0
        for node in nodes:
            identifier = node.op_identifier()
            count += size(identifier) if identifier in model.functions else 1
        return count

    for identifier in model.functions:
        size(identifier)
    expanded = total(all_nodes(model.graph))
    if expanded > MAX_NODES:
        raise InvalidModel(
            f"the functions expand to {expanded} nodes, more than {MAX_NODES}",
            file=file,
            remedy="split the model",
        )


def _inline_in(
    graph: ir.Graph, functions: Mapping[Identifier, ir.Function], file: str | None
) -> None:
    """Inlines the calls in one graph; bodies may hold further calls, which follow at once."""
    waiting = list(graph)
    while waiting:
        node = waiting.pop()
        function = functions.get(node.op_identifier())
        if function is not None:
            waiting.extend(inline_call(node, function, file=file))
            continue
        for inner in subgraphs(node):
            _inline_in(inner, functions, file)


def inline_call(node: ir.Node, function: ir.Function, *, file: str | None = None) -> list[ir.Node]:
    """Replaces one node by a function's body; returns the nodes put in its place.

    Raises:
        InvalidModel: more arguments or results than the function has.
    """
    if len(node.inputs) > len(function.inputs) or len(node.outputs) > len(function.outputs):
        raise InvalidModel(
            f"{node.op_type} got {len(node.inputs)} inputs and {len(node.outputs)} outputs; "
            f"the function has {len(function.inputs)} and {len(function.outputs)}",
            file=file,
            node=node_label(node),
            remedy="call the function as it is defined",
        )
    given = list(node.inputs) + [None] * (len(function.inputs) - len(node.inputs))
    values: dict[ir.Value, ir.Value | None] = dict(zip(function.inputs, given, strict=True))
    attributes = {
        name: attribute
        for name, attribute in function.attributes.items()
        if attribute.value is not None
    }
    attributes.update(node.attributes)
    prefix = node.name or node.op_type
    added = [_clone_node(inner, values, attributes, prefix) for inner in function]
    graph = node.graph
    if graph is None:
        raise InvalidModel("a call outside of any graph", file=file, node=node_label(node))
    graph.insert_before(node, added)
    added += _hand_over(node, [values.get(value) for value in function.outputs], graph)
    graph.remove(node)
    return added


def _hand_over(node: ir.Node, results: list[ir.Value | None], graph: ir.Graph) -> list[ir.Node]:
    """Makes users of a call read the body's results, under the old names."""
    identities: list[ir.Node] = []
    handed: set[ir.Value] = set()
    inside = {id(value) for value in node.inputs}
    for old, new in zip(node.outputs, results, strict=False):
        name = old.name
        if not name and not old.uses():
            continue
        if new is None or id(new) in inside or new in handed or new.producer() is None:
            identity = ir.Node("", "Identity", [new], num_outputs=1, version=13)
            identity.name = f"{node.name}/Identity"
            graph.insert_before(node, identity)
            identities.append(identity)
            new = identity.outputs[0]
        handed.add(new)
        new.name = name
        new.type = new.type or old.type
        new.shape = new.shape or old.shape
        old.name = None if not old.is_initializer() else name
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    return identities


def _clone_node(
    node: ir.Node,
    values: dict[ir.Value, ir.Value | None],
    attributes: Mapping[str, ir.Attr],
    prefix: str,
) -> ir.Node:
    outputs = []
    for value in node.outputs:
        name = f"{prefix}/{value.name}" if value.name else ""
        outputs.append(ir.Value(name=name, type=value.type, shape=value.shape))
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
        name=f"{prefix}/{node.name or node.op_type}",
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
            graph = _clone_graph(given.as_graph(), {}, {}, prefix)
            return ir.AttrGraph(attribute.name, graph)
        return ir.Attr(attribute.name, given.type, given.value)
    if attribute.type is ir.AttributeType.GRAPH:
        graph = _clone_graph(attribute.as_graph(), values, attributes, prefix)
        return ir.AttrGraph(attribute.name, graph)
    if attribute.type is ir.AttributeType.GRAPHS:
        graphs = [_clone_graph(g, values, attributes, prefix) for g in attribute.as_graphs()]
        return ir.AttrGraphs(attribute.name, graphs)
    return attribute


def _clone_graph(
    graph: ir.Graph,
    outer: Mapping[ir.Value, ir.Value | None],
    attributes: Mapping[str, ir.Attr],
    prefix: str,
) -> ir.Graph:
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
    nodes = [_clone_node(node, values, attributes, prefix) for node in graph]
    outputs = []
    for value in graph.outputs:
        new = values.get(value, value)
        if new is not None:
            outputs.append(new)
    return ir.Graph(inputs, outputs, nodes=nodes, initializers=weights, name=graph.name)
