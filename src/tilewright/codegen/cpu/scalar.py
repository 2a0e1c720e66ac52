"""The scalar operations of ``kernel.ops`` as instructions, on any number of lanes.

Input -> Output: an operation's name, register values, their element type -> the result's value.
Guarantees: the semantics stated in ``kernel.ops``, lane by lane; no operand value is undefined.
Requires: computing types only: float32, float64, 8..64 bit integers, bool (i1 lanes).
Not here: ``select`` and ``checked_index`` (control flow), conversions (convert).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.codegen.cpu.emit import Builder
from tilewright.codegen.cpu.integer_power import integer_power
from tilewright.codegen.cpu.values import I1, Value, constant
from tilewright.codegen.cpu.vector_math import emit_math
from tilewright.core.dtypes import BOOL, DType
from tilewright.core.errors import InternalError
from tilewright.kernel.ops import SCALAR_OPS

_INTRINSICS = {
    "sqrt": "sqrt",
    "floor": "floor",
    "ceil": "ceil",
    "round": "roundeven",
    "trunc": "trunc",
}
_FLOAT_PREDICATES = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


def emit_op(b: Builder, op: str, args: Sequence[Value], dtype: DType) -> Value:
    """One scalar operation; ``dtype`` is the operands' element type.

    Comparisons, ``isnan`` and ``isinf`` give i1 lanes, all others the operands' type.
    """
    if op in _INTRINSICS:
        return b.intrinsic(_INTRINSICS[op], args[0].type, args)
    if op in _HANDLERS:
        return _HANDLERS[op](b, args, dtype)
    if op in _FLOAT_PREDICATES:
        return _compare(b, op, args, dtype)
    if dtype.is_float and op in SCALAR_OPS:
        return emit_math(b, op, args)
    raise InternalError(f"no instruction for {op} on {dtype}")


def combine(b: Builder, combiner: str, dtype: DType) -> Callable[[Value, Value], Value]:
    """The function that joins two partial results of a reduction (``kernel.ops.COMBINERS``)."""
    op = {"sum": "add", "prod": "mul"}.get(combiner, combiner)
    return lambda x, y: emit_op(b, op, [x, y], dtype)


# --- one operand ----------------------------------------------------------------------------------


def _neg(b: Builder, args: Sequence[Value], dtype: DType) -> Value:
    (x,) = args
    return b.fneg(x) if dtype.is_float else b.sub(constant(x.type, 0), x)


def _abs(b: Builder, args: Sequence[Value], dtype: DType) -> Value:
    (x,) = args
    if dtype.is_float:
        return b.intrinsic("fabs", x.type, [x])
    if not dtype.is_signed:
        return x
    wraps = constant(I1, 0)
    return b.intrinsic("abs", x.type, [x, wraps])


def _sign(b: Builder, args: Sequence[Value], dtype: DType) -> Value:
    (x,) = args
    zero, one = constant(x.type, 0), constant(x.type, 1)
    if dtype.is_float:
        unit = b.intrinsic("copysign", x.type, [one, x])
        rest = b.select(b.fcmp("oeq", x, zero), zero, x)  # keeps NaN
        return b.select(b.fcmp("one", x, zero), unit, rest)
    if not dtype.is_signed:
        return b.intrinsic("umin", x.type, [x, one])
    capped = b.intrinsic("smin", x.type, [x, one])
    return b.intrinsic("smax", x.type, [capped, constant(x.type, -1)])


def _not(b: Builder, args: Sequence[Value], dtype: DType) -> Value:
    del dtype
    return b.not_(args[0])


def _is_nan(b: Builder, args: Sequence[Value], dtype: DType) -> Value:
    del dtype
    return b.fcmp("uno", args[0], args[0])


def _is_inf(b: Builder, args: Sequence[Value], dtype: DType) -> Value:
    magnitude = _abs(b, args, dtype)
    return b.fcmp("oeq", magnitude, constant(magnitude.type, math.inf))


# --- two operands ---------------------------------------------------------------------------------


def _add(b: Builder, args: Sequence[Value], dtype: DType) -> Value:
    del dtype
    return b.add(*args)


def _sub(b: Builder, args: Sequence[Value], dtype: DType) -> Value:
    del dtype
    return b.sub(*args)


def _mul(b: Builder, args: Sequence[Value], dtype: DType) -> Value:
    del dtype
    return b.mul(*args)


def _safe_divisor(b: Builder, x: Value, y: Value, dtype: DType) -> Value:
    """The divisor, or 1 where the quotient is not defined (by 0) or does not fit (lowest by -1)."""
    one = constant(y.type, 1)
    if y.const is not None:
        return one if y.const == 0 or _is_minus_one(y, dtype) else y
    bad = b.icmp("eq", y, constant(y.type, 0))
    if dtype.is_signed:
        lowest = b.icmp("eq", x, constant(x.type, -1 << (dtype.bits - 1)))
        minus = b.icmp("eq", y, constant(y.type, -1))
        bad = b.or_(bad, b.and_(lowest, minus))
    return b.select(bad, one, y)


def _is_minus_one(y: Value, dtype: DType) -> bool:
    """Literals are kept as signed numbers; the largest unsigned one is not -1."""
    return y.const == -1 and dtype.is_signed


def _zero_if_zero(b: Builder, divisor: Value, value: Value) -> Value:
    zero = constant(value.type, 0)
    if divisor.const is not None:
        return value if divisor.const else zero
    return b.select(b.icmp("eq", divisor, zero), zero, value)


def _div(b: Builder, args: Sequence[Value], dtype: DType) -> Value:
    x, y = args
    if dtype.is_float:
        return b.fdiv(x, y)
    if _is_minus_one(y, dtype):
        return b.sub(constant(x.type, 0), x)
    safe = _safe_divisor(b, x, y, dtype)
    quotient = b.sdiv(x, safe) if dtype.is_signed else b.udiv(x, safe)
    return _zero_if_zero(b, y, quotient)


def _fmod(b: Builder, args: Sequence[Value], dtype: DType) -> Value:
    x, y = args
    if dtype.is_float:
        return b.frem(x, y)
    if y.const in (0, 1) or _is_minus_one(y, dtype):
        return constant(x.type, 0)
    safe = _safe_divisor(b, x, y, dtype)
    rest = b.srem(x, safe) if dtype.is_signed else b.urem(x, safe)
    return _zero_if_zero(b, y, rest)


def _mod(b: Builder, args: Sequence[Value], dtype: DType) -> Value:
    x, y = args
    rest = _fmod(b, args, dtype)
    zero = constant(x.type, 0)
    if dtype.is_float:
        differs = b.xor(b.fcmp("olt", y, zero), b.fcmp("olt", rest, zero))
        moved = b.select(differs, b.add(rest, y), rest)
        signed_zero = b.intrinsic("copysign", x.type, [zero, y])
        return b.select(b.fcmp("oeq", rest, zero), signed_zero, moved)
    if not dtype.is_signed or rest.const == 0:
        return rest
    differs = b.icmp("slt", b.xor(rest, y), zero)
    moves = b.and_(differs, b.icmp("ne", rest, zero))
    return b.select(moves, b.add(rest, y), rest)


def _pow(b: Builder, args: Sequence[Value], dtype: DType) -> Value:
    x, y = args
    if not dtype.is_float:
        return integer_power(b, x, y, dtype.is_signed)
    if y.const == 1:
        return x
    if y.const == 2:
        return b.mul(x, x)
    if y.const == 3:
        return b.mul(x, b.mul(x, x))
    if y.const == -1:
        return b.fdiv(constant(x.type, 1), x)
    return emit_math(b, "pow", args)


def _min(b: Builder, args: Sequence[Value], dtype: DType) -> Value:
    return _extreme(b, args, dtype, "olt", "min")


def _max(b: Builder, args: Sequence[Value], dtype: DType) -> Value:
    return _extreme(b, args, dtype, "ogt", "max")


def _extreme(b: Builder, args: Sequence[Value], dtype: DType, predicate: str, name: str) -> Value:
    x, y = args
    if dtype is BOOL:
        return b.and_(x, y) if name == "min" else b.or_(x, y)
    if not dtype.is_float:
        return b.intrinsic(("s" if dtype.is_signed else "u") + name, x.type, [x, y])
    if isinstance(x.const, float):
        x, y = y, x
    if isinstance(y.const, float):
        if math.isnan(y.const):
            return y
        return b.select(b.fcmp(predicate, y, x), y, x)  # one minps or maxps: it keeps a NaN in x
    return b.intrinsic(name + "imum", x.type, [x, y], flags="nsz")


def _and(b: Builder, args: Sequence[Value], dtype: DType) -> Value:
    del dtype
    return b.and_(*args)


def _or(b: Builder, args: Sequence[Value], dtype: DType) -> Value:
    del dtype
    return b.or_(*args)


def _xor(b: Builder, args: Sequence[Value], dtype: DType) -> Value:
    del dtype
    return b.xor(*args)


def _shl(b: Builder, args: Sequence[Value], dtype: DType) -> Value:
    return _shift(b, args, dtype, b.shl)


def _shr(b: Builder, args: Sequence[Value], dtype: DType) -> Value:
    return _shift(b, args, dtype, b.ashr if dtype.is_signed else b.lshr)


def _shift(
    b: Builder, args: Sequence[Value], dtype: DType, shift: Callable[[Value, Value], Value]
) -> Value:
    x, count = args
    zero = constant(x.type, 0)
    if count.const is not None:
        return shift(x, count) if 0 <= count.const < dtype.bits else zero
    inside = b.icmp("ult", count, constant(count.type, dtype.bits))  # negative counts are outside
    return b.select(inside, shift(x, b.select(inside, count, zero)), zero)


def _compare(b: Builder, op: str, args: Sequence[Value], dtype: DType) -> Value:
    if dtype.is_float:
        return b.fcmp(_FLOAT_PREDICATES[op], *args)
    sign = "" if op in ("eq", "ne") else "s" if dtype.is_signed else "u"
    return b.icmp(sign + op, *args)


_HANDLERS: dict[str, Callable[[Builder, Sequence[Value], DType], Value]] = {
    "neg": _neg,
    "abs": _abs,
    "sign": _sign,
    "not": _not,
    "isnan": _is_nan,
    "isinf": _is_inf,
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "mod": _mod,
    "fmod": _fmod,
    "pow": _pow,
    "min": _min,
    "max": _max,
    "and": _and,
    "or": _or,
    "xor": _xor,
    "shl": _shl,
    "shr": _shr,
}
