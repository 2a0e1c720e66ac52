"""Compute a graph's values with NumPy, one node after the other.

Input -> Output: ``GraphView`` and feeds -> values by name.
Guarantees: a value is dropped after its last use, so that peak memory is the weights plus what is
alive; sub-graphs see the values around them; inputs and weights are never written.
Not here: the meaning of operators (runtime.reference).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from tilewright.core.errors import (
    InternalError,
    OutOfMemory,
    OutOfRange,
    ShapeMismatch,
    UnsupportedOp,
)
from tilewright.graph.view import GraphView, NodeView, ValueView
from tilewright.runtime.reference import dtypes as reference_dtypes
from tilewright.runtime.reference.registry import OperatorError, Value, evaluate, supported

Feeds = Mapping[str, Any]


def evaluate_graph(
    view: GraphView,
    feeds: Feeds,
    *,
    wide: bool = False,
    keep: Collection[str] | None = None,
) -> dict[str, Value]:
    """Evaluates a graph.

    Args:
        view: the graph, with sorted nodes.
        feeds: an array (a list for a sequence, None for an empty optional) for each graph input.
        wide: compute float16, bfloat16 and float32 in float64; such results are float64.
        keep: names of the values to return, of the outermost graph; by default its outputs.

    Raises:
        ShapeMismatch: a graph input has no feed.
        UnsupportedOp: an operator has no reference.
        OutOfRange: an operator refuses its inputs; the node is named.
        OutOfMemory: a value is too large for this machine; the node is named.
    """
    missing = [value.name for value in view.inputs if value.name not in feeds]
    if missing:
        raise ShapeMismatch(
            f"no value is given for {', '.join(map(repr, missing))}", remedy="feed every input"
        )
    wanted = list(keep) if keep is not None else [value.name for value in view.outputs]
    values: dict[str, Value] = {value.name: _as_value(feeds[value.name]) for value in view.inputs}
    result = _Evaluation(wide=wide).run(view, values, {}, wanted)
    return {name: _raised(value, wide) for name, value in result.items()}


def captured_names(view: GraphView) -> set[str]:
    """The names that a sub-graph reads from the graphs around it."""
    own = {value.name for value in view.inputs} | view.initializers.keys()
    own.update(name for node in view.nodes for name in node.outputs if name)
    used = {name for node in view.nodes for name in names_read(node)}
    used.update(value.name for value in view.outputs)
    return used - own


def names_read(node: NodeView) -> set[str]:
    """The names that a node reads, by itself or in its sub-graphs."""
    names = {name for name in node.inputs if name is not None}
    for graph in _graphs(node):
        names |= captured_names(graph)
    return names


def _graphs(node: NodeView) -> Iterable[GraphView]:
    for attribute in node.attributes.values():
        if isinstance(attribute, GraphView):
            yield attribute
        elif isinstance(attribute, tuple):
            yield from (part for part in attribute if isinstance(part, GraphView))


class _Evaluation:
    """One evaluation; caches when each value of each graph is last used."""

    def __init__(self, *, wide: bool) -> None:
        self.wide = wide
        self._schedules: dict[int, tuple[GraphView, list[list[str]]]] = {}

    def run(
        self,
        view: GraphView,
        values: dict[str, Value],
        outer: Mapping[str, Value],
        wanted: list[str],
    ) -> dict[str, Value]:
        """Runs the nodes; ``values`` holds this graph's values and is consumed."""
        kept = {name: values[name] for name in wanted if name in values}
        wanted_set = set(wanted)
        for node, dead in zip(view.nodes, self._last_uses(view), strict=True):
            for name, value in self._node(view, node, values, outer):
                values[name] = value
                if name in wanted_set:
                    kept[name] = value
            for name in dead:
                values.pop(name, None)
        for name in wanted:
            if name not in kept:
                kept[name] = _lookup(name, values, view, outer)
        return {name: kept[name] for name in wanted}

    def _last_uses(self, view: GraphView) -> list[list[str]]:
        """For each node the names of this graph that nothing reads after it."""
        if id(view) not in self._schedules:
            last: dict[str, int] = {}
            for index, node in enumerate(view.nodes):
                last.update((name, index) for name in node.outputs if name)
                last.update((name, index) for name in names_read(node))
            for value in view.outputs:
                last[value.name] = len(view.nodes)
            dead: list[list[str]] = [[] for _ in range(len(view.nodes) + 1)]
            for name, index in last.items():
                dead[index].append(name)
            self._schedules[id(view)] = (view, dead[:-1])
        return self._schedules[id(view)][1]

    def _node(
        self,
        view: GraphView,
        node: NodeView,
        values: Mapping[str, Value],
        outer: Mapping[str, Value],
    ) -> list[tuple[str, Value]]:
        inputs = [
            None if name is None else _lookup(name, values, view, outer) for name in node.inputs
        ]
        attributes = {
            name: self._closure(value, values, view, outer)
            if isinstance(value, GraphView)
            else value
            for name, value in node.attributes.items()
        }
        if not supported(node.domain, node.op_type, node.opset):
            raise UnsupportedOp(
                f"{node.domain or 'ai.onnx'}.{node.op_type} (opset {node.opset}) has no reference",
                operators=(f"{node.domain or 'ai.onnx'}.{node.op_type}",),
                node=node.name,
                remedy="expand its function body, or remove it from the model",
            )
        try:
            results = evaluate(
                node.domain,
                node.op_type,
                inputs,
                attributes,
                opset=node.opset,
                num_outputs=len(node.outputs),
                wide=self.wide,
            )
        except OperatorError as error:
            raise OutOfRange(
                str(error), node=node.name, remedy="check the feeds and the model's shapes"
            ) from error
        except OutOfMemory as error:
            error.node = error.node or node.name
            raise
        return [(name, value) for name, value in zip(node.outputs, results, strict=True) if name]

    def _closure(
        self,
        graph: GraphView,
        values: Mapping[str, Value],
        around: GraphView,
        outer: Mapping[str, Value],
    ) -> _SubGraph:
        """A sub-graph as a function of its inputs; what it captures is fixed now."""
        captured = {
            name: _lookup(name, values, around, outer) for name in sorted(captured_names(graph))
        }
        return _SubGraph(self, graph, captured)


