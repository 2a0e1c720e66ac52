"""Floats of 16 bits and fewer as integers: encoding and decoding by bit operations.

Input -> Output: float32 lanes <-> the format's code in integer lanes.
Guarantees: one rounding to nearest even from float32 (``round_to_odd`` makes that true from float64
too); every code decodes exactly; neither uses denormal operands, which are slow on some processors.
Source: ml_dtypes' formats; OCP 8-bit floating point and microscaling specifications.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.codegen.cpu.emit import Builder
from tilewright.codegen.cpu.values import BFLOAT, FLOAT, I16, I32, Type, Value, constant
from tilewright.core.dtypes import (
    FLOAT4_E2M1,
    FLOAT8_E4M3FN,
    FLOAT8_E4M3FNUZ,
    FLOAT8_E5M2,
    FLOAT8_E5M2FNUZ,
    FLOAT16,
    DType,
)

_INFINITY = 0x7F800000
_QUIET_NAN = 0x7FC00000
_MAGNITUDE = 0x7FFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A binary float format with a sign bit.

    Attributes:
        bits: width.
        mantissa: explicit mantissa bits.
        bias: exponent bias.
        highest: code of the largest finite number.
        overflow: code for what lies above it (an infinity, a NaN or the largest number).
        nan: code of NaN without its sign.
        unsigned_zero: no negative zero; the code with only the sign bit is NaN.
        saturates: can overflow be asked to give the largest number (8-bit floats)?
    """

    bits: int
    mantissa: int
    bias: int
    highest: int
    overflow: int
    nan: int
    unsigned_zero: bool = False
    saturates: bool = True

    @property
    def has_infinity(self) -> bool:
        return self.overflow == self.highest + 1 and self.nan > self.overflow


FORMATS: dict[DType, Format] = {
    FLOAT16: Format(
        bits=16, mantissa=10, bias=15, highest=0x7BFF, overflow=0x7C00, nan=0x7E00, saturates=False
    ),
    FLOAT8_E4M3FN: Format(bits=8, mantissa=3, bias=7, highest=0x7E, overflow=0x7F, nan=0x7F),
    FLOAT8_E4M3FNUZ: Format(
        bits=8, mantissa=3, bias=8, highest=0x7F, overflow=0x80, nan=0x80, unsigned_zero=True
    ),
    FLOAT8_E5M2: Format(bits=8, mantissa=2, bias=15, highest=0x7B, overflow=0x7C, nan=0x7E),
    FLOAT8_E5M2FNUZ: Format(
        bits=8, mantissa=2, bias=16, highest=0x7F, overflow=0x80, nan=0x80, unsigned_zero=True
    ),
    # No NaN and no infinity: NaN becomes a zero of the other sign (as in ml_dtypes), overflow the
    # largest number.
    FLOAT4_E2M1: Format(bits=4, mantissa=1, bias=1, highest=7, overflow=7, nan=8, saturates=False),
}


def round_to_odd(b: Builder, x: Value) -> Value:
    """float64 -> float32 such that a further rounding to fewer bits acts as the only one."""
    single = FLOAT.with_lanes(x.type.lanes)
    near = b.fptrunc(x, single)
    back = b.fpext(near, x.type)
    outward = b.fcmp("ogt", _magnitude(b, back), _magnitude(b, x))
    inexact = b.fcmp("one", back, x)
    bits = b.bitcast(near, single.as_int())
    inward = b.add(bits, b.sext(outward, bits.type))
    return b.bitcast(b.or_(inward, b.zext(inexact, bits.type)), single)


def _magnitude(b: Builder, x: Value) -> Value:
    return b.intrinsic("fabs", x.type, [x])


def encode(b: Builder, x: Value, form: Format, saturate: bool, storage: Type) -> Value:
    """float32 lanes -> codes; ``saturate`` gives the largest number instead of ``overflow``."""
    whole = I32.with_lanes(x.type.lanes)
    bits = b.bitcast(x, whole)
    a = b.and_(bits, constant(whole, _MAGNITUDE))
    drop = 23 - form.mantissa
    odd = b.and_(b.lshr(a, constant(whole, drop)), constant(whole, 1))
    rounded = b.add(a, b.add(odd, constant(whole, (1 << (drop - 1)) - 1)))
    rebias = (127 - form.bias) << form.mantissa
    normal = b.sub(b.lshr(rounded, constant(whole, drop)), constant(whole, rebias))
    # Below the smallest normal number an addition rounds: its last place is the smallest step.
    anchor = constant(x.type, 2.0 ** (24 - form.bias - form.mantissa))
    shifted = b.bitcast(b.add(b.bitcast(a, x.type), anchor), whole)
    anchor_bits = (127 + 24 - form.bias - form.mantissa) << 23
    subnormal = b.sub(shifted, constant(whole, anchor_bits))
    is_small = b.icmp("ult", a, constant(whole, (128 - form.bias) << 23))
    code = b.select(is_small, subnormal, normal)
    over = form.highest if saturate and form.saturates else form.overflow
    too_large = b.icmp("ugt", code, constant(whole, form.highest))
    code = b.select(too_large, constant(whole, over), code)
    is_nan = b.icmp("ugt", a, constant(whole, _INFINITY))
    sign = b.and_(
        b.lshr(bits, constant(whole, 32 - form.bits)), constant(whole, 1 << form.bits - 1)
    )
    if form.unsigned_zero:
        signed = b.or_(code, sign)
        signed = b.select(b.icmp("eq", code, constant(whole, 0)), code, signed)
        code = b.select(is_nan, constant(whole, form.nan), signed)
    else:
        code = b.xor(b.select(is_nan, constant(whole, form.nan), code), sign)
    return b.trunc(code, storage)


