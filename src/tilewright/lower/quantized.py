"""What quantised products share: 8-bit operands, zero points, scales, the final requantisation.

    y = clamp(round_half_even(float32(acc) * ((a_scale * b_scale) / y_scale)) + y_zero_point)
Guarantees: ``acc`` is an exact int32 sum; the factor is rounded to float32 after each operation,
the product once: results equal the NumPy reference (``runtime.reference.quantization``) bit for
bit (docs/precision.md).
Not here: the contractions (integer_matmul, integer_conv), QuantizeLinear.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.core.dtypes import FLOAT32, INT8, INT32, UINT8, DType
from tilewright.kernel.ir import Buffer, Expr, call, cast, constant, select
from tilewright.lower.context import Array, Lowering, Unlowerable
from tilewright.lower.contraction import scalar

Locate = Callable[[Buffer], Expr]
_FLIP = 128  # between int8 and uint8 of the same bits


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


# --- operands of exact products of bytes ----------------------------------------------------------


def unsigned(ctx: Lowering, value: Expr) -> Expr:
    """An 8-bit value as uint8: a signed one moves up by 128, by its highest bit; or as it is."""
    if value.dtype is UINT8 or ctx.signed_bytes:
        return value
    return call("xor", cast(value, UINT8, bits=True), _FLIP)


def unsigned_zero(ctx: Lowering, zero: Array | None, dtype: DType) -> Array:
    """The zero point that belongs to ``unsigned`` values, as int64."""
    plain = np.zeros((), np.int64) if zero is None else zero.astype(np.int64)
    return np.asarray(plain + (_FLIP if dtype is INT8 and not ctx.signed_bytes else 0))


def signed_weights(
    ctx: Lowering, position: int, zero_position: int, *, transposed: bool = False
) -> Buffer | None:
    """Known 8-bit weights whose zero point is 0 as int8 (transposed if asked); None for others."""
    weights, zero = ctx.content(position), ctx.content(zero_position)
    if weights is None or (ctx.optional(zero_position) is not None and zero is None):
        return None
    middle = _FLIP if weights.dtype == np.uint8 else 0
    if weights.dtype not in (np.uint8, np.int8):
        return None
    if (np.zeros(()) if zero is None else zero.astype(np.int64) - middle).any() or (
        zero is None and middle
    ):
        return None
    if not middle and not transposed:
        return ctx.input(position)
    signed = (weights ^ np.uint8(_FLIP)).view(np.int8) if middle else weights
    return ctx.constant(np.ascontiguousarray(signed.T if transposed else signed), INT8)


# --- requantisation -------------------------------------------------------------------------------


def combined_scale(
    ctx: Lowering, positions: tuple[int, int, int], left: Locate, right: Locate
) -> Expr:
    """``(scale_a * scale_b) / scale_y`` in float32; a constant if all are known single numbers."""
    contents = [ctx.content(position) for position in positions]
    if all(content is not None and content.size == 1 for content in contents):
        a, b, y = (content.reshape(-1) for content in contents if content is not None)
        return constant(float(known_factor(a, b, y)[0]), FLOAT32)
    scales = [
        scale.cast(FLOAT32)
        for position, locate in zip(positions, (left, right, scalar), strict=True)
        if (scale := parameter(ctx, position, locate)) is not None
    ]
    if len(scales) != len(positions):
        raise Unlowerable("a scale is absent")
    return scales[0] * scales[1] / scales[2]


def known_factor(a: Array, b: Array, y: Array | None = None) -> Array:
    """The factor of known scales, in float32, rounded after each operation."""
    with np.errstate(all="ignore"):
        product = a.astype(np.float32) * b.astype(np.float32)
        return np.asarray(product if y is None else product / y.astype(np.float32))


def requantized(total: Expr, factor: Expr, zero: Expr | None, dtype: DType) -> Expr:
    """The sum in the output's type (see the module's formula); no ``round`` for 8-bit floats."""
    value = total.cast(FLOAT32) * factor
    if not dtype.is_integer:
        return (value if zero is None else value + zero.cast(FLOAT32)).cast(dtype)
    return nearest(value, zero, dtype)


def nearest(value: Expr, zero: Expr | None, dtype: DType) -> Expr:
    """The nearest integer, half to even, plus the zero point, clamped; NaN as infinity."""
    least = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    most = least + (1 << dtype.bits) - 1
    known = 0 if zero is None else getattr(zero, "value", None)
    # Clamped first: what is rounded then fits.
    if known is not None:
        whole = _whole(value, least - known, most - known)
        return (whole + int(known) if known else whole).cast(dtype)
    whole = _whole(value, least - most, most - least)
    if zero is not None:
        whole = whole + zero.cast(INT32)
    return whole.max(least).min(most).cast(dtype)


def _whole(value: Expr, low: float, high: float) -> Expr:
    """The nearest integer between two, as int32."""
    value = select(value.lt(high), value, constant(high, FLOAT32))
    value = select(value.gt(low), value, constant(low, FLOAT32))
    return call("round", value).cast(INT32)
