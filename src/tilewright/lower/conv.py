"""Convolution as one contraction: Conv, and what QLinearConv and ConvInteger share with it.

    out[n, g*M+m, o] = b[g*M+m] + sum_{c, k} x[n, g*C+c, i] * w[g*M+m, c, k]
    i = o*stride + k*dilation - begin
Guarantees: any number of spatial axes; indices are affine. With several filters a group the kernel
runs over [n, g, m, o..] and the output is a view of that; a reduction axis of extent 1 is dropped.
Not here: transposed (conv_transpose) and deformable (deform) convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.core.shape import Dim
from tilewright.kernel.ir import Buffer, Expr, dim_value
from tilewright.lower.context import Lowering
from tilewright.lower.contraction import guarded, sum_over, widen
from tilewright.lower.registry import lowers
from tilewright.lower.window import Window, positions_of, windows_of

ReadData = Callable[[tuple[Expr, ...], Sequence[Expr]], Expr]
ReadWeight = Callable[[tuple[Expr, ...]], Expr]
Finish = Callable[[Expr, Expr], Expr]


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """How channels are divided: ``count`` groups of ``depth`` inputs and ``filters`` outputs."""

    count: int
    depth: Dim
    filters: Dim

    @property
    def is_split(self) -> bool:
        """Whether output channels need two axes (group, filter) for indices to be affine."""
        return self.count > 1 and not (self.filters.is_const and self.filters.const == 1)

    def filter(self, channel: Sequence[Expr]) -> Expr:
        """The output channel, from one or two channel indices."""
        return channel[0] * dim_value(self.filters) + channel[1] if self.is_split else channel[0]

    def source(self, channel: Sequence[Expr], c: Expr) -> Expr:
        """The input channel that channel ``c`` of the group is."""
        return c if self.count == 1 else channel[0] * dim_value(self.depth) + c


def emit_by_group(ctx: Lowering, out: Buffer, groups: Groups, body: Callable[..., Expr]) -> None:
    """Emits ``out`` by ``body(n, channel indices, spatial indices)``."""
    if not groups.is_split:
        ctx.pure(out, lambda n, m, *at: body(n, (m,), at))
        return
    batch, _, *spatial = out.shape
    split = ctx.temporary(out.dtype, (batch, groups.count, groups.filters, *spatial))
    ctx.pure(split, lambda n, g, m, *at: body(n, (g, m), at))
    ctx.view(out, split)


def emit_convolution(
    ctx: Lowering,
    out: Buffer,
    weight_shape: Sequence[Dim],
    windows: Sequence[Window],
    *,
    data: ReadData,
    weight: ReadWeight,
    finish: Finish,
) -> None:
    """Emits a convolution.

    Args:
        weight_shape: [filters, channels of a group, taps..].
        data: value of x at [n, c, positions..] where all of the given conditions hold, else of
            the padding.
        weight: value of w at [m, c, taps..].
        finish: the result from the sum and the output channel.
    """
    count = int(ctx.node.attribute("group", 1))
    groups = Groups(count=count, depth=weight_shape[1], filters=weight_shape[0] // count)
    taps_shape = [window.kernel for window in windows]

    def body(n: Expr, channel: Sequence[Expr], at: Sequence[Expr]) -> Expr:
        m = groups.filter(channel)

        def term(c: Expr, *taps: Expr) -> Expr:
            positions, guards = positions_of(windows, at, taps)
            value = data((n, groups.source(channel, c), *positions), guards)
            return value * weight((m, c, *taps))

        return finish(sum_over([groups.depth, *taps_shape], term), m)

    emit_by_group(ctx, out, groups, body)


@lowers("Conv")
def conv(ctx: Lowering) -> None:
    """All attributes, symbolic sizes and pads."""
    out, x, w, bias = ctx.output(), ctx.input(0), ctx.input(1), ctx.optional(2)
    if out is None:
        return

    def finish(total: Expr, m: Expr) -> Expr:
        return (total if bias is None else total + widen(bias[m])).cast(out.dtype)

    emit_convolution(
        ctx,
        out,
        w.shape,
        windows_of(ctx, x.shape[2:], out.shape[2:]),
        data=lambda index, guards: guarded(guards, widen(x[index]), 0),
        weight=lambda index: widen(w[index]),
        finish=finish,
    )
