"""Conversions between all numeric element types, and how each travels in registers.

    type                      in memory      in registers
    bool                      i8, 0 or 1     i1
    8..64-bit integers        iN             iN
    int4, uint4, int2, uint2  i8, low bits   i8, sign- or zero-extended
    float16                   half           half
    float32, float64          float, double  float, double
    other floats              i8 or i16      the same integer: their code
Guarantees: ``kernel.ir.Cast``'s semantics; every conversion rounds once.
Not here: addresses (memory), the bit patterns of narrow floats (small_floats).
"""

from __future__ import annotations

from tilewright.codegen.cpu.emit import Builder
from tilewright.codegen.cpu.small_floats import (
    FORMATS,
    decode,
    decode_bfloat16,
    decode_e8m0,
    encode,
    encode_bfloat16,
    encode_e8m0,
    round_to_odd,
)
from tilewright.codegen.cpu.values import DOUBLE, FLOAT, HALF, I1, Type, Value, constant, int_type
from tilewright.core.dtypes import (
    BFLOAT16,
    BOOL,
    FLOAT8_E8M0,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    DType,
    Kind,
)
from tilewright.core.errors import InternalError

_NATIVE = {FLOAT16: HALF, FLOAT32: FLOAT, FLOAT64: DOUBLE}


def register_type(dtype: DType, lanes: int = 1) -> Type:
    """The LLVM type of an element while it is computed with."""
    if dtype is BOOL:
        return I1.with_lanes(lanes)
    return storage_type(dtype, lanes)


def storage_type(dtype: DType, lanes: int = 1) -> Type:
    """The LLVM type of an element in memory."""
    if dtype.kind in (Kind.STRING, Kind.COMPLEX):
        raise InternalError(f"{dtype} is not compiled")
    if dtype in _NATIVE:
        return _NATIVE[dtype].with_lanes(lanes)
    return int_type(8 * dtype.storage_bytes, lanes)


def to_register(b: Builder, stored: Value, dtype: DType) -> Value:
    """A loaded element as it is computed with; unused high bits of small types are ignored."""
    if dtype is BOOL:
        return b.icmp("ne", stored, constant(stored.type, 0))
    if dtype.is_integer and dtype.bits < 8:
        return _low_bits(b, stored, dtype)
    return stored


def to_storage(b: Builder, value: Value, dtype: DType) -> Value:
    """A register value as it is stored: high bits of small types are 0, as in ml_dtypes."""
    if dtype is BOOL:
        return b.zext(value, storage_type(dtype, value.type.lanes))
    if dtype.is_integer and dtype.is_signed and dtype.bits < 8:
        return b.and_(value, constant(value.type, (1 << dtype.bits) - 1))
    return value


def emit_constant(number: int | float | bool, dtype: DType, lanes: int = 1) -> Value:
    """A literal of a computing type, float16 or a small integer, in its register type."""
    kind = register_type(dtype, lanes)
    if dtype.is_float and kind.is_int:
        code = int(dtype.numpy.type(number).view(f"u{dtype.storage_bytes}"))
        return constant(kind, code)
    return constant(kind, number)


def emit_cast(
    b: Builder,
    value: Value,
    source: DType,
    target: DType,
    saturate: bool = True,
    *,
    bits: bool = False,
) -> Value:
    """Converts register lanes of one element type to another's (see ``kernel.ir.Cast``).

    Args:
        value: lanes of ``register_type(source)``.
        saturate: 8-bit floats: largest number instead of infinity or NaN.
        bits: reinterpret; both types have the same number of bits.
    """
    if source is target:
        return value
    if bits:
        return _reinterpret(b, value, source, target)
    if not source.is_float:
        return _from_integer(b, value, source, target, saturate)
    if source not in (FLOAT32, FLOAT64):
        value, source = _widen(b, value, source), FLOAT32
        if target is FLOAT32:
            return value
    return _from_float(b, value, target, saturate)


def _reinterpret(b: Builder, value: Value, source: DType, target: DType) -> Value:
    if source.bits != target.bits:
        raise InternalError(f"{source} and {target} have different widths")
    stored = to_storage(b, value, source)
    stored = b.bitcast(stored, storage_type(target, value.type.lanes))
    return to_register(b, stored, target)


