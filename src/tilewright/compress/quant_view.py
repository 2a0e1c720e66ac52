"""A quantised graph as a linter reads it: which integers, with which parameters, feed what.

Input -> Output: ``GraphView`` -> ``QuantView``: contractions with their data, weight and bias, each
a ``Coded`` tensor where it is read from integers.
Guarantees: QDQ graphs and the operators QLinearConv, QLinearMatMul, ConvInteger and MatMulInteger
look the same; of com.microsoft the same names count.
Not here: what is wrong with them (lint_numbers, lint_placement).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from tilewright.core.plural import plural
from tilewright.graph.view import GraphView, NodeView

Array = npt.NDArray[Any]
DOMAINS = ("", "com.microsoft")
_MOVES = ("Identity", "Transpose")
# Inputs of the integer operators: (codes, scale, zero point) of data and weight, place of the bias.
_INTEGER_OPERATORS: dict[str, tuple[tuple[int, int, int], tuple[int, int, int], int]] = {
    "QLinearConv": ((0, 1, 2), (3, 4, 5), 8),
    "QLinearMatMul": ((0, 1, 2), (3, 4, 5), -1),
    "ConvInteger": ((0, -1, 2), (1, -1, 3), -1),
    "MatMulInteger": ((0, -1, 2), (1, -1, 3), -1),
}
_FLOAT_CONTRACTIONS = ("Conv", "ConvTranspose", "MatMul", "Gemm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coded:
    """A tensor read from integers.

    Attributes:
        node: what reads them: DequantizeLinear, or the integer operator.
        codes, scale, zero: names of values; None where absent.
        axis: of one scale each, as the node says (None: not stated).
        block: elements that share a scale along the axis; 0: all of it, or one slice.
        moves: perms of the Transposes between the node and the reader, first to last.
    """

    node: NodeView
    codes: str
    scale: str | None
    zero: str | None
    axis: int | None
    block: int = 0
    moves: tuple[tuple[int, ...] | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Contraction:
    """A sum of products and its operands; None where one is not read from integers."""

    node: NodeView
    data: Coded | None
    weight: Coded | None
    bias: Coded | None
    float_data: str | None = None
    float_bias: str | None = None


@dataclass(slots=True, kw_only=True)
class QuantView:
    """Who makes and who reads each value of the outermost graph, and what is known of it."""

    graph: GraphView
    makers: dict[str, NodeView] = field(default_factory=dict)
    readers: dict[str, list[NodeView]] = field(default_factory=dict)
    outputs: frozenset[str] = frozenset()

    @staticmethod
    def of(graph: GraphView) -> QuantView:
        """Indexes a graph."""
        found = QuantView(graph=graph, outputs=frozenset(value.name for value in graph.outputs))
        for node in graph.nodes:
            for name in node.outputs:
                if name is not None:
                    found.makers[name] = node
            for name in dict.fromkeys(node.inputs):
                if name is not None:
                    found.readers.setdefault(name, []).append(node)
        return found

    def constant(self, name: str | None) -> Array | None:
        """The elements of an initialiser or a Constant node."""
        if name is None:
            return None
        if name in self.graph.initializers:
            return self.graph.initializers[name]
        maker = self.makers.get(name)
        if maker is not None and maker.op_type == "Constant" and not maker.domain:
            found: Array | None = maker.attribute("value")
            return found
        return None

    def coded(self, name: str | None) -> Coded | None:
        """The integers that a float value is read from, through Transposes."""
        moves: list[tuple[int, ...] | None] = []
        while name is not None and (maker := self.makers.get(name)) is not None:
            if maker.op_type in _MOVES and not maker.domain:
                perm = maker.attribute("perm")
                if maker.op_type == "Transpose":
                    moves.insert(0, None if perm is None else tuple(int(p) for p in perm))
                name = operand(maker, 0)
                continue
            if not is_dequantize(maker):
                return None
            codes = operand(maker, 0)
            if codes is None:
                return None
            return Coded(
                node=maker,
                codes=codes,
                scale=operand(maker, 1),
                zero=operand(maker, 2),
                axis=int(maker.attribute("axis", 1)),
                block=int(maker.attribute("block_size", 0)),
                moves=tuple(moves),
            )
        return None

    def contractions(self) -> Iterator[Contraction]:
        """Every sum of products, in order."""
        for node in self.graph.nodes:
            if node.domain not in DOMAINS:
                continue
            if node.op_type in _FLOAT_CONTRACTIONS:
                yield Contraction(
                    node=node,
                    data=self.coded(operand(node, 0)),
                    weight=self.coded(operand(node, 1)),
                    bias=self.coded(operand(node, 2)),
                    float_data=operand(node, 0),
                    float_bias=operand(node, 2),
                )
            elif node.op_type in _INTEGER_OPERATORS:
                yield _of_integers(node)


def _of_integers(node: NodeView) -> Contraction:
    data, weight, bias = _INTEGER_OPERATORS[node.op_type]

    def coded(places: tuple[int, int, int]) -> Coded | None:
        codes, scale, zero = (operand(node, place) if place >= 0 else None for place in places)
        if codes is None:
            return None
        return Coded(node=node, codes=codes, scale=scale, zero=zero, axis=None)

    return Contraction(
        node=node, data=coded(data), weight=coded(weight), bias=coded((bias, -1, -1))
    )


def operand(node: NodeView, index: int) -> str | None:
    """The name of an input, None where it is absent."""
    return node.inputs[index] if index < len(node.inputs) else None


def is_quantize(node: NodeView) -> bool:
    """Whether a node is a QuantizeLinear."""
    return node.op_type == "QuantizeLinear" and node.domain in DOMAINS


def is_dequantize(node: NodeView) -> bool:
    """Whether a node is a DequantizeLinear."""
    return node.op_type == "DequantizeLinear" and node.domain in DOMAINS


def label(node: NodeView) -> str:
    """A node as messages name it."""
    return f"{node.name} ({node.op_type})"


def shown(indices: list[int], noun: str) -> str:
    """``3 channels: 0, 4, 7``, the first few of them."""
    few = ", ".join(map(str, indices[:4]))
    return f"{plural(len(indices), noun)}: {few}{', ...' if len(indices) > 4 else ''}"
