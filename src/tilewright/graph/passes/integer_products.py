"""Let products of quantised tensors run on the integers.

    Quantize(Conv(Dequantize(x), Dequantize(w), Dequantize(b)))  ->  QLinearConv(x, .., w, .., b)
    Quantize(MatMul(Dequantize(a), Dequantize(b)))               ->  QLinearMatMul(a, .., b, ..)
    Quantize(Gemm(Dequantize(a), Dequantize(b), Dequantize(c)))  ->  QGemm(a, .., b, .., c, ..)
    with Relu or Clip before the Quantize, which then limits the integers
    MatMul(Dequantize(a), Dequantize(b))  ->  Mul(Cast(MatMulInteger(a, b, ..)), scales)
    where nobody quantises the result, or others read it too
Requires: per-tensor scales of data and result, weights per tensor or one scale an output channel;
    a bias in int32 with the product of both scales; nobody else reads in between.
Guarantees: exact sums, and one rounding of each result instead of many (docs/precision.md).
Not here: results in float (float_results), what only moves integers (integer_moves), elementwise
    arithmetic (fused as it is), weights without quantised data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tilewright.graph.passes.base import (
    Outcome,
    Pass,
    PassContext,
    Refused,
    attribute,
    enclosed,
    operand,
)
from tilewright.graph.passes.float_results import Weights, with_float_result
from tilewright.graph.passes.match import maker, only_reader
from tilewright.graph.passes.quantization import Parameters, parameters_of, zero_point

_PRODUCTS = ("Conv", "MatMul", "Gemm")
_BIAS_TOLERANCE = 1e-4  # of scales that an exporter multiplied in another precision


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """What becomes of a product: nodes up to its QuantizeLinear, and limits of the integers."""

    given: Parameters
    nodes: tuple[ir.Node, ...]
    limits: tuple[int, int] | None


def _attempt(ctx: PassContext, node: ir.Node) -> Outcome:
    left, right = (
        maker(operand(node, index), "DequantizeLinear", graph=node.graph) for index in (0, 1)
    )
    if left is None or (right is None and _transposed(node) is None):
        return None
    data = parameters_of(ctx, left)
    if isinstance(data, Refused):
        return data
    if not data.is_single:
        return Refused(reason="the data has several scales", nodes=(left.name or "",))
    weights = _weights_of(ctx, node, right)
    if isinstance(weights, Refused):
        return weights
    bias, result = _bias_of(ctx, node, data, weights.given), _result_of(ctx, node)
    if isinstance(bias, Refused):
        return with_float_result(ctx, node, data, weights) or bias
    if isinstance(result, Refused):
        return with_float_result(ctx, node, data, weights) or result
    refused = enclosed((node, *result.nodes[:-1]), result.given.node)
    return refused or _rewrite(ctx, node, data, weights, bias, result)


# --- operands -------------------------------------------------------------------------------------


def _transposed(node: ir.Node) -> ir.Node | None:
    """The Transpose between a matrix product and its dequantised weights."""
    transpose = maker(operand(node, 1), "Transpose", graph=node.graph)
    if node.op_type != "MatMul" or transpose is None:
        return None
    found = maker(operand(transpose, 0), "DequantizeLinear", graph=node.graph)
    return transpose if found is not None else None


def _weights_of(ctx: PassContext, node: ir.Node, direct: ir.Node | None) -> Weights | Refused:
    transpose = None if direct is not None else _transposed(node)
    source = direct
    if transpose is not None:
        source = maker(operand(transpose, 0), "DequantizeLinear", graph=node.graph)
    if source is None or source.inputs[0] is None:
        return Refused(reason="the weights are not quantised")
    given = parameters_of(ctx, source)
    if isinstance(given, Refused):
        return given
    value = source.inputs[0]
    elements = ctx.constant(value)
    if transpose is not None:
        if elements is None or elements.ndim != 2:
            return Refused(reason="weights that are transposed are no constant matrix")
        value = ctx.new_constant(np.ascontiguousarray(elements.T), f"{value.name}/transposed")
    rank = elements.ndim if elements is not None else ctx.rank(value)
    if not given.is_single:
        channels = _channel_axis(node) if transpose is None else 0
        if rank is None or given.axis % rank != channels % rank:
            return Refused(
                reason=f"the weights' scales are not one an output channel (axis {given.axis})",
                nodes=(source.name or "",),
            )
    nodes = (source,) if transpose is None else (source, transpose)
    return Weights(value=value, given=given, nodes=nodes)


def _channel_axis(node: ir.Node) -> int:
    if node.op_type == "Conv":
        return 0
    return 0 if node.op_type == "Gemm" and attribute(node, "transB", 0) else -1


def _bias_of(
    ctx: PassContext, node: ir.Node, data: Parameters, weights: Parameters
) -> ir.Value | Refused | None:
    bias = operand(node, 2)
    if bias is None:
        return None
    source = maker(bias, "DequantizeLinear", graph=node.graph)
    if source is None:
        return Refused(reason="the bias is not quantised", nodes=(bias.name or "",))
    given = parameters_of(ctx, source, ("int32",))
    if isinstance(given, Refused):
        return given
    factors = (float(attribute(node, name, 1.0)) for name in ("alpha", "beta"))
    if any(factor != 1 for factor in factors):
        return Refused(reason="alpha or beta is not 1")
    if ctx.rank(source.inputs[0]) != 1:
        return Refused(reason="the bias is not one an output channel", nodes=(bias.name or "",))
    product, own = data.scale.reshape(()) * weights.scale.reshape(-1), given.scale.reshape(-1)
    alike = own.size == 1 or product.size in (1, own.size)
    if given.zero.any() or not alike or np.any(np.abs(own - product) > _BIAS_TOLERANCE * product):
        return Refused(
            reason="the scale of the bias is not that of the product", nodes=(source.name or "",)
        )
    return source.inputs[0]


# --- the result -----------------------------------------------------------------------------------


def _result_of(ctx: PassContext, node: ir.Node) -> _Result | Refused:
    """The QuantizeLinear behind a product, through Relu and Clip."""
    between: list[ir.Node] = []
    low, high = -np.inf, np.inf
    value = node.outputs[0]
    while (reader := only_reader(value, "Relu", "Clip")) is not None:
        ends = _limits(ctx, reader)
        if isinstance(ends, Refused):
            return ends
        low, high = max(low, ends[0]), min(high, ends[1])
        between.append(reader)
        value = reader.outputs[0]
    last = only_reader(value, "QuantizeLinear")
    if last is None or last.inputs[0] is not value:
        return Refused(reason="the result is not quantised, or somebody else reads it")
    given = parameters_of(ctx, last)
    if isinstance(given, Refused):
        return given
    if not given.is_single:
        return Refused(reason="the result has several scales", nodes=(last.name or "",))
    if low > high:
        return Refused(reason="a lower bound is above an upper one")
    limits = given.quantized(low), given.quantized(high)
    whole = np.iinfo(given.zero.dtype)
    idle = limits == (whole.min, whole.max)
    return _Result(given=given, nodes=(*between, last), limits=None if idle else limits)


def _limits(ctx: PassContext, node: ir.Node) -> tuple[float, float] | Refused:
    if node.op_type == "Relu":
        return 0.0, np.inf
    ends = []
    for index, absent in ((1, -np.inf), (2, np.inf)):
        bound = operand(node, index)
        known = absent if bound is None else ctx.scalar(bound)
        if known is None or np.isnan(known):
            return Refused(reason="a bound is not constant", nodes=(node.name or "",))
        ends.append(known)
    return ends[0], ends[1]


# --- rewriting ------------------------------------------------------------------------------------


def _rewrite(
    ctx: PassContext,
    node: ir.Node,
    data: Parameters,
    weights: Weights,
    bias: ir.Value | None,
    result: _Result,
) -> str:
    last = result.given.node
    # What the weights' zero point lacks, the data's type tells.
    zero_of = {id(p): zero_point(ctx, p) for p in (data, weights.given, result.given)}
    inputs: list[ir.Value | None] = [data.node.inputs[0], data.node.inputs[1], zero_of[id(data)]]
    inputs += [weights.value, weights.given.node.inputs[1], zero_of[id(weights.given)]]
    out = [last.inputs[1], zero_of[id(result.given)]]
    if node.op_type == "Gemm":
        inputs += [bias, *out]
        kept = {k: attribute(node, k, d) for k, d in (("alpha", 1.0), ("transA", 0), ("transB", 0))}
        made = ctx.new_node("QGemm", inputs, kept, before=last, domain="com.microsoft")
    else:
        inputs += [*out, *([bias] if bias is not None else [])]
        name = "QLinearConv" if node.op_type == "Conv" else "QLinearMatMul"
        made = ctx.new_node(name, inputs, dict(node.attributes), before=last)
    text = made.op_type
    if result.limits is not None:
        text += f", limited to {result.limits[0]}..{result.limits[1]}"
        ends = [
            ctx.new_constant(np.asarray(end, result.given.zero.dtype), f"{last.name}/limit")
            for end in result.limits
        ]
        limited = ctx.new_node("Clip", [made.outputs[0], *ends], before=last)
        ctx.adopt(last.outputs[0], limited.outputs[0])
    else:
        ctx.adopt(last.outputs[0], made.outputs[0])
    ctx.remove([last])
    return text


integer_products = Pass(name="integer_products", run=lambda ctx: ctx.each(_PRODUCTS, _attempt))
