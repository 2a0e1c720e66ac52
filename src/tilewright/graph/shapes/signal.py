"""Shape rules of Fourier transforms.

Input -> Output: signal shape, length and axis -> result shape; ``outer_axis_inner`` and
``dft_length``.
Source: ONNX DFT-20, STFT-17.
"""

from __future__ import annotations

from tilewright.core.shape import Dim, product
from tilewright.graph.info import NodeInfo
from tilewright.graph.shapes.registry import ONE, RuleContext, Shape, shape_rule

_TWO = Dim.of(2)


@shape_rule("DFT")
def dft(ctx: RuleContext) -> NodeInfo:
    """One axis transformed; the last axis holds real and imaginary parts."""
    shape = ctx.shape(0)
    signal = shape[:-1]
    inverse, one_sided = bool(ctx.integer("inverse", 0)), bool(ctx.integer("onesided", 0))
    parts = ONE if inverse and one_sided else _TWO
    if ctx.has(2) and ctx.ints(2) is None:
        return _run_time_axis(ctx, signal, parts, inverse=inverse, one_sided=one_sided)
    axis = ctx.normal_axis((ctx.ints(2) or [-2])[0], len(shape))
    if axis == len(signal):
        ctx.mismatch("the last axis holds the complex parts")
    split = product(signal[:axis]), signal[axis], product(signal[axis + 1 :])
    default = (split[1] - 1) * 2 if inverse and one_sided else split[1]
    length = _length(ctx, 1, default)
    bins = length // 2 + 1 if one_sided and not inverse else length
    result = (*signal[:axis], bins, *signal[axis + 1 :], parts)
    return ctx.result(result, params={"outer_axis_inner": split, "dft_length": (length,)})


def _length(ctx: RuleContext, position: int, default: Dim) -> Dim:
    if not ctx.has(position):
        return default
    known = ctx.dims(position)
    if known is not None and ctx.facts.non_negative(known[0]):
        return known[0]
    return ctx.bind_shape("sizes", [ctx.argument(position), 1], 1, "dft_length")[0]


def _run_time_axis(
    ctx: RuleContext, signal: Shape, parts: Dim, *, inverse: bool, one_sided: bool
) -> NodeInfo:
    rank = len(signal)
    names = ["split0", "split1", "split2", "dft_length", *(f"shape{k}" for k in range(rank))]
    arguments = [ctx.argument(2), ctx.argument(1), signal, inverse, one_sided]
    bound = ctx.bind("dft", arguments, names)
    ctx.facts.learn(bound)
    params = {"outer_axis_inner": bound[:3], "dft_length": bound[3:4]}
    return ctx.result((*bound[4:], parts), params=params)


@shape_rule("STFT")
def stft(ctx: RuleContext) -> NodeInfo:
    """[batch, frames, bins, 2]."""
    signal = ctx.shape(0)
    if len(signal) not in (2, 3):
        ctx.mismatch("the signal must have rank 2 or 3")
    step = ctx.dims(1)
    if step is None or not ctx.facts.non_negative(step[0] - 1):
        step = ctx.bind_shape("positive", [ctx.argument(1)], 1, "frame_step")
    if ctx.has(3):
        length = _length(ctx, 3, ONE)
    elif ctx.has(2):
        length = ctx.shape_of_rank(2, 1)[0]
    else:
        ctx.fail("a window or a frame_length is needed")
    frames = (signal[1] - length) // step[0] + 1
    bins = length // 2 + 1 if ctx.integer("onesided", 1) else length
    return ctx.result((signal[0], frames, bins, _TWO), params={"frame_length": (length,)})
