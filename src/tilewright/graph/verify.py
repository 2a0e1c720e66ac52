"""Check that a graph is well formed; run after every pass.

Input -> Output: a model -> nothing, or ``InvalidModel`` with the node and ten lines around it.
Guarantees: single assignment, names unique and never empty, each value defined before its use and
in a graph around it, no cycles, known element types, outputs that exist, consistent weights.
Not here: operators and their arity (check_nodes), shapes (graph.shapes).
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from tilewright.core import dtypes
from tilewright.core.errors import InvalidModel
from tilewright.graph.walk import all_graphs, node_label, subgraphs

_CONTEXT_LINES = 10
_LOOP = "break the loop; recurrent state belongs into Loop, Scan or an RNN operator"


def sort_nodes(model: ir.Model, *, file: str | None = None) -> None:
    """Brings all nodes into topological order, keeping the given order where it can.

    Raises:
        InvalidModel: nodes depend on each other in a circle.
    """
    if all(_is_sorted(graph) for graph in all_graphs(model.graph)):
        return
    try:
        model.graph.sort()
    except ValueError as error:
        circle = _find_circle(model.graph)
        raise InvalidModel(
            "nodes depend on each other in a circle: " + " -> ".join(circle),
            file=file,
            node=circle[0] if circle else None,
            remedy=_LOOP,
        ) from error


def _is_sorted(graph: ir.Graph) -> bool:
    done: set[ir.Node] = set()
    for node in graph:
        if any(
            value.producer() is not None
            and value.producer() not in done
            and value.producer().graph is graph  # type: ignore[union-attr]
            for value in _reads(node)
        ):
            return False
        done.add(node)
    return True


def _reads(node: ir.Node) -> Iterable[ir.Value]:
    """Values that a node and its sub-graphs read."""
    for value in node.inputs:
        if value is not None:
            yield value
    for graph in subgraphs(node):
        for inner in graph:
            yield from _reads(inner)
        yield from graph.outputs


def _find_circle(graph: ir.Graph) -> list[str]:
    for inner in all_graphs(graph):
        nodes = set(inner)
        before = {
            node: [p for v in _reads(node) if (p := v.producer()) is not None and p in nodes]
            for node in inner
        }
        waiting = dict(before)
        changed = True
        while changed:
            ready = [n for n, needs in waiting.items() if not any(p in waiting for p in needs)]
            for node in ready:
                del waiting[node]
            changed = bool(ready)
        if waiting:
            return _follow(next(iter(waiting)), before, waiting.keys())
    return []


def _follow(
    start: ir.Node, before: dict[ir.Node, list[ir.Node]], inside: Iterable[ir.Node]
) -> list[str]:
    members, path, node = set(inside), [start], start
    while True:
        node = next(p for p in before[node] if p in members)
        if node in path:
            circle = [*path[path.index(node) :], node]
            return [node_label(member) for member in reversed(circle)][:12]
        path.append(node)


def verify(model: ir.Model, *, file: str | None = None, after: str = "import") -> None:
    """Checks a model.

    Args:
        model: the model, after import or after a pass.
        file: the model's name in messages.
        after: the pass to blame.

    Raises:
        InvalidModel: the graph is not well formed.
    """
    _Verifier(file=file, after=after).graph(model.graph, set(), top=True)


class _Verifier:
    def __init__(self, *, file: str | None, after: str) -> None:
        self.file, self.after = file, after
        self.value_names: set[str] = set()
        self.node_names: set[str] = set()

    def fail(self, message: str, graph: ir.Graph, node: ir.Node | None = None) -> None:
        raise InvalidModel(
            f"{message} (found after {self.after})\n{_context(graph, node)}",
            file=self.file,
            node=node_label(node) if node is not None else None,
            remedy="export the model again"
            if self.after == "import"
            else f"report this as a fault of the pass {self.after}",
        )

    def graph(self, graph: ir.Graph, outer: set[ir.Value], *, top: bool = False) -> None:
        known = set(outer)
        for value in graph.inputs:
            self.define(value, known, graph, None)
            if top:
                self.dtype(value, graph)
        for name, value in graph.initializers.items():
            if not value.is_graph_input():
                self.define(value, known, graph, None)
            self.weight(name, value, graph)
        for node in graph:
            self.node(node, known, graph)
        if top and not graph.outputs:
            self.fail("the graph has no outputs", graph)
        for value in graph.outputs:
            if value not in known or (value in outer and value not in graph.inputs):
                self.fail(f"output {value.name!r} is not computed in its graph", graph)

    def node(self, node: ir.Node, known: set[ir.Value], graph: ir.Graph) -> None:
        if not node.name or node.name in self.node_names:
            self.fail(f"node name {node.name!r} is empty or used twice", graph, node)
        self.node_names.add(node.name or "")
        for value in node.inputs:
            if value is not None and value not in known:
                self.fail(
                    f"reads {value.name!r} before it is defined, or from a graph not around it",
                    graph,
                    node,
                )
        for inner in subgraphs(node):
            self.graph(inner, known)
        for value in node.outputs:
            if value.name or value.uses():
                self.define(value, known, graph, node)

    def define(
        self, value: ir.Value, known: set[ir.Value], graph: ir.Graph, node: ir.Node | None
    ) -> None:
        if not value.name:
            self.fail("a value has no name", graph, node)
        if value.name in self.value_names or value in known:
            self.fail(f"value {value.name!r} is defined twice", graph, node)
        self.value_names.add(value.name or "")
        known.add(value)

    def dtype(self, value: ir.Value, graph: ir.Graph) -> None:
        kind = value.type
        while isinstance(kind, ir.SequenceType | ir.OptionalType):
            kind = kind.elem_type
        if kind is None or int(kind.dtype) not in dtypes.BY_CODE:
            self.fail(f"input {value.name!r} has no known element type", graph)

    def weight(self, name: str, value: ir.Value, graph: ir.Graph) -> None:
        tensor = value.const_value
        if tensor is None or name != value.name:
            self.fail(f"initialiser {name!r} has no value or another name", graph)
        elif value.dtype is not None and value.dtype != tensor.dtype:
            self.fail(f"initialiser {name!r} is {tensor.dtype}, declared {value.dtype}", graph)
        elif int(tensor.dtype) not in dtypes.BY_CODE:
            self.fail(f"initialiser {name!r} has the unknown type {tensor.dtype}", graph)


def _context(graph: ir.Graph, node: ir.Node | None) -> str:
    """The node and what is around it, one line a node."""
    nodes = list(graph)
    at = nodes.index(node) if node is not None else 0
    first = max(0, at - _CONTEXT_LINES)
    return "\n".join(
        f"{'>' if other is node else ' '} {_line(other)}"
        for other in nodes[first : at + _CONTEXT_LINES + 1]
    )


def _line(node: ir.Node) -> str:
    outputs = ", ".join(str(value.name) for value in node.outputs)
    inputs = ", ".join("_" if value is None else str(value.name) for value in node.inputs)
    return f"{outputs} = {node.op_type}({inputs})"[:160]
