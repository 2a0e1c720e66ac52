"""Walk a model's graphs and nodes, and name what has no name.

Input -> Output: an ``onnx_ir`` graph -> its nodes and sub-graphs in a fixed order; unique names.
Guarantees (``unique_names``): every value and node has a name that is used once in the whole model,
graph inputs and outputs keep theirs.
Not here: rewriting.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs in a node's attributes, in order of appearance."""
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type is ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type is ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def all_graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """A graph and all graphs inside it, outer ones first."""
    yield graph
    for node in graph:
        for inner in subgraphs(node):
            yield from all_graphs(inner)


def all_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """The nodes of a graph and of all graphs inside it."""
    for inner in all_graphs(graph):
        yield from inner


def own_values(graph: ir.Graph) -> Iterator[ir.Value]:
    """The values that a graph defines itself: inputs, initialisers, results of its nodes."""
    yield from graph.inputs
    for value in graph.initializers.values():
        if not value.is_graph_input():
            yield value
    for node in graph:
        yield from node.outputs


def node_label(node: ir.Node) -> str:
    """What messages call a node."""
    where = f"{node.domain}." if node.domain else ""
    return f"{node.name or '?'} ({where}{node.op_type})"


class Names:
    """Hands out names that are not in use."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._counts: dict[str, int] = {}

    def claim(self, wanted: str) -> str:
        """Returns ``wanted``, or ``wanted_1``, ``wanted_2`` ... if it is taken."""
        name = wanted
        while name in self._taken:
            self._counts[wanted] = self._counts.get(wanted, 0) + 1
            name = f"{wanted}_{self._counts[wanted]}"
        self._taken.add(name)
        return name

    @classmethod
    def of(cls, model: ir.Model) -> Names:
        """All value and node names of a model."""
        names = cls()
        for graph in all_graphs(model.graph):
            names._taken.update(value.name for value in own_values(graph) if value.name)
            names._taken.update(node.name for node in graph if node.name)
        return names


def unique_names(model: ir.Model) -> None:
    """Gives every value and every node a name of its own, in place."""
    values, nodes = Names(), Names()
    for graph in all_graphs(model.graph):
        # Interface names first: an inner value must not take the name of a model output.
        if graph is model.graph:
            for value in {id(v): v for v in (*graph.inputs, *graph.outputs)}.values():
                values.claim(value.name or "")
    for graph in all_graphs(model.graph):
        fixed = {id(v) for v in (*graph.inputs, *graph.outputs)} if graph is model.graph else set()
        for value in list(own_values(graph)):
            if id(value) in fixed or (value.name == "" and not value.uses()):
                continue
            name = values.claim(value.name or "value")
            if name != value.name:
                value.name = name
        for node in graph:
            node.name = nodes.claim(node.name or node.op_type)
