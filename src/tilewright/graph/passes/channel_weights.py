"""The weights of Conv, ConvTranspose, Gemm and MatMul, seen by output channel.

Input -> Output: a node with constant weights -> new weights and bias after ``scale * y + shift``.
Guarantees: computed in float64 and rounded once; refuses where a finite weight would become Inf or
vanish, so that Inf and NaN of the data have the same effect as before.
Not here: who asks for scale and shift (fold_batch_normalization, fold_scale).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tilewright.graph.passes.base import Array, PassContext, Refused, attribute, operand
from tilewright.graph.passes.match import all_finite

PRODUCERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """Constant weights.

    Attributes:
        node: the operator.
        weights: as stored.
        bias: [count] or None; float64.
        count: output channels.
        rank: rank of the result.
        axis: of the result's channels.
    """

    node: ir.Node
    weights: Array
    bias: Array | None
    count: int
    rank: int
    axis: int


def channels_of(ctx: PassContext, node: ir.Node) -> Channels | Refused:
    """The node's weights by output channel."""
    weights = ctx.constant(operand(node, 1))
    if weights is None or weights.dtype.kind == "O":
        return Refused(reason="the weights are not constant")
    if not all_finite(weights):
        return Refused(reason="a weight is NaN or infinite")
    bias = operand(node, 2)
    if bias is not None and ctx.constant(bias) is None:
        return Refused(reason="the bias is not constant")
    if node.op_type == "MatMul":
        return _matmul(ctx, node, weights)
    if node.op_type == "Gemm":
        return _gemm(ctx, node, weights)
    count = weights.shape[0]
    if node.op_type == "ConvTranspose":
        count = weights.shape[1] * int(attribute(node, "group", 1))
    array = ctx.constant(bias)
    return Channels(
        node=node,
        weights=weights,
        bias=None if array is None else array.astype(np.float64),
        count=count,
        rank=weights.ndim,
        axis=1,
    )


def _matmul(ctx: PassContext, node: ir.Node, weights: Array) -> Channels | Refused:
    rank = ctx.rank(node.inputs[0])
    if weights.ndim != 2 or rank is None or rank < 2:
        return Refused(reason="the weights are no matrix or the rank is unknown")
    count = weights.shape[1]
    return Channels(node=node, weights=weights, bias=None, count=count, rank=rank, axis=rank - 1)


def _gemm(ctx: PassContext, node: ir.Node, weights: Array) -> Channels | Refused:
    count = weights.shape[0 if attribute(node, "transB", 0) else 1]
    array = ctx.constant(operand(node, 2))
    bias = None
    if array is not None:
        beta = float(attribute(node, "beta", 1.0))
        if array.ndim > 1 and any(size != 1 for size in array.shape[:-1]):
            return Refused(reason="the bias differs from row to row")
        flat = array.astype(np.float64).reshape(-1) * beta
        bias = np.broadcast_to(flat, (count,)).copy()
    return Channels(node=node, weights=weights, bias=bias, count=count, rank=2, axis=1)


def scaled(channels: Channels, scale: Array | None, shift: Array | None) -> Refused | _Folded:
    """New weights and bias; ``scale`` and ``shift`` are float64 of shape [count]."""
    weights, bias = channels.weights, channels.bias
    dtype = weights.dtype
    with np.errstate(all="ignore"):
        if scale is not None:
            exact = weights.astype(np.float64) * _along_weights(channels, scale)
            weights = exact.astype(dtype)
            if not all_finite(weights):
                return Refused(reason="a scaled weight is not finite")
            if bool(((exact != 0) & (weights.astype(np.float64) == 0)).any()):
                return Refused(reason="a scaled weight vanishes")
            bias = None if bias is None else bias * scale
        if shift is not None:
            bias = shift if bias is None else bias + shift
        rounded = None if bias is None else bias.astype(dtype)
    if rounded is not None and not all_finite(rounded):
        return Refused(reason="the new bias is not finite")
    return _Folded(weights=weights, bias=rounded)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folded:
    weights: Array
    bias: Array | None


def _along_weights(channels: Channels, scale: Array) -> Array:
    """The scale, shaped to multiply the weights."""
    node, weights = channels.node, channels.weights
    if node.op_type == "Conv":
        return scale.reshape((-1,) + (1,) * (weights.ndim - 1))
    if node.op_type == "ConvTranspose":
        group = int(attribute(node, "group", 1))
        per_group = scale.reshape(group, 1, -1)
        rows = np.broadcast_to(
            per_group, (group, weights.shape[0] // max(group, 1), weights.shape[1])
        )
        return rows.reshape(weights.shape[:2] + (1,) * (weights.ndim - 2))
    if node.op_type == "Gemm" and attribute(node, "transB", 0):
        return scale.reshape(-1, 1)
    return scale.reshape(1, -1)


def apply(ctx: PassContext, channels: Channels, reader: ir.Node, folded: _Folded) -> None:
    """Puts an operator with the new weights in the place of both nodes."""
    node = channels.node
    name = node.name or node.op_type
    weights = operand(node, 1)
    if folded.weights is not channels.weights:
        weights = ctx.new_constant(folded.weights, f"{name}/weights")
    inputs = [node.inputs[0], weights]
    attributes = dict(node.attributes)
    op_type = node.op_type
    if folded.bias is not None:
        inputs.append(ctx.new_constant(folded.bias, f"{name}/bias"))
        attributes.pop("beta", None)
        op_type = "Gemm" if op_type == "MatMul" else op_type
    ctx.replace(reader, [node], op_type, inputs, attributes)
