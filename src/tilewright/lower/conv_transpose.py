"""ConvTranspose in gather form: each output element sums the taps that reach it.

    out[n, g*M+m, o] = b[g*M+m] + sum_{c, k} x[n, g*C+c, i] * w[g*C+c, m, k]
    over all k with o = i*stride + k*dilation - begin
With stride s > 1, dilation 1 and a known begin only the ceil(K/s) taps of the element's phase are
visited: k = (o+begin) mod s + s*j, i = (o+begin) div s - j.  Otherwise all taps are, under a
divisibility guard.
Guarantees: any number of axes; elements that nothing reaches are 0 plus bias.
Not here: convolution (conv).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.core.shape import Dim
from tilewright.kernel.ir import Expr, call, dim_value
from tilewright.lower.context import Lowering
from tilewright.lower.contraction import guarded, is_one, sum_over, widen
from tilewright.lower.conv import Groups, emit_by_group
from tilewright.lower.registry import lowers


@dataclass(frozen=True, slots=True, kw_only=True)
class TransposedWindow:
    """One spatial axis; ``size`` is the extent of the data."""

    size: Dim
    kernel: Dim
    stride: Dim
    dilation: Dim
    begin: Dim

    @property
    def by_phase(self) -> bool:
        """Whether only the taps of an element's phase are visited."""
        return (
            self.stride.is_const
            and self.stride.const > 1
            and is_one(self.dilation)
            and self.begin.is_const
            and self.begin.const >= 0
        )

    @property
    def visits(self) -> Dim:
        """Number of taps visited for an output element."""
        return self.kernel.ceildiv(self.stride) if self.by_phase else self.kernel

    def tap(self, index: Expr, visit: Expr) -> Tap:
        """The tap of a visit, and where it reads."""
        shifted = index + dim_value(self.begin)
        if self.by_phase:
            stride = self.stride.const
            tap = call("mod", shifted, stride) + visit * stride
            position = call("div", shifted, stride) - visit
            whole = self.kernel.is_const and self.kernel.const % stride == 0
            exists = [] if whole else [tap.lt(dim_value(self.kernel))]
        else:
            tap, exists = visit, []
            position = shifted - visit * dim_value(self.dilation)
            if not is_one(self.stride):
                stride_value = dim_value(self.stride)
                exists.append(call("mod", position, stride_value).eq(0))
                position = call("div", position, stride_value)
        return Tap(tap, position, exists, [position.ge(0), position.lt(dim_value(self.size))])


@dataclass(frozen=True, slots=True)
class Tap:
    """A tap's number and data position; conditions under which it exists and reads data."""

    number: Expr
    position: Expr
    exists: list[Expr]
    inside: list[Expr]


@lowers("ConvTranspose")
def conv_transpose(ctx: Lowering) -> None:
    """All attributes; ``output_padding`` and ``output_shape`` are in the shape and the pads."""
    out, x, w, bias = ctx.output(), ctx.input(0), ctx.input(1), ctx.optional(2)
    if out is None:
        return
    windows = [
        TransposedWindow(
            size=size,
            kernel=ctx.param("kernel")[k],
            stride=ctx.param("strides")[k],
            dilation=ctx.param("dilations")[k],
            begin=ctx.param("pads")[k],
        )
        for k, size in enumerate(x.shape[2:])
    ]
    count = int(ctx.node.attribute("group", 1))
    groups = Groups(count=count, depth=w.shape[0] // count, filters=w.shape[1])

    def body(n: Expr, channel: Sequence[Expr], at: Sequence[Expr]) -> Expr:
        def term(c: Expr, *visits: Expr) -> Expr:
            taps = [
                window.tap(index, visit)
                for window, index, visit in zip(windows, at, visits, strict=True)
            ]
            source = groups.source(channel, c)
            value = widen(x[(n, source, *(tap.position for tap in taps))])
            weight = widen(
                w[(source, _filter_of_group(groups, channel), *(tap.number for tap in taps))]
            )
            exists = [guard for tap in taps for guard in tap.exists]
            inside = [guard for tap in taps for guard in tap.inside]
            # Both are 0 where no tap exists: infinite data times a missing weight is nothing.
            return guarded([*inside, *exists], value, 0) * guarded(exists, weight, 0)

        extents = [groups.depth, *(window.visits for window in windows)]
        total = sum_over(extents, term)
        m = groups.filter(channel)
        return (total if bias is None else total + widen(bias[m])).cast(out.dtype)

    emit_by_group(ctx, out, groups, body)


def _filter_of_group(groups: Groups, channel: Sequence[Expr]) -> Expr | int:
    """The filter's index within its group."""
    return channel[-1] if groups.count == 1 or groups.is_split else 0
