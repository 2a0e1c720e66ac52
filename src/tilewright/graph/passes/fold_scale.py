"""Fold multiplication and addition of constants into the weights before them.

    Conv(x, w, b) * c  ->  Conv(x, w * c, b * c);    Conv(x, w, b) + c  ->  Conv(x, w, b + c)
    (also / c and - c; also ConvTranspose, Gemm; MatMul takes factors, and stays without a bias)
Requires: ``c`` is finite and has one number, or one a channel, and leaves the shape as it is; it is
    the only reader; same type.
Guarantees: one rounding of each weight instead of one of each result; NaN and Inf of the data pass.
Not here: constants that differ over batch or space, or raise the rank.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilewright.core.dtypes import from_numpy
from tilewright.graph.passes.base import Array, Outcome, Pass, PassContext, Refused, enclosed
from tilewright.graph.passes.channel_weights import (
    PRODUCERS,
    Channels,
    apply,
    channels_of,
    scaled,
)
from tilewright.graph.passes.match import all_finite, maker


def _attempt(ctx: PassContext, node: ir.Node) -> Outcome:
    for index in (0, 1) if node.op_type in ("Add", "Mul") else (0,):
        producer = maker(node.inputs[index], *PRODUCERS, graph=node.graph)
        constant = ctx.constant(node.inputs[1 - index])
        if producer is None or constant is None:
            continue
        # A bias is an epilogue of MatMul as it is; a product of two computed values has no weights.
        if producer.op_type == "MatMul" and (
            node.op_type in ("Add", "Sub") or ctx.constant(producer.inputs[1]) is None
        ):
            return None
        return _fold(ctx, node, producer, constant)
    return None


def _fold(ctx: PassContext, node: ir.Node, producer: ir.Node, constant: Array) -> Outcome:
    refused = enclosed([producer], node)
    if refused is not None:
        return refused
    channels = channels_of(ctx, producer)
    if isinstance(channels, Refused):
        return channels
    if constant.dtype != channels.weights.dtype:
        return Refused(reason=f"types differ: {constant.dtype} and {channels.weights.dtype}")
    numbers = _by_channel(channels, constant)
    if isinstance(numbers, Refused):
        return numbers
    scale = shift = None
    with np.errstate(all="ignore"):
        match node.op_type:
            case "Mul":
                scale = numbers
            case "Div":
                scale = 1.0 / numbers
            case "Add":
                shift = numbers
            case _:
                shift = -numbers
    if not all(all_finite(part) for part in (scale, shift) if part is not None):
        return Refused(reason="the constant is NaN or infinite, or divides by zero")
    folded = scaled(channels, scale, shift)
    if isinstance(folded, Refused):
        return folded
    apply(ctx, channels, node, folded)
    return f"folded into {producer.op_type} {producer.name}"


def _by_channel(channels: Channels, constant: Array) -> Array | Refused:
    """The constant as float64 [count]."""
    if not from_numpy(channels.weights.dtype).is_float:
        return Refused(reason="integers wrap")
    if constant.ndim > channels.rank:
        return Refused(reason="the constant raises the rank")
    shape = (1,) * (channels.rank - constant.ndim) + constant.shape
    for axis, size in enumerate(shape):
        if size != 1 and (axis != channels.axis or size != channels.count):
            return Refused(reason="the constant differs over other axes than the channels")
    return np.broadcast_to(constant.astype(np.float64).reshape(-1), (channels.count,)).copy()


fold_scale = Pass(
    name="fold_scale", run=lambda ctx: ctx.each(("Mul", "Div", "Add", "Sub"), _attempt)
)