def decode(b: Builder, code: Value, form: Format) -> Value:
    """Codes -> float32 lanes, exactly; bits above the format's width are ignored."""
    whole = I32.with_lanes(code.type.lanes)
    single = FLOAT.with_lanes(code.type.lanes)
    wide = b.zext(code, whole)
    sign_bit = 1 << (form.bits - 1)
    a = b.and_(wide, constant(whole, sign_bit - 1))
    drop = 23 - form.mantissa
    placed = b.add(b.shl(a, constant(whole, drop)), constant(whole, (127 - form.bias) << 23))
    # Exponent field 0: one exponent step up, then without the implicit 1.
    stepped = b.bitcast(b.add(placed, constant(whole, 1 << 23)), single)
    subnormal = b.bitcast(b.sub(stepped, constant(single, 2.0 ** (1 - form.bias))), whole)
    is_small = b.icmp("ult", a, constant(whole, 1 << form.mantissa))
    bits = b.select(is_small, subnormal, placed)
    if form.has_infinity:
        special = b.icmp("ugt", a, constant(whole, form.highest))
        bits = b.select(special, b.or_(bits, constant(whole, _INFINITY)), bits)
    elif form.nan == form.overflow and not form.unsigned_zero:
        special = b.icmp("eq", a, constant(whole, form.nan))
        bits = b.select(special, constant(whole, _QUIET_NAN), bits)
    sign = b.shl(b.and_(wide, constant(whole, sign_bit)), constant(whole, 32 - form.bits))
    bits = b.or_(bits, sign)
    if form.unsigned_zero:
        is_nan = b.icmp("eq", wide, constant(whole, form.nan))
        bits = b.select(is_nan, constant(whole, _QUIET_NAN | 1 << 31), bits)
    return b.bitcast(bits, single)


# --- formats with rules of their own --------------------------------------------------------------


def encode_bfloat16(b: Builder, x: Value) -> Value:
    """float32 lanes -> i16 lanes.  (The processor's own instruction would flush denormals.)"""
    whole = I32.with_lanes(x.type.lanes)
    bits = b.bitcast(x, whole)
    sixteen = constant(whole, 16)
    odd = b.and_(b.lshr(bits, sixteen), constant(whole, 1))
    rounded = b.lshr(b.add(bits, b.add(odd, constant(whole, 0x7FFF))), sixteen)
    sign = b.and_(b.lshr(bits, sixteen), constant(whole, 0x8000))
    nan = b.or_(sign, constant(whole, 0x7FC0))
    code = b.select(b.fcmp("uno", x, x), nan, rounded)
    return b.trunc(code, I16.with_lanes(whole.lanes))


def emit_flushed_bfloat16(b: Builder, x: Value) -> Value | None:
    """The same by one instruction, where there is it: float32 denormals become 0."""
    bits = 32 * x.type.lanes
    if not (b.target.architecture == "x86_64" and b.target.has_bf16 and bits in (256, 512)):
        return None
    halves = BFLOAT.with_lanes(x.type.lanes)
    name = f"llvm.x86.avx512bf16.cvtneps2bf16.{bits}"
    return b.bitcast(b.call(name, halves, [x]), halves.as_int())


def decode_bfloat16(b: Builder, code: Value) -> Value:
    """i16 lanes -> float32 lanes."""
    whole = I32.with_lanes(code.type.lanes)
    shifted = b.shl(b.zext(code, whole), constant(whole, 16))
    return b.bitcast(shifted, FLOAT.with_lanes(whole.lanes))


def encode_e8m0(b: Builder, x: Value, saturate: bool, storage: Type) -> Value:
    """float32 lanes -> exponents: nearest power of two of the magnitude, ties upwards.

    NaN and infinity give 255 (NaN).  0 and what is out of range: saturated to 0 .. 254, else 255.
    """
    whole = I32.with_lanes(x.type.lanes)
    a = b.and_(b.bitcast(x, whole), constant(whole, _MAGNITUDE))
    normal = b.lshr(b.add(a, constant(whole, 1 << 22)), constant(whole, 23))
    denormal = b.zext(b.icmp("uge", a, constant(whole, 0x00600000)), whole)
    is_denormal = b.icmp("ult", a, constant(whole, 1 << 23))
    exponent = b.select(is_denormal, denormal, normal)
    if saturate:
        code = b.intrinsic("umin", whole, [exponent, constant(whole, 254)])
    else:
        # Code 0 is 2**-127, a denormal float32: what rounds below it is out of range.
        too_small = b.icmp("ult", a, constant(whole, 0x00300000))
        code = b.select(too_small, constant(whole, 255), exponent)
    special = b.icmp("uge", a, constant(whole, _INFINITY))
    return b.trunc(b.select(special, constant(whole, 255), code), storage)


def decode_e8m0(b: Builder, code: Value) -> Value:
    """Exponents -> float32 lanes; 255 is NaN, 0 is the denormal 2**-127."""
    whole = I32.with_lanes(code.type.lanes)
    wide = b.zext(code, whole)
    bits = b.shl(wide, constant(whole, 23))
    bits = b.select(b.icmp("eq", wide, constant(whole, 0)), constant(whole, 1 << 22), bits)
    nan = b.icmp("eq", wide, constant(whole, 255))
    return b.bitcast(
        b.select(nan, constant(whole, _QUIET_NAN), bits), FLOAT.with_lanes(whole.lanes)
    )
