"""What a graph may give when the numbers that it rounds to steps are slightly off.

Input -> Output: a graph with a QuantizeLinear, Round, Cast ... and feeds -> its value with the
numbers just before each step moved a little up, and moved a little down.
Why: a difference in the last place becomes a whole step where a number lies on the border of two.
Not here: how far numbers may be off (compiler.compare).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.compiler.compare import TOLERANCES
from tilewright.graph.reference import evaluate_graph
from tilewright.graph.view import GraphView, NodeView

STEPS = frozenset("QuantizeLinear DynamicQuantizeLinear Round Floor Ceil Sign Cast".split())


def nudged_values(graph: GraphView, feeds: Mapping[str, Any], name: str) -> Iterator[Any]:
    """The values of ``name`` in float64 with all steps' inputs moved up, then down.

    Nothing where no step rounds a float.  The move is float32's tolerance times the largest input.
    """
    read = {str(node.inputs[0]) for node in graph.nodes if node.op_type in STEPS}
    if not read:
        return
    before = evaluate_graph(graph, feeds, wide=True, keep=sorted(read))
    moves = {value: _move(array) for value, array in before.items() if _is_float(array)}
    for sign in (1.0, -1.0) if moves else ():
        moved = _moved(graph, {value: sign * move for value, move in moves.items()})
        yield evaluate_graph(moved, feeds, wide=True, keep=[name])[name]


def _is_float(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype == np.float64


def _move(array: Any) -> float:
    finite = np.abs(array[np.isfinite(array)])
    return TOLERANCES["float32"] * float(finite.max(initial=0.0))


def _moved(graph: GraphView, moves: Mapping[str, float]) -> GraphView:
    """The graph with an Add before each step that reads a value in ``moves``."""
    nodes: list[NodeView] = []
    constants: dict[str, Any] = dict(graph.initializers)
    for node in graph.nodes:
        read = node.inputs[0] if node.op_type in STEPS else None
        if read is not None and read in moves:
            shifted, move = f"{node.name}/nudged", f"{node.name}/nudge"
            constants[move] = np.asarray(moves[read], np.float64)
            add = NodeView(
                name=shifted,
                op_type="Add",
                domain="",
                opset=node.opset,
                inputs=(read, move),
                outputs=(shifted,),
            )
            nodes.append(add)
            node = replace(node, inputs=(shifted, *node.inputs[1:]))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), initializers=constants)
