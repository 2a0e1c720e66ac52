"""Sliding windows: where a tap of a convolution or pooling reads, and when that is padding.

Input -> Output: normalised ``kernel``/``strides``/``dilations``/``pads`` -> index and guard
expressions.
Guarantees: a guard is left out only where the position is provably inside for every output
element.
Not here: transposed convolution (conv_transpose).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.core.shape import Dim
from tilewright.kernel.ir import Expr, dim_value
from tilewright.lower.context import Lowering


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One spatial axis.

    Attributes:
        size, out: extents of the data and of the result.
        kernel, stride, dilation: number of taps and their distances.
        begin, end: padding at both ends (negative crops).
    """

    size: Dim
    out: Dim
    kernel: Dim
    stride: Dim
    dilation: Dim
    begin: Dim
    end: Dim

    def position(self, index: Expr, tap: Expr) -> Expr:
        """The data index that a tap of an output element reads; may lie outside."""
        return (
            index * dim_value(self.stride) + tap * dim_value(self.dilation) - dim_value(self.begin)
        )

    def start(self, index: Expr) -> Expr:
        """The data index of the first tap."""
        return index * dim_value(self.stride) - dim_value(self.begin)

    def guards(self, position: Expr) -> list[Expr]:
        """Conditions under which a position is inside the data."""
        found: list[Expr] = []
        if not (self.begin.is_const and self.begin.const <= 0):
            found.append(position.ge(0))
        if not self.ends_inside:
            found.append(position.lt(dim_value(self.size)))
        return found

    @property
    def ends_inside(self) -> bool:
        """Whether the last tap of the last output element is provably inside the data."""
        reach = (self.kernel - 1) * self.dilation
        room = self.size - (self.out - 1) * self.stride - reach + self.begin - 1
        if room.is_const:
            return room.const >= 0
        floor_out = (self.size + self.begin + self.end - reach - 1) // self.stride + 1
        return self.end.is_const and self.end.const <= 0 and self.out == floor_out

    @property
    def is_whole(self) -> bool:
        """Whether no tap of any output element lies in the padding."""
        return self.begin.is_const and self.begin.const <= 0 and self.ends_inside


def windows_of(ctx: Lowering, data: Sequence[Dim], out: Sequence[Dim]) -> list[Window]:
    """The windows of a node, given the spatial dims of its data and result."""
    rank = len(data)
    pads = ctx.param("pads")
    return [
        Window(
            size=data[k],
            out=out[k],
            kernel=ctx.param("kernel")[k],
            stride=ctx.param("strides")[k],
            dilation=ctx.param("dilations")[k],
            begin=pads[k],
            end=pads[k + rank],
        )
        for k in range(rank)
    ]


def positions_of(
    windows: Sequence[Window], index: Sequence[Expr], taps: Sequence[Expr]
) -> tuple[list[Expr], list[Expr]]:
    """Data positions on all axes, and all guards."""
    positions = [
        window.position(at, tap) for window, at, tap in zip(windows, index, taps, strict=True)
    ]
    guards = [
        guard
        for window, position in zip(windows, positions, strict=True)
        for guard in window.guards(position)
    ]
    return positions, guards
