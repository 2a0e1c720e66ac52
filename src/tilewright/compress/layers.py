"""Which nodes of a graph can work on 8-bit integers, and which values they read.

Input -> Output: a graph -> layers (nodes with constant weights), carriers (additions, pools,
concatenations between them) and points (values to quantise, with their readers).
Guarantees: every node that is left in float and might have been a layer has a reason.
Not here: ranges (observers), the rewriting (graph.insert_qdq).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.view import GraphView, NodeView

Array = npt.NDArray[Any]

LAYERS = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
# Results have the scale of their input: nothing is computed, or the largest is taken.
MOVES = frozenset(
    "Reshape Transpose Flatten Squeeze Unsqueeze Slice MaxPool Identity DepthToSpace SpaceToDepth "
    "Split Expand Tile Concat".split()
)
CARRIERS = MOVES | {"Add", "Sub", "Mul", "AveragePool", "GlobalAveragePool", "Resize"}
# Between a layer and the quantiser behind it: computed in float on what the layer accumulates.
EPILOGUES = frozenset(
    "Relu Clip LeakyRelu PRelu Sigmoid HardSigmoid HardSwish Swish Tanh Elu Selu Celu Gelu Mish "
    "Softplus Softsign ThresholdedRelu Erf Exp Abs Neg Sqrt Add Sub Mul Div Pow Min Max".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A node with constant weights.

    Attributes:
        node, op_type: of the graph.
        source: the activation that it reads.
        result: what it writes.
        weights: float32, as stored.
        bias: float32 [channels], or None.
        axis: of the weights, that runs over output channels.
        groups: of a convolution.
        transposed: a Gemm whose weights are [outputs, inputs].
    """

    node: str
    op_type: str
    source: str
    result: str
    weights: Array
    bias: Array | None
    axis: int
    groups: int = 1
    transposed: bool = False

    @property
    def num_channels(self) -> int:
        """Output channels."""
        count = int(self.weights.shape[self.axis])
        return count * self.groups if self.op_type == "ConvTranspose" else count


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where to quantise.

    Attributes:
        layers: in the order of the graph.
        carriers: nodes between them that read and write 8 bits.
        readers: which nodes read a quantised value, by value.
        ties: values that must have the same parameters, in sets.
        kept: (node, operator, reason) of nodes that compute and stay in float.
    """

    layers: tuple[Layer, ...]
    carriers: tuple[str, ...]
    readers: Mapping[str, tuple[str, ...]]
    ties: tuple[frozenset[str], ...]
    kept: tuple[tuple[str, str, str], ...] = field(default=())


def find_layers(
    graph: GraphView,
    *,
    exclude: Collection[str] = (),
    carriers: bool = True,
    floats: Collection[str] | None = None,
) -> Plan:
    """Looks for what can be quantised.

    Args:
        graph: with final weights.
        exclude: nodes to leave in float.
        carriers: whether additions, pools and the like between layers work on integers too.
        floats: values that are floats, of which it is told where they stay so; None: all.
    """
    return _Finder(graph, frozenset(exclude)).plan(carriers, floats)


class _Finder:
    def __init__(self, graph: GraphView, exclude: frozenset[str]) -> None:
        self.graph, self.exclude = graph, exclude
        self.nodes = {node.name: node for node in graph.nodes}
        self.constants = graph.initializers
        self.outputs = {value.name for value in graph.outputs}
        self.readers: dict[str, list[str]] = {}
        for node in graph.nodes:
            for name in dict.fromkeys([*filter(None, node.inputs), *_read_inside(node)]):
                self.readers.setdefault(name, []).append(node.name)
        self.kept: list[tuple[str, str, str]] = []
        self.refused: dict[str, str] = {}  # of carriers

    def plan(self, with_carriers: bool, floats: Collection[str] | None) -> Plan:
        layers = [layer for node in self.graph.nodes if (layer := self._layer(node)) is not None]
        chosen = {layer.node for layer in layers}
        carriers = self._carriers(chosen) if with_carriers else set()
        if with_carriers:
            self._note_islands(chosen, carriers, floats)
        readers: dict[str, list[str]] = {}
        for layer in layers:
            readers.setdefault(layer.source, []).append(layer.node)
        for name in (node.name for node in self.graph.nodes if node.name in carriers):
            for source in self._activations(self.nodes[name]):
                readers.setdefault(source, []).append(name)
        return Plan(
            layers=tuple(layers),
            carriers=tuple(node.name for node in self.graph.nodes if node.name in carriers),
            readers={name: tuple(dict.fromkeys(found)) for name, found in readers.items()},
            ties=_tied([self.nodes[name] for name in carriers], readers),
            kept=tuple(self.kept),
        )

    # --- layers -----------------------------------------------------------------------------------

    def _layer(self, node: NodeView) -> Layer | None:
        if node.domain or node.op_type not in LAYERS or len(node.inputs) < 2:
            return None
        reason = self._refusal(node)
        if reason is not None:
            self.kept.append((node.name, node.op_type, reason))
            return None
        source, weights = node.inputs[0] or "", self.constants[node.inputs[1] or ""]
        bias = self.constants.get(node.inputs[2] or "") if len(node.inputs) > 2 else None
        transposed = node.op_type == "Gemm" and bool(node.attribute("transB", 0))
        axis = {"Conv": 0, "ConvTranspose": 1}.get(node.op_type, 0 if transposed else 1)
        count = weights.shape[axis]
        groups = int(node.attribute("group", 1))
        if node.op_type == "ConvTranspose":
            count *= groups
        return Layer(
            node=node.name,
            op_type=node.op_type,
            source=source,
            result=node.outputs[0] or "",
            weights=np.asarray(weights, np.float32),
            bias=None if bias is None else np.broadcast_to(bias.reshape(-1), (count,)).copy(),
            axis=axis,
            groups=groups,
            transposed=transposed,
        )

    def _refusal(self, node: NodeView) -> str | None:
        """Why a node cannot be a layer."""
        if node.name in self.exclude:
            return EXCLUDED
        source, weights = node.inputs[0], self.constants.get(node.inputs[1] or "")
        if weights is None:
            return "its weights are not constant"
        if weights.dtype != np.float32:
            return f"its weights are {weights.dtype}"
        if source is None or source in self.constants:
            return "its input is constant"
        if not np.isfinite(weights).all():
            return "a weight is NaN or infinite"
        if not weights.size:
            return "it has no weights"
        if node.op_type == "MatMul" and weights.ndim != 2:
            return f"its weights have {weights.ndim} dims"
        factors = [node.attribute(name, 1.0) for name in ("alpha", "beta")]
        if node.op_type == "Gemm" and (node.attribute("transA", 0) or factors != [1.0, 1.0]):
            return "it is a Gemm with transA, alpha or beta"
        return self._bias_refusal(node)

    def _bias_refusal(self, node: NodeView) -> str | None:
        if len(node.inputs) < 3 or node.inputs[2] is None:
            return None
        bias = self.constants.get(node.inputs[2])
        if bias is None:
            return "its bias is not constant"
        if bias.ndim > 1 and any(size != 1 for size in bias.shape[:-1]):
            return "its bias differs from row to row"
        return None if np.isfinite(bias).all() else "a bias is NaN or infinite"

    # --- what lies between ------------------------------------------------------------------------

    def _carriers(self, layers: set[str]) -> set[str]:
        """Nodes all of whose operands come from integers and all of whose readers take some."""
        chosen = {
            node.name
            for node in self.graph.nodes
            if node.op_type in CARRIERS
            and not node.domain
            and node.name not in self.exclude
            and _is_exact(node)
        }
        refused: dict[str, str] = {}
        while True:
            sources = self._sources(layers, chosen)
            dropped = {
                name: reason
                for name in chosen
                if (reason := self._carrier_refusal(name, sources, layers | chosen)) is not None
            }
            if not dropped:
                break
            refused.update(dropped)
            chosen -= set(dropped)
        self.refused = refused
        return chosen

    def _note_islands(
        self, layers: set[str], carriers: set[str], floats: Collection[str] | None
    ) -> None:
        """Nodes that compute in float, other than in the epilogue of a layer."""
        known = layers | carriers | {node for node, _, _ in self.kept}
        sources = self._sources(layers, carriers)
        for node in self.graph.nodes:
            outputs = [name for name in node.outputs if name]
            computes = node.op_type not in MOVES or node.op_type in _POOLS
            if node.name in known or not computes:
                continue
            if floats is not None and not set(outputs) & set(floats):
                continue
            if node.op_type in EPILOGUES and any(sources.get(name) for name in outputs):
                continue
            reason = self.refused.get(node.name, f"{node.op_type} has no kernel on integers")
            if node.name in self.exclude:
                reason = EXCLUDED
            elif reason == _EPILOGUE:
                reason = "it reads and is read in float"
            self.kept.append((node.name, node.op_type, reason))

    def _sources(self, layers: set[str], carriers: set[str]) -> dict[str, str | None]:
        """The layer or carrier that a value comes from, through epilogues; None: from float."""
        found: dict[str, str | None] = {}
        for node in self.graph.nodes:
            source: str | None = None
            if node.name in layers or node.name in carriers:
                source = node.name
            elif node.op_type in EPILOGUES and not node.domain:
                origins = {found.get(name) for name in self._activations(node)}
                source = origins.pop() if len(origins) == 1 else None
            for output in filter(None, node.outputs):
                found[output] = source
        return found

    def _carrier_refusal(
        self, name: str, sources: Mapping[str, str | None], quantized: set[str]
    ) -> str | None:
        node = self.nodes[name]
        operands = self._activations(node)
        origins = {sources.get(value) for value in operands}
        if not operands or None in origins:
            return "an operand is computed in float"
        if node.op_type in EPILOGUES and len(origins) == 1:
            return _EPILOGUE
        if len([output for output in node.outputs if output]) > 1 and node.op_type != "Split":
            return "it has several results"
        for output in filter(None, node.outputs):
            reader = self._float_reader(output, quantized, sources)
            if reader is not None:
                return f"its result is needed in float by {reader}"
        return None

    def _float_reader(
        self, value: str, quantized: set[str], sources: Mapping[str, str | None]
    ) -> str | None:
        """Who reads a value, directly or through epilogues, as a float."""
        if value in self.outputs:
            return "an output"
        if value not in self.readers:
            return "nobody"
        for name in self.readers[value]:
            node = self.nodes[name]
            if name in quantized:
                continue
            output = node.outputs[0] if node.outputs else None
            if output is None or sources.get(output) is None:
                return name
            reader = self._float_reader(output, quantized, sources)
            if reader is not None:
                return reader
        return None

    def _activations(self, node: NodeView) -> list[str]:
        """Float operands that are not constant."""
        names = node.inputs if node.op_type not in _FIRST_ONLY else node.inputs[:1]
        return [name for name in names if name is not None and name not in self.constants]


EXCLUDED = "excluded"
_EPILOGUE = "part of an epilogue"
_POOLS = ("MaxPool", "Concat")  # moves that read more than one number for each that they write
_FIRST_ONLY = (MOVES - {"Concat"}) | {"Resize"}


def _is_exact(node: NodeView) -> bool:
    """Whether 8-bit operands give a result of 8 bits worth having."""
    if node.op_type == "Resize":
        return str(node.attribute("mode", "nearest")) == "nearest"
    return True


def _read_inside(node: NodeView) -> Iterable[str]:
    """Values that the sub-graphs of a node read."""
    for attribute in node.attributes.values():
        for graph in attribute if isinstance(attribute, tuple) else (attribute,):
            if isinstance(graph, GraphView):
                for inner in graph.nodes:
                    yield from filter(None, inner.inputs)
                    yield from _read_inside(inner)
                yield from (value.name for value in graph.outputs)


def _tied(carriers: Iterable[NodeView], points: Collection[str]) -> tuple[frozenset[str], ...]:
    """Values that only move through carriers: their parameters must be equal."""
    groups: list[set[str]] = []
    for node in carriers:
        if node.op_type not in MOVES and node.op_type != "Resize":
            continue
        inputs = node.inputs if node.op_type == "Concat" else node.inputs[:1]
        members = {name for name in (*inputs, *node.outputs) if name and name in points}
        touching = [group for group in groups if group & members]
        for group in touching:
            members |= group
            groups.remove(group)
        if len(members) > 1:
            groups.append(members)
    return tuple(frozenset(group) for group in groups)
