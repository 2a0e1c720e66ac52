"""Fold BatchNormalization into the weights before it.

    BatchNormalization(Conv(x, w, b), g, c, m, v)  ->  Conv(x, w * f, (b - m) * f + c),
    f = g / sqrt(v + eps); also ConvTranspose, Gemm, and MatMul of matrices (which gets a bias)
Requires: constants everywhere; the normalisation is the only reader; not in training mode.
Guarantees: one rounding of each weight instead of one of each result; NaN and Inf of the data pass.
Not here: normalisation before the convolution, which padding forbids.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilewright.graph.passes.base import (
    Array,
    Outcome,
    Pass,
    PassContext,
    Refused,
    attribute,
    enclosed,
)
from tilewright.graph.passes.channel_weights import PRODUCERS, apply, channels_of, scaled
from tilewright.graph.passes.match import all_finite, maker


def _attempt(ctx: PassContext, node: ir.Node) -> Outcome:
    producer = maker(node.inputs[0], *PRODUCERS, graph=node.graph)
    if producer is None:
        return None
    if attribute(node, "training_mode", 0):
        return Refused(reason="it is in training mode")
    refused = enclosed([producer], node)
    if refused is not None:
        return refused
    channels = channels_of(ctx, producer)
    if isinstance(channels, Refused):
        return channels
    if channels.axis != 1:
        return Refused(reason="its channels are not those of the MatMul")
    factors = _factors(ctx, node, channels.count)
    if isinstance(factors, Refused):
        return factors
    scale, shift = factors
    folded = scaled(channels, scale, shift)
    if isinstance(folded, Refused):
        return folded
    apply(ctx, channels, node, folded)
    return f"folded into {producer.op_type} {producer.name}"


def _factors(ctx: PassContext, node: ir.Node, count: int) -> tuple[Array, Array] | Refused:
    """What the normalisation multiplies and adds."""
    parts = [ctx.constant(value) for value in node.inputs[1:5]]
    if len(parts) < 4 or any(part is None or part.shape != (count,) for part in parts):
        return Refused(reason="its parameters are not constants of one number a channel")
    gamma, beta, mean, variance = (p.astype(np.float64) for p in parts if p is not None)
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + float(attribute(node, "epsilon", 1e-5)))
        shift = beta - mean * scale
    if not all_finite(scale) or not all_finite(shift):
        return Refused(reason="a factor is NaN or infinite")
    return scale, shift


fold_batch_normalization = Pass(
    name="fold_batch_normalization", run=lambda ctx: ctx.each(("BatchNormalization",), _attempt)
)
