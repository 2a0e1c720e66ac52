"""Between floats and integers with a scale and a zero point.

    QuantizeLinear(x, s, z)    ->  out[i] = saturate(round(x[i] / s) + z)
    DequantizeLinear(q, s, z)  ->  out[i] = (q[i] - z) * s
Guarantees: half to even, once, before the zero point is added; the division has the precision of
the scale; per tensor, per axis and blocked; a NaN gives the zero point.
Not here: quantised contractions.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.core.dtypes import (
    BY_CODE,
    FLOAT8_E8M0,
    FLOAT32,
    FLOAT64,
    INT32,
    UINT8,
    UINT32,
    DType,
)
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Axis, Buffer, Expr, Stage, Store, call, cast, reduce_over, select
from tilewright.lower.broadcast import broadcast_load, refuse_opaque
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.precision import compute_type, flag
from tilewright.lower.quantized import nearest, single
from tilewright.lower.registry import lowers

_UINT8_MAX = 255
_LEAST_ROW = 256
_SIGN = 1 << 31
_NARROW = 16  # bits of integers that float32 holds, sums with a zero point too


def spread_load(ctx: Lowering, parameter: Buffer, x: Buffer, index: Sequence[Expr]) -> Expr:
    """The scale or zero point of one element: of the tensor, of its axis index, or of its block."""
    if not parameter.shape:
        return parameter[()]
    axis = int(ctx.node.attribute("axis", 1)) % len(x.shape)
    block = int(ctx.node.attribute("block_size", 0))
    if not block:
        if len(parameter.shape) != 1:
            raise Unlowerable("a scale of several dims without block_size")
        return broadcast_load(parameter, (x.shape[axis],), (index[axis],))
    return parameter[(*index[:axis], index[axis] / block, *index[axis + 1 :])]


@lowers("QuantizeLinear")
def quantize(ctx: Lowering) -> None:
    out, x, scale, zero = ctx.output(), ctx.input(0), ctx.input(1), ctx.optional(2)
    if out is None:
        return
    refuse_opaque(x, out)
    if out.dtype is FLOAT8_E8M0:
        raise Unlowerable("quantisation to float8_e8m0")
    precision = BY_CODE.get(int(ctx.node.attribute("precision", 0)), scale.dtype)
    if not precision.is_float:
        precision = FLOAT32
    kind, saturate = compute_type(precision), flag(ctx, "saturate", 1)

    def body(*index: Expr) -> Expr:
        divisor = _in_precision(_value(ctx, 1, scale, x, index), precision)
        ratio = _rounded(_in_precision(x[index], precision) / divisor, precision)
        shift = None if zero is None else _value(ctx, 2, zero, x, index)
        if out.dtype.is_integer:
            return _to_integer(ratio, shift, out.dtype)
        whole = ratio if shift is None else ratio + shift.cast(kind)
        return cast(whole, out.dtype, saturate=saturate)

    ctx.pure(out, body)


def _in_precision(value: Expr, precision: DType) -> Expr:
    return value.cast(precision).cast(compute_type(precision))


def _rounded(value: Expr, precision: DType) -> Expr:
    """The value as the division in ``precision`` gives it."""
    return value.cast(precision).cast(value.dtype)


def _value(ctx: Lowering, position: int, buffer: Buffer, x: Buffer, index: Sequence[Expr]) -> Expr:
    """A scale or zero point of one element: a constant where there is only one, and known."""
    return single(ctx, position) or spread_load(ctx, buffer, x, index)


def _to_integer(ratio: Expr, shift: Expr | None, dtype: DType) -> Expr:
    """Rounds, shifts and saturates; a NaN gives the zero point."""
    number = select(call("isnan", ratio), 0.0, ratio)
    if ratio.dtype is FLOAT32 and dtype.bits <= _NARROW:
        return nearest(number, shift, dtype)
    whole = call("round", number)
    return cast(whole if shift is None else whole + shift.cast(ratio.dtype), dtype)


@lowers("DequantizeLinear")
def dequantize(ctx: Lowering) -> None:
    out, x, scale, zero = ctx.output(), ctx.input(0), ctx.input(1), ctx.optional(2)
    if out is None:
        return
    refuse_opaque(x, out)
    kind = FLOAT64 if x.dtype is INT32 or FLOAT64 in (scale.dtype, out.dtype) else FLOAT32

    def body(*index: Expr) -> Expr:
        value = x[index].cast(kind)
        if zero is not None:
            value = value - _value(ctx, 2, zero, x, index).cast(kind)
        factor = _value(ctx, 1, scale, x, index).cast(kind)
        return cast(value * factor, out.dtype, saturate=False)

    ctx.pure(out, body)


@lowers("DynamicQuantizeLinear")
def dynamic_quantize(ctx: Lowering) -> None:
    """Scale and zero point of a tensor's own range, then its quantisation to uint8.

    Ends of the range are found row by row, which threads share, then those of all rows. The bits of
    floats are compared as integers, which takes a third of the instructions: of numbers that are
    not negative the greatest is the greatest integer, of negative ones the least is the greatest
    integer without a sign; a NaN is beyond one of them.
    """
    x = ctx.input(0)
    refuse_opaque(x)
    y, scale, zero = (ctx.output(position) for position in range(3))
    scale = scale if scale is not None else ctx.temporary(FLOAT32, ())
    zero = zero if zero is not None else ctx.temporary(UINT8, ())
    split = _rows_of(x.shape)
    ends = tuple(ctx.temporary(kind, x.shape[:split]) for kind in (INT32, UINT32))
    axes = tuple(Axis(f"i{k}", dim) for k, dim in enumerate(x.shape[:split]))
    row = tuple(axis.var for axis in axes)

    def greatest(own: Buffer) -> Expr:
        return reduce_over(
            "max", x.shape[split:], lambda *rest: cast(x[(*row, *rest)], own.dtype, bits=True)
        )

    first = tuple(Store(own.name, row, greatest(own)) for own in ends)
    top, bottom = map(_greatest_of, ends)
    second = _scale_and_zero(scale, zero, top, bottom)
    ctx.stages((scale, zero), (Stage(axes, first), Stage((), second)), extra=ends)
    if y is not None:
        known, shift = scale[()], zero[()]
        ctx.pure(y, lambda *index: _to_integer(x[index] / known, shift, UINT8))


def _scale_and_zero(scale: Buffer, zero: Buffer, top: Expr, bottom: Expr) -> tuple[Store, Store]:
    """What a range is quantised by, from the bits of its ends."""
    high = cast(top.max(0), FLOAT32, bits=True)
    low = select(bottom.ge(_SIGN), cast(bottom, FLOAT32, bits=True), 0.0)
    span = high - low
    # A tensor of zeros has no range; any positive step gives zeros. That of a NaN is NaN.
    step = select(span.eq(0.0), 1.0 / _UINT8_MAX, span / float(_UINT8_MAX))
    below = select(call("isnan", span), span, -low)
    return (
        Store(scale.name, (), step),
        Store(zero.name, (), cast(call("round", below / step), UINT8)),
    )


def _greatest_of(ends: Buffer) -> Expr:
    return reduce_over("max", ends.shape, lambda *index: ends[index])


def _rows_of(shape: Sequence[Dim]) -> int:
    """How many leading dims there are rows along: the rest holds enough for a vector loop."""
    size = 1
    for split in reversed(range(len(shape))):
        if not shape[split].is_const:
            return split
        size *= shape[split].const
        if size >= _LEAST_ROW:
            return split
    return 0