class _SubGraph:
    """A sub-graph with the values that it captures, callable by control flow operators.

    ``output_specs`` has (dtype, shape) of each output, or None where the model does not declare it:
    a loop of zero trips takes the type and shape of its empty scan outputs from there.
    """

    def __init__(
        self, evaluation: _Evaluation, graph: GraphView, captured: Mapping[str, Value]
    ) -> None:
        self._evaluation, self._graph, self._captured = evaluation, graph, captured
        self.output_specs = [_spec(value) for value in graph.outputs]

    def __call__(self, *inputs: Value) -> tuple[Value, ...]:
        graph = self._graph
        if len(inputs) != len(graph.inputs):
            raise OutOfRange(
                f"sub-graph {graph.name} takes {len(graph.inputs)} inputs, got {len(inputs)}",
                remedy="give the sub-graph the inputs that its operator passes",
            )
        own = {value.name: x for value, x in zip(graph.inputs, inputs, strict=True)}
        outputs = [value.name for value in graph.outputs]
        result = self._evaluation.run(graph, own, self._captured, outputs)
        return tuple(result[name] for name in outputs)


def _spec(value: ValueView) -> tuple[np.dtype[Any], tuple[int | str, ...]] | None:
    if value.dtype is None or value.shape is None or value.container != "tensor":
        return None
    dims = tuple(dim.const if dim.is_const else str(dim) for dim in value.shape)
    return value.dtype.numpy, dims


def _lookup(
    name: str, values: Mapping[str, Value], view: GraphView, outer: Mapping[str, Value]
) -> Value:
    if name in values:
        return values[name]
    if name in view.initializers:
        return view.initializers[name]
    if name in outer:
        return outer[name]
    raise InternalError(f"value {name!r} was dropped before its last use, or never computed")


def _as_value(feed: Any) -> Value:
    if feed is None or isinstance(feed, list):
        return feed
    array = np.asarray(feed)
    return array.astype(object) if array.dtype.kind in "US" else array


def _raised(value: Value, wide: bool) -> Value:
    if not wide or value is None:
        return value
    if isinstance(value, list):
        return [_raised(part, wide) for part in value]
    return value.astype(np.float64) if value.dtype in reference_dtypes.RAISED else value
