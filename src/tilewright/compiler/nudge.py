"""What a graph may give when its numbers in between are slightly off, as rounding leaves them.

Input -> Output: a graph and feeds -> its value with the numbers just before each step
(QuantizeLinear, Round, Cast ...) moved a little up, and a little down; how far the value moves when
each operator is off by its tolerance.
Why: a difference in the last place becomes a whole step where a number lies on the border of two;
a difference of two nearly equal numbers has a large error relative to itself.
Not here: how far numbers may be off (compiler.compare).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.compiler.compare import TOLERANCES, relative_error
from tilewright.graph.reference import evaluate_graph
from tilewright.graph.view import GraphView, NodeView

_NEWEST = 1_000  # any version has Add and Mul
# Operators that copy or choose numbers are exact.
_EXACT = frozenset(
    """Identity Reshape Transpose Squeeze Unsqueeze Slice Gather GatherElements GatherND Concat
    Split Expand Tile Pad Flatten Where Relu Max Min Neg Abs Clip Cast MaxPool ReduceMax ReduceMin
    DepthToSpace SpaceToDepth Shape ConstantOfShape""".split()
)
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
                opset=_NEWEST,
                inputs=(read, move),
                outputs=(shifted,),
            )
            nodes.append(add)
            node = replace(node, inputs=(shifted, *node.inputs[1:]))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), initializers=constants)


def sensitivity(graph: GraphView, feeds: Mapping[str, Any], name: str) -> float:
    """How far ``name`` moves, relative to its largest value, when every operator is off a little.

    Each element of each operator's result is moved by float32's tolerance, up or down at random.
    Requires: no operator rounds a float to steps (``nudged_values`` gives nothing).
    """
    made = [str(out) for node in graph.nodes if node.op_type not in _EXACT for out in node.outputs]
    exact = evaluate_graph(graph, feeds, wide=True, keep=[*dict.fromkeys(made), name])
    random = np.random.default_rng(0)
    signs = {
        value: random.choice((-1.0, 1.0), array.shape)
        for value, array in exact.items()
        if value in made and isinstance(array, np.ndarray) and array.dtype == np.float64
    }
    worst = 0.0
    for move in (TOLERANCES["float32"], -TOLERANCES["float32"]):
        noisy = _noisy(graph, {value: 1 + move * sign for value, sign in signs.items()})
        moved = evaluate_graph(noisy, feeds, wide=True, keep=[name])[name]
        worst = max(worst, relative_error(moved, exact[name])[0])
    return worst


def _noisy(graph: GraphView, factors: Mapping[str, Any]) -> GraphView:
    """The graph with a Mul after each operator whose result is in ``factors``."""
    nodes: list[NodeView] = []
    constants: dict[str, Any] = dict(graph.initializers)
    for node in graph.nodes:
        products = []
        outputs = list(node.outputs)
        for position, value in enumerate(node.outputs):
            if value is None or value not in factors:
                continue
            raw, factor = f"{value}/exact", f"{value}/factor"
            outputs[position], constants[factor] = raw, factors[value]
            product = NodeView(
                name=factor,
                op_type="Mul",
                domain="",
                opset=_NEWEST,
                inputs=(raw, factor),
                outputs=(value,),
            )
            products.append(product)
        nodes += [replace(node, outputs=tuple(outputs)), *products]
    return replace(graph, nodes=tuple(nodes), initializers=constants)
