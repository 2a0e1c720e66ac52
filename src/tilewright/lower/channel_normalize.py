"""Normalisation by channel statistics or neighbouring channels.

    BatchNormalization(x)  ->  out[n, c] = (x[n, c] - mean[c]) * factor[c] + bias[c]
                               where factor[c] = scale[c] / sqrt(var[c] + epsilon)
Guarantees: one type from operands to result (float64 if any operand is), one rounding.
Not here: folding into a convolution (graph.passes).
"""

from __future__ import annotations

from tilewright.core.dtypes import INT64, DType
from tilewright.kernel.ir import Buffer, Expr, call, constant, dim_value, reduce_over, select
from tilewright.lower.broadcast import refuse_opaque
from tilewright.lower.context import Lowering
from tilewright.lower.normalize import Moments, axes_slots, inverse_deviation, moments
from tilewright.lower.precision import compute_type, flag, number, real_type
from tilewright.lower.registry import lowers


@lowers("BatchNormalization")
def batch_normalization(ctx: Lowering) -> None:
    """In training mode the statistics are those of the batch, and running ones are put out."""
    x = ctx.input(0)
    refuse_opaque(x)
    kind = real_type(*(ctx.input(position).dtype for position in range(5)))
    training = flag(ctx, "training_mode")
    if training:
        _emit_running(ctx, x, kind)
    out = ctx.output()
    if out is None:
        return
    epsilon = number(ctx, "epsilon", 1e-5)

    def body(*index: Expr) -> Expr:
        channel = index[1] if len(index) > 1 else constant(0, INT64)
        scale, bias, mean, variance = (
            ctx.input(position)[channel].cast(kind) for position in range(1, 5)
        )
        found = _batch_moments(x, channel, kind) if training else Moments(mean, variance)
        factor = scale * inverse_deviation(found.variance, epsilon)
        return ((x[index].cast(kind) - found.mean) * factor + bias).cast(out.dtype)

    ctx.pure(out, body)


def _batch_moments(x: Buffer, channel: Expr, kind: DType) -> Moments:
    index = [channel if axis == 1 else constant(0, INT64) for axis in range(len(x.shape))]
    axes = [axis for axis in range(len(x.shape)) if axis != 1]
    return moments(axes_slots(x, index, axes, kind))


def _emit_running(ctx: Lowering, x: Buffer, kind: DType) -> None:
    momentum = number(ctx, "momentum", 0.9)
    for position in (1, 2):
        out, before = ctx.output(position), ctx.input(position + 2)
        if out is None:
            continue

        def body(
            channel: Expr, position: int = position, out: Buffer = out, before: Buffer = before
        ) -> Expr:
            found = _batch_moments(x, channel, kind)
            current = found.mean if position == 1 else found.variance
            kept = before[channel].cast(kind) * momentum
            return (kept + current * (1.0 - momentum)).cast(out.dtype)

        ctx.pure(out, body)


@lowers("LRN")
def local_response(ctx: Lowering) -> None:
    """x / (bias + alpha/size * sum of squares in a window of channels) ** beta."""
    out, x = ctx.output(), ctx.input(0)
    if out is None:
        return
    refuse_opaque(x)
    kind, size = compute_type(x.dtype), int(ctx.node.attribute("size", 1))
    alpha, beta = number(ctx, "alpha", 1e-4), number(ctx, "beta", 0.75)
    bias, channels = number(ctx, "bias", 1.0), dim_value(x.shape[1])

    def body(*index: Expr) -> Expr:
        def square(offset: Expr) -> Expr:
            channel = index[1] + offset - (size - 1) // 2
            value = x[(index[0], channel, *index[2:])].cast(kind)
            return select(channel.ge(0) & channel.lt(channels), value * value, 0.0)

        total = reduce_over("sum", (size,), square)
        scale = call("pow", total * (alpha / size) + bias, beta)
        return (x[index].cast(kind) / scale).cast(out.dtype)

    ctx.pure(out, body)
