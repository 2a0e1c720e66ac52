"""Matrix products of quantised tensors whose results stay in float.

    MatMul(Dequantize(a), Dequantize(b))   ->  Mul(Cast(MatMulInteger(a, b, ..)), a_scale * b_scale)
    Gemm(Dequantize(a), Dequantize(b), c)  ->  Add(Mul(Cast(MatMulInteger(a, b, ..)), ..), c)
Requires: a known matrix of weights with one scale, or one a column; of Gemm, alpha and beta of 1.
Guarantees: sums are exact and fit int32; the float operators behind it become its epilogue.
Not here: results that are quantised (integer_products).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tilewright.graph.passes.base import PassContext, attribute, operand
from tilewright.graph.passes.quantization import Parameters, zero_point

_MAX_DEPTH = (2**31 - 1) // (255 * 255)  # products that an int32 holds for sure
_MATRIX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Quantised weights as an integer operator takes them; ``nodes`` made floats of them."""

    value: ir.Value
    given: Parameters
    nodes: tuple[ir.Node, ...]


def with_float_result(
    ctx: PassContext, node: ir.Node, data: Parameters, weights: Weights
) -> str | None:
    """Replaces a product; None where it has no such form."""
    elements = ctx.constant(weights.value)
    if node.op_type not in ("MatMul", "Gemm") or elements is None or elements.ndim != _MATRIX:
        return None
    if any(attribute(node, name, 1.0) != 1 for name in ("alpha", "beta")):
        return None
    if attribute(node, "transA", 0) or (ctx.rank(data.node.inputs[0]) or 0) < _MATRIX:
        return None
    value = weights.value
    if attribute(node, "transB", 0):
        elements = np.ascontiguousarray(elements.T)
        value = ctx.new_constant(elements, f"{value.name}/transposed")
    if elements.shape[0] > _MAX_DEPTH:
        return None
    zeros = [zero_point(ctx, given) for given in (data, weights.given)]
    total = ctx.new_node("MatMulInteger", [data.node.inputs[0], value, *zeros], before=node)
    scale = (data.scale.reshape(()) * weights.given.scale.reshape(-1)).astype(np.float32)
    scales = ctx.new_constant(scale, f"{node.name}/scales")
    to = {"to": int(ir.DataType.FLOAT)}
    number = ctx.new_node("Cast", [total.outputs[0]], to, before=node)
    result = ctx.new_node("Mul", [number.outputs[0], scales], before=node)
    added = operand(node, _MATRIX)
    if added is not None:
        result = ctx.new_node("Add", [result.outputs[0], added], before=node)
    ctx.adopt(node.outputs[0], result.outputs[0])
    ctx.remove([node])
    return "MatMulInteger, its result in float32"
