"""Conversions of element types.

    Cast(x, to=int8)  ->  out[i] = int8(x[i])
Guarantees: one rounding; floats to integers truncate and saturate, integers wrap.
Not here: quantisation (lower.quantize).
"""

from __future__ import annotations

from tilewright.core.dtypes import BOOL, FLOAT8_E8M0, FLOAT32, INT32, UINT8, UINT32
from tilewright.kernel.ir import Expr, call, cast, constant, select
from tilewright.lower.broadcast import refuse_opaque
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.precision import flag, text_attribute
from tilewright.lower.registry import lowers

_NAN_CODE = 255
_FRACTION_BITS = 23


@lowers("Cast", "CastLike")
def convert(ctx: Lowering) -> None:
    """``CastLike`` takes only the type of its second input."""
    out, x = ctx.output(), ctx.input(0)
    if out is None:
        return
    refuse_opaque(x, out)
    if x.dtype is out.dtype:
        ctx.view(out, x)
        return
    if x.dtype.is_float and out.dtype.is_integer and out.dtype.bits < 8:
        # ONNX's own cases keep the low bits here.
        ctx.pure(out, lambda *index: x[index].cast(INT32).cast(out.dtype))
        return
    saturate = flag(ctx, "saturate", 1)
    if out.dtype is FLOAT8_E8M0:
        mode = text_attribute(ctx, "round_mode", "up")
        ctx.pure(out, lambda *index: _to_e8m0(x[index].cast(FLOAT32), mode, saturate))
        return
    ctx.pure(out, lambda *index: cast(x[index], out.dtype, saturate=saturate))


@lowers("BitCast")
def bit_cast(ctx: Lowering) -> None:
    out, x = ctx.output(), ctx.input(0)
    if out is None:
        return
    refuse_opaque(x, out)
    if x.dtype.bits != out.dtype.bits or x.dtype.storage_bytes != out.dtype.storage_bytes:
        raise Unlowerable(f"{x.dtype} and {out.dtype} have different sizes")
    if x.dtype is out.dtype:
        ctx.view(out, x)
        return
    ctx.pure(out, lambda *index: cast(x[index], out.dtype, bits=True))


def _to_e8m0(value: Expr, mode: str, saturate: bool) -> Expr:
    """Powers of two as the exponent field of a float32: code 127 is 1, 255 is NaN.

    Below the smallest normal float32, code 0 (2**-127) has a fraction of one half.
    """
    bits = cast(call("abs", value), UINT32, bits=True)
    code = call("shr", bits, _FRACTION_BITS)
    fraction = call("and", bits, (1 << _FRACTION_BITS) - 1)
    half = 1 << (_FRACTION_BITS - 1)
    modes = {
        # mode: (rounds up when normal, rounds up to code 1, rounds up to code 0 or more)
        "up": (fraction.gt(0), fraction.gt(half), fraction.gt(half // 2)),
        "down": (constant(False, BOOL), constant(False, BOOL), fraction.ge(half)),
        "nearest": (fraction.ge(half), fraction.ge(half + half // 2), fraction.ge(half * 3 // 4)),
    }
    if mode not in modes:
        raise Unlowerable(f"round_mode {mode}")
    normal, tiny, enough = modes[mode]
    rounded = code + select(code.eq(0), tiny, normal).cast(UINT32)
    top = _NAN_CODE - 1
    if saturate:
        result = select(call("isnan", value), _NAN_CODE, rounded.min(top))
    else:
        representable = rounded.le(top) & (code.gt(0) | enough) & code.lt(_NAN_CODE)
        result = select(representable, rounded, _NAN_CODE)
    return cast(result.cast(UINT8), FLOAT8_E8M0, bits=True)