def _low_bits(b: Builder, value: Value, dtype: DType) -> Value:
    """i8 lanes whose low bits are a small integer -> the integer, extended."""
    if not dtype.is_signed:
        return b.and_(value, constant(value.type, (1 << dtype.bits) - 1))
    unused = constant(value.type, 8 - dtype.bits)
    return b.ashr(b.shl(value, unused), unused)


# --- from integers --------------------------------------------------------------------------------


def _from_integer(b: Builder, value: Value, source: DType, target: DType, saturate: bool) -> Value:
    lanes = value.type.lanes
    if target is BOOL:
        return b.icmp("ne", value, constant(value.type, 0))
    if not target.is_float:
        kind = register_type(target, lanes)
        if kind.bits > value.type.bits:
            resized = b.sext(value, kind) if source.is_signed else b.zext(value, kind)
        else:
            resized = b.trunc(value, kind)
        return _low_bits(b, resized, target) if target.bits < 8 else resized
    # Integers of up to 24 bits, and all that do not overflow float16, are exact in float32.
    narrow = target not in (FLOAT32, FLOAT64)
    exact = not narrow or source.bits <= 16 or target is FLOAT16
    middle = FLOAT64 if target is FLOAT64 or not exact else FLOAT32
    kind = register_type(middle, lanes)
    floating = b.sitofp(value, kind) if source.is_signed else b.uitofp(value, kind)
    return floating if middle is target else _from_float(b, floating, target, saturate)


# --- from floats ----------------------------------------------------------------------------------


def _widen(b: Builder, value: Value, source: DType) -> Value:
    """Any narrow float -> float32, exactly."""
    if source is FLOAT16:
        if b.target.has_f16c:
            return b.fpext(value, FLOAT.with_lanes(value.type.lanes))
        return decode(b, b.bitcast(value, value.type.as_int()), FORMATS[FLOAT16])
    if source is BFLOAT16:
        return decode_bfloat16(b, value)
    if source is FLOAT8_E8M0:
        return decode_e8m0(b, value)
    return decode(b, value, FORMATS[source])


def _from_float(b: Builder, value: Value, target: DType, saturate: bool) -> Value:
    """From float or double lanes."""
    kind = value.type
    if target is BOOL:
        return b.fcmp("une", value, constant(kind, 0.0))
    if not target.is_float:
        return _to_integer(b, value, target)
    if target is FLOAT64:
        return b.fpext(value, DOUBLE.with_lanes(kind.lanes))
    if target is FLOAT32:
        return b.fptrunc(value, FLOAT.with_lanes(kind.lanes))
    single = round_to_odd(b, value) if kind.bits == 64 else value
    storage = storage_type(target, kind.lanes)
    if target is FLOAT16:
        if b.target.has_f16c:
            return b.fptrunc(single, storage)
        return b.bitcast(encode(b, single, FORMATS[FLOAT16], False, storage.as_int()), storage)
    if target is BFLOAT16:
        return encode_bfloat16(b, single)
    if target is FLOAT8_E8M0:
        return encode_e8m0(b, single, saturate, storage)
    return encode(b, single, FORMATS[target], saturate, storage)


def _to_integer(b: Builder, value: Value, target: DType) -> Value:
    """Truncates and saturates; NaN gives 0.

    LLVM's own saturating conversions take vectors apart, so: clamp, convert, mend.
    """
    source = value.type
    low = -(1 << (target.bits - 1)) if target.is_signed else 0
    high = low + (1 << target.bits) - 1
    kind = int_type(max(32, target.bits), source.lanes)
    limit = _float_at_most(high, source.bits)
    above_low = b.fcmp("ogt", value, constant(source, float(low)))  # false for NaN
    inside = b.select(above_low, value, constant(source, float(low)))
    below_limit = b.fcmp("olt", inside, constant(source, limit))
    inside = b.select(below_limit, inside, constant(source, limit))
    fits_signed = target.is_signed or target.bits < 32
    whole = b.fptosi(inside, kind) if fits_signed else b.fptoui(inside, kind)
    if limit != high:
        above = b.fcmp("oge", value, constant(source, float(high + 1)))
        whole = b.select(above, constant(kind, high), whole)
    if target.is_signed:
        whole = b.select(b.fcmp("uno", value, value), constant(kind, 0), whole)
    return b.trunc(whole, register_type(target, source.lanes))


def _float_at_most(number: int, bits: int) -> float:
    """The largest float32 or float64 that is not above a power of two minus one."""
    precision = 24 if bits == 32 else 53
    spare = max(0, number.bit_length() - precision)
    return float(number >> spare << spare)
