"""What quantised products share: zero points, combined scales, and the final requantisation.

    y = saturate(round_half_even(acc * (a_scale * b_scale / y_scale)) + y_zero_point)
Guarantees: ``acc`` is an exact int32 sum; factor and product are float64, so there is a single
rounding that matters and results equal the NumPy reference bit for bit.
Not here: the contractions (integer_matmul, integer_conv), QuantizeLinear.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.core.dtypes import FLOAT32, FLOAT64, INT32, DType
from tilewright.kernel.ir import Buffer, Expr, call, constant
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.contraction import scalar

Locate = Callable[[Buffer], Expr]


def single(ctx: Lowering, position: int) -> Expr | None:
    """The value of a known input with one element, as a constant."""
    content = ctx.content(position)
    if content is None or content.size != 1:
        return None
    dtype = ctx.input(position).dtype
    value = content.reshape(-1)[0]
    return constant(float(value) if dtype.is_float else int(value), dtype)


def parameter(ctx: Lowering, position: int, locate: Locate) -> Expr | None:
    """A scale or zero point: a constant where known, else loaded by ``locate``; None if absent."""
    buffer = ctx.optional(position)
    if buffer is None:
        return None
    return single(ctx, position) or locate(buffer)


def centred(value: Expr, zero: Expr | None) -> Expr:
    """``value - zero`` in int32, or in float32 for 8-bit floats."""
    wide = FLOAT32 if value.dtype.is_float else INT32
    if zero is None or _is_zero(zero):
        return value.cast(wide)
    return value.cast(wide) - zero.cast(wide)


def _is_zero(value: Expr) -> bool:
    return value is constant(0, value.dtype)


def combined_scale(
    ctx: Lowering, positions: tuple[int, int, int], left: Locate, right: Locate
) -> Expr:
    """``scale_a * scale_b / scale_y`` in float64; a constant if all are known single numbers."""
    contents = [ctx.content(position) for position in positions]
    if all(content is not None and content.size == 1 for content in contents):
        a, b, y = (float(content.reshape(-1)[0]) for content in contents if content is not None)
        if y:
            return constant(a * b / y, FLOAT64)
    scales = [
        scale.cast(FLOAT64)
        for position, locate in zip(positions, (left, right, scalar), strict=True)
        if (scale := parameter(ctx, position, locate)) is not None
    ]
    if len(scales) != len(positions):
        raise Unlowerable("a scale is absent")
    return scales[0] * scales[1] / scales[2]


def requantized(total: Expr, factor: Expr, zero: Expr | None, dtype: DType) -> Expr:
    """The sum in the output's type (see the module's formula); no ``round`` for 8-bit floats."""
    value = total.cast(FLOAT64) * factor
    if dtype.is_integer:
        value = call("round", value)
    if zero is not None and not _is_zero(zero):
        value = value + zero.cast(FLOAT64)
    return value.cast(dtype)
