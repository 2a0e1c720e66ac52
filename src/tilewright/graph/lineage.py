"""Where the nodes of an imported graph went.

Input -> Output: the graph as it was read, a look at it after every pass, and its last form ->
for each source node: the last nodes that compute it, or the pass that left none.
Method: a node that is still there computes itself. A value's name denotes the same value for as
long as it exists, so the nodes between values that both graphs have are replaced by the nodes
between the same values in the last form.
Requires: passes keep to that (passes.base). A pass whose name begins with one of ``REMOVING`` has
no node stand for the ones that it takes away.
Not here: kernels (compiler.placement).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from tilewright.graph.view import GraphView, NodeView
from tilewright.graph.walk import all_nodes

REMOVING = ("eliminate_", "cancel_", "simplify_", "fold_constants", "inline_")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceNode:
    """A node as it was read."""

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What became of a source node.

    Attributes:
        node: as it was read.
        computed_by: names of the last nodes that stand for it; none if it is gone.
        gone_in: the pass in which the node itself went; empty while it is there.
        is_constant: its results are constants of the last form.
    """

    node: SourceNode
    computed_by: tuple[str, ...]
    gone_in: str = ""
    is_constant: bool = False


@dataclass(slots=True)
class Lineage:
    """The nodes of a model from the moment that it was read."""

    source: tuple[SourceNode, ...]
    gone_in: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(model: ir.Model) -> Lineage:
        """Starts with the nodes of a model, those of sub-graphs included."""
        return Lineage(tuple(_source(node) for node in all_nodes(model.graph)))

    def saw(self, model: ir.Model, stage: str) -> None:
        """Notes which nodes a stage removed."""
        present = {node.name for node in all_nodes(model.graph)}
        for node in self.source:
            if node.name not in present:
                self.gone_in.setdefault(node.name, stage)

    def origins(self, last: GraphView) -> list[Origin]:
        """What became of each source node."""
        return _Trace(self.source, last, self.gone_in).origins()


def _source(node: ir.Node) -> SourceNode:
    inputs = tuple(value.name for value in node.inputs if value is not None and value.name)
    return SourceNode(
        name=node.name or "",
        op_type=f"{node.domain}.{node.op_type}" if node.domain else node.op_type,
        inputs=inputs,
        outputs=tuple(value.name for value in node.outputs if value.name),
    )


class _Trace:
    """The comparison of two forms of a graph."""

    def __init__(
        self, source: Sequence[SourceNode], last: GraphView, gone_in: Mapping[str, str]
    ) -> None:
        self._source = source
        self._gone_in = gone_in
        self._names = {node.name for node in source}
        self._last = {node.name: node for node in nodes_of(last)}
        self._made_by = {
            name: node for node in self._last.values() for name in node.outputs if name
        }
        self._constants = set(last.initializers)
        self._kept = self._constants | set(self._made_by) | set(_inputs_of(last))
        self._came_from = {name: node for node in source for name in node.outputs}
        self._order = {name: number for number, name in enumerate(self._last)}

    def origins(self) -> list[Origin]:
        computed = self._computed()
        result = []
        for node in self._source:
            stage = "" if node.name in self._last else self._gone_in.get(node.name, "")
            names: Sequence[str] = (node.name,)
            if node.name not in self._last:
                names = sorted(computed.get(node.name, ()), key=self._order.__getitem__)
                if stage.startswith(REMOVING) and not self._is_replaced(node):
                    names = ()
            constant = not names and any(name in self._constants for name in node.outputs)
            result.append(
                Origin(node=node, computed_by=tuple(names), gone_in=stage, is_constant=constant)
            )
        return result

    def _is_replaced(self, node: SourceNode) -> bool:
        """Whether a new node gives one of its results; a source node only took over its name."""
        makers = [self._made_by[name].name for name in node.outputs if name in self._made_by]
        return any(name not in self._names for name in makers)

    def _computed(self) -> dict[str, set[str]]:
        """Last nodes by source node, where the source node itself is gone."""
        result: dict[str, set[str]] = {}
        for value, maker in self._made_by.items():
            root = self._came_from.get(value)
            if root is None or root.name == maker.name:
                continue
            stands_for = self._new_nodes(maker)
            for name in self._old_nodes(root):
                if name not in self._last:
                    result.setdefault(name, set()).update(stands_for)
        return result

    def _old_nodes(self, root: SourceNode) -> set[str]:
        """Source nodes between ``root`` and values that both forms have."""
        found = {root.name}
        waiting = [root]
        while waiting:
            for name in waiting.pop().inputs:
                maker = self._came_from.get(name)
                if maker is not None and name not in self._kept and maker.name not in found:
                    found.add(maker.name)
                    waiting.append(maker)
        return found

    def _new_nodes(self, root: NodeView) -> set[str]:
        """Last nodes between ``root`` and values that both forms have."""
        found = {root.name}
        waiting = [root]
        while waiting:
            for name in waiting.pop().inputs:
                maker = self._made_by.get(name or "")
                if maker is not None and name not in self._came_from and maker.name not in found:
                    found.add(maker.name)
                    waiting.append(maker)
        return found


def nodes_of(graph: GraphView) -> Iterator[NodeView]:
    """The nodes of a graph and of all graphs inside it."""
    for node in graph.nodes:
        yield node
        for value in node.attributes.values():
            for inner in value if isinstance(value, tuple) else (value,):
                if isinstance(inner, GraphView):
                    yield from nodes_of(inner)


def _inputs_of(graph: GraphView) -> Iterator[str]:
    yield from (value.name for value in graph.inputs)
    for node in graph.nodes:
        for value in node.attributes.values():
            for inner in value if isinstance(value, tuple) else (value,):
                if isinstance(inner, GraphView):
                    yield from _inputs_of(inner)
