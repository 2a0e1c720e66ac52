"""Recognise arithmetic however an exporter grouped it.

Input -> Output: a value -> the node that makes it, the factors of a product, the terms of a sum.
Guarantees: only nodes of the given graph are looked at; every node that a description covers is
listed, so that ``base.enclosed`` can check who else reads in between.
Not here: rewriting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from tilewright.core.dtypes import DType
from tilewright.graph.passes.base import Array, PassContext, Refused, attribute, operand


def maker(value: ir.Value | None, *op_types: str, graph: ir.Graph | None) -> ir.Node | None:
    """The ai.onnx node of one of these types, in this graph, whose first output the value is."""
    node = value.producer() if value is not None else None
    if node is None or node.domain or node.op_type not in op_types or node.graph is not graph:
        return None
    return node if node.outputs[0] is value else None


def only_reader(value: ir.Value, *op_types: str) -> ir.Node | None:
    """The one node that reads the value, if it is of one of these types and in the same graph."""
    if value.is_graph_output():
        return None
    readers = {reader for reader, _ in value.uses()}
    if len(readers) != 1:
        return None
    (reader,) = readers
    if reader.domain or reader.op_type not in op_types or reader.graph is not value.graph:
        return None
    return reader


def near(number: float | None, target: float, dtype: DType | None) -> bool:
    """Whether a constant is the target as an exporter would write it in this type.

    Two units in the last place, of at most float32: exporters compute constants in float32.
    """
    if number is None or dtype is None or not dtype.is_float:
        return False
    bits = {"float16": 10, "bfloat16": 7}.get(dtype.name, 23)
    return abs(number - target) <= 2.0 ** (1 - bits) * abs(target)


@dataclass(slots=True)
class Product:
    """``scale`` times the product of ``factors``; ``nodes`` compute it."""

    scale: float = 1.0
    factors: list[ir.Value] = field(default_factory=list)
    nodes: list[ir.Node] = field(default_factory=list)


def product_of(ctx: PassContext, value: ir.Value, graph: ir.Graph | None) -> Product:
    """Takes multiplications (and divisions by constants) apart, through values read once.

    The outermost multiplication is taken apart even if its result has several readers.
    """
    result = Product()
    waiting = [(value, True)]
    while waiting:
        part, outermost = waiting.pop()
        number = ctx.scalar(part)
        if number is not None:
            result.scale *= number
            continue
        node = maker(part, "Mul", "Div", graph=graph)
        if node is None or not (outermost or read_once(part)) or len(result.nodes) > 16:
            result.factors.append(part)
            continue
        left, right = node.inputs[0], node.inputs[1]
        divisor = ctx.scalar(right) if node.op_type == "Div" else None
        if left is None or right is None or (node.op_type == "Div" and not divisor):
            result.factors.append(part)
            continue
        result.nodes.append(node)
        waiting.append((left, False))
        if divisor is not None:
            result.scale /= divisor
        else:
            waiting.append((right, False))
    return result


def read_once(value: ir.Value) -> bool:
    """Whether exactly one place reads the value; a graph output is a place."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def split_factors(
    product: Product, op_types: Sequence[str], graph: ir.Graph | None
) -> Iterator[tuple[ir.Node, list[ir.Value]]]:
    """Each factor that one of these operators makes, with the other factors."""
    for index, part in enumerate(product.factors):
        node = maker(part, *op_types, graph=graph)
        if node is not None:
            yield node, [*product.factors[:index], *product.factors[index + 1 :]]


def plus_constant(ctx: PassContext, node: ir.Node | None) -> tuple[ir.Value, float] | None:
    """``x`` and ``c`` of Add(x, c), Add(c, x) or Sub(x, c) with a one-element constant."""
    if node is None or node.domain or node.op_type not in ("Add", "Sub"):
        return None
    left, right = node.inputs[0], node.inputs[1]
    if left is None or right is None:
        return None
    number = ctx.scalar(right)
    if number is not None:
        return left, -number if node.op_type == "Sub" else number
    number = ctx.scalar(left)
    if number is not None and node.op_type == "Add":
        return right, number
    return None


def is_scaled_further(ctx: PassContext, node: ir.Node) -> bool:
    """Whether the node's only reader multiplies or divides by a constant: a larger product."""
    value = node.outputs[0]
    reader = only_reader(value, "Mul", "Div")
    return reader is not None and ctx.scalar(other_input(reader, value)) is not None


def other_input(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """The second operand of a node of two inputs, one of which is the value."""
    left, right = operand(node, 0), operand(node, 1)
    return right if left is value else left if right is value else None


def reduced_axes(ctx: PassContext, node: ir.Node, rank: int | None) -> list[int] | None:
    """The axes of a Reduce node that keeps dims, sorted and non-negative; None where unknown."""
    if not attribute(node, "keepdims", 1):
        return None
    axes = ctx.integers(operand(node, 1))
    if axes is None or not axes:
        return None
    if rank is None:
        return axes if axes == [-1] else None
    return sorted(axis % rank for axis in axes)


def same_shape_scalar(ctx: PassContext, constant: ir.Value | None, rank: int | None) -> bool:
    """Whether a one-element constant leaves the rank of what it is combined with unchanged."""
    array = ctx.constant(constant)
    if array is None or array.size != 1:
        return False
    return array.ndim == 0 or (rank is not None and array.ndim <= rank)


def all_finite(array: Array) -> bool:
    """Whether no element is NaN or infinite."""
    if array.dtype.kind in "iub" or array.dtype == object:
        return True
    with np.errstate(all="ignore"):
        return bool(np.isfinite(array.astype(np.float64)).all())


def same_shape(ctx: PassContext, x: ir.Value, result: ir.Value) -> Refused | None:
    """Checks that an elementwise expression of ``x`` and constants has the shape of ``x``."""
    before, after = ctx.shape(x), ctx.shape(result)
    if before is None or after is None:
        return Refused(reason="the shape is unknown", nodes=(x.name or "",))
    if before != after:
        return Refused(reason="a constant changes the shape")
    return None
