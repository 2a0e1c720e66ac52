"""Rounding to integers in one instruction, where limits of the number are known.

    int32(round(x)) where x = select(v > low, v, low), v = select(u < high, u, high)
    and u = n / c: the reciprocal of c, and what its use leaves, take a third of a division's time
    uint8(int32(round(x))) between 0 and 255: a conversion and a narrowing that saturate
Input -> Output: a ``Cast`` -> the number that it rounds, if its limits are known; register lanes ->
int32 or uint8 lanes; a numerator and a constant -> their quotient.
Guarantees: half to even; limits come from constants of the expression alone, and hold for NaN too.
Not here: conversions of numbers without limits (convert).
"""

from __future__ import annotations

import numpy as np

from tilewright.codegen.cpu.emit import I8, I16, I32, Builder, Value, constant
from tilewright.core.dtypes import FLOAT32, INT32, UINT8
from tilewright.kernel.bounds import bounds
from tilewright.kernel.ir import Call, Cast, Const, Expr
from tilewright.kernel.limits import limited

_LIMIT = 2.0**31
_MODERATE = 2.0**60
_MANTISSA = 0x7FFFFF
_CONVERT = {4: "sse2.cvtps2dq", 8: "avx.cvt.ps2dq.256", 16: "avx512.mask.cvtps2dq.512"}
_MASKED, _CURRENT_MODE = 16, 4
_BYTE = 255


def rounded_number(expr: Cast) -> Expr | None:
    """What is rounded to int32, where it provably fits; None for other casts."""
    arg = expr.arg
    if expr.dtype is not INT32 or expr.bits or arg.dtype is not FLOAT32:
        return None
    if not (isinstance(arg, Call) and arg.op == "round"):
        return None
    found = limited(arg.args[0])
    if found is None or not -_LIMIT <= found[1] <= found[2] < _LIMIT:
        return None
    return arg.args[0]


def saturated_number(expr: Cast) -> Expr | None:
    """What is rounded to a byte, inside of limits that are those of the byte; None otherwise."""
    whole = expr.arg
    if expr.dtype is not UINT8 or expr.bits or not isinstance(whole, Cast):
        return None
    number = rounded_number(whole)
    found = None if number is None else limited(number)
    return found[0] if found is not None and found[1:] == (0.0, float(_BYTE)) else None


def saturates(b: Builder, lanes: int) -> bool:
    """True where a conversion gives the largest integer for whatever is too large."""
    is_wide = b.target.architecture == "x86_64" and 4 * lanes <= b.target.vector_bytes
    return lanes == _MASKED and is_wide


def emit_saturated(b: Builder, value: Value) -> Value:
    """float32 lanes -> the nearest bytes, those beyond the limits at them, NaN at the upper one."""
    kind = I32.with_lanes(_MASKED)
    zero = constant(value.type, 0.0)
    inside = b.select(b.fcmp("ogt", zero, value), zero, value)
    args = [inside, constant(kind, 0), constant(I16, -1), constant(I32, _CURRENT_MODE)]
    whole = b.call("llvm.x86.avx512.mask.cvtps2udq.512", kind, args)
    return b.trunc(
        b.intrinsic("umin", kind, [whole, constant(kind, _BYTE)]), I8.with_lanes(_MASKED)
    )


def quotient_in(number: Expr) -> Call | None:
    """The division inside of both limits, where ``emit_quotient`` gives its exact result.

    Results so small that they are not exact round to 0 as the exact ones do.
    """
    inner = limited(number)
    if inner is None or not (isinstance(inner[0], Call) and inner[0].op == "div"):
        return None
    top, divisor = inner[0].args
    if not isinstance(divisor, Const) or top.dtype is not FLOAT32:
        return None
    size = abs(float(np.float32(divisor.value)))
    if not 1 / _MODERATE < size < _MODERATE:
        return None
    if np.float32(size).view(np.uint32) & _MANTISSA == _MANTISSA:
        return None
    found = bounds(top)
    return inner[0] if found.is_finite and bounds(inner[0]).is_finite else None


def emit_quotient(b: Builder, top: Value, divisor: float) -> Value:
    """``top / divisor``, correctly rounded: an estimate, mended by its remainder (exact by FMA)."""
    kind = top.type
    below, inverse = constant(kind, divisor), constant(kind, 1 / divisor)
    estimate = b.mul(top, inverse)
    left = b.fma(b.fneg(estimate), below, top)
    return b.fma(left, inverse, estimate)


def emit_rounded(b: Builder, value: Value) -> Value:
    """float32 lanes within int32 -> the nearest integers, half to even."""
    lanes = value.type.lanes
    kind = I32.with_lanes(lanes)
    name = _CONVERT.get(lanes)
    if name is None or b.target.architecture != "x86_64" or 4 * lanes > b.target.vector_bytes:
        return b.fptosi(b.intrinsic("roundeven", value.type, [value]), kind)
    args = [value]
    if lanes == _MASKED:  # its other operands: what masked lanes keep, the mask, the rounding mode
        args += [constant(kind, 0), constant(I16, -1), constant(I32, _CURRENT_MODE)]
    return b.call(f"llvm.x86.{name}", kind, args)
