"""Elementary functions on lanes: polynomials for float32, the maths library for the rest.

Input -> Output: a function's name and float lanes -> its value.
Guarantees: float32 exp, log, log1p, expm1, tanh, erf err by at most 1.5 units in the last place,
sigmoid by 2.5, denormal results included, gelu(x) and gelu_tanh(x) by 2.5e-7 |x|; NaN, infinities,
signed zeros as in C; a lane's value does not depend on the number of lanes.  The others are the C
library's, called lane by lane.
Source: coefficients are minimax fits (Lawson's iteration, 40 digits) of the function named beside
them; the argument reductions are those of Cody and Waite.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence

from tilewright.codegen.cpu.emit import Builder
from tilewright.codegen.cpu.values import FLOAT, I16, I32, Value, constant, int_type

# (e^r - 1 - r) / r^2 for |r| <= ln2 / 2
_EXP = (0.5, 0.166665181517601, 0.04166620224714279, 0.00836898572742939, 0.0013950654538348317)
_EXPM1 = (
    *(0.5, 0.1666666567325592, 0.04166635870933533),
    *(0.008333389647305012, 0.0013940766220912337, 0.00019845887436531484),
)
# (log(1 + f) - f + f^2/2) / f^3 for 1 + f between sqrt(1/2) and sqrt(2)
_LOG = (
    *(0.3333331346511841, -0.25000008940696716, 0.2000211924314499),
    *(-0.1666799634695053, 0.14219550788402557, -0.12405592203140259),
    *(0.11888177692890167, -0.1167563870549202, 0.06746591627597809),
)
# (tanh(x) - x) / x^3 in x^2 for |x| <= 0.63
_TANH = (
    *(-0.3333333134651184, 0.13333196938037872, -0.053945522755384445),
    *(0.02169368416070938, -0.008159560151398182, 0.0021262310910969973),
)
# erf(x) / x - 1 in x^2 for |x| <= 1
_ERF_SMALL = (
    *(0.12837916612625122, -0.3761262595653534, 0.1128358542919159, -0.026853816583752632),
    *(0.005188334733247757, -0.0008010247838683426, 7.854026625864208e-05),
)
# -log(erfc(t)) / t for 0.9 <= t <= 4
_ERF_LARGE = (
    *(1.1286370754241943, 0.6351980566978455, 0.10615904629230499, -0.023694565519690514),
    *(0.0036103420425206423, -0.0003148581017740071, 1.0433114766783547e-05),
)

# erf(x / sqrt(2)) / (2 x) in x^2 for |x| <= 5.5 as a quotient.  In float32 it is exactly
# 1 / (2 x) at the limit, so that gelu(x) is x or 0 beyond.
_GELU_TOP = (
    *(0.398942232131958, 0.033852528780698776, 0.0046772523783147335),
    *(0.00016882432100828737, 6.35209516985924e-06, 2.2749416572764858e-08),
)
_GELU_BOTTOM = (
    *(1.0, 0.25152161717414856, 0.028645802289247513),
    *(0.0018844373989850283, 7.364699558820575e-05, 1.197503706862335e-06),
)
_GELU_LIMIT = 5.499809265136719
# 2^r for |r| <= 1/2
_POWER = (
    *(1.0000001192092896, 0.6931469440460205, 0.24022120237350464),
    *(0.05550713092088699, 0.009675540961325169, 0.001327647129073739),
)
# At its ends, 1 and what gelu_tanh adds to it are 1 and infinity.
_GELU_TANH_LIMIT = 10.07

_LOG2_E = 1 / math.log(2)
_LN2_HIGH = struct.unpack("<f", struct.pack("<f", math.log(2)))[0]
_LN2_LOW = 0.6931471805599453094172321214581766 - _LN2_HIGH
_MAGIC = 12582912.0  # 1.5 * 2**23: adding it rounds to a whole number
_MAGIC_BITS = 0x4B400000
_ROOT_HALF_BITS = 0x3F3504F3


def emit_math(b: Builder, op: str, args: Sequence[Value]) -> Value:
    """``op`` of float32 or float64 lanes; ``op`` names a C function or is an own one."""
    kind = args[0].type
    if kind.element is FLOAT and op in _FLOAT32:
        return _FLOAT32[op](b, args[0])
    if op in _EVERY_FLOAT:
        return _EVERY_FLOAT[op](b, args[0])
    name = op + "f" if kind.element is FLOAT else op
    if not kind.is_vector:
        return b.call(name, kind, args)
    whole = Value(kind, "poison")
    for lane in range(kind.lanes):
        parts = [b.extract(arg, lane) for arg in args]
        whole = b.insert(whole, b.call(name, kind.element, parts), lane)
    return whole


def _polynomial(b: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    value = constant(x.type, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = b.fma(value, x, constant(x.type, coefficient))
    return value


def _clamp(b: Builder, x: Value, low: float | None, high: float | None) -> Value:
    """Into ``low .. high``; NaN stays."""
    if high is not None:
        limit = constant(x.type, high)
        x = b.select(b.fcmp("ogt", x, limit), limit, x)
    if low is not None:
        limit = constant(x.type, low)
        x = b.select(b.fcmp("olt", x, limit), limit, x)
    return x


def _magnitude(b: Builder, x: Value) -> Value:
    return b.intrinsic("fabs", x.type, [x])


def _with_sign_of(b: Builder, magnitude: Value, x: Value) -> Value:
    return b.intrinsic("copysign", x.type, [magnitude, x])


# --- exponentials ---------------------------------------------------------------------------------


def _reduce(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """x = n ln2 + r -> (n as float, n as i32, r).  NaN gives r = NaN and some n."""
    shifted = b.fma(x, constant(x.type, _LOG2_E), constant(x.type, _MAGIC))
    n = b.sub(shifted, constant(x.type, _MAGIC))
    bits = b.bitcast(shifted, x.type.as_int())
    whole = b.sub(bits, constant(bits.type, _MAGIC_BITS))
    r = b.fma(n, constant(x.type, -_LN2_HIGH), x)
    return n, whole, b.fma(n, constant(x.type, -_LN2_LOW), r)


def _power_of_two(b: Builder, n: Value) -> Value:
    """2**n for -126 <= n <= 127."""
    biased = b.add(n, constant(n.type, 127))
    return b.bitcast(b.shl(biased, constant(n.type, 23)), FLOAT.with_lanes(n.type.lanes))


def _scale(b: Builder, p: Value, n: Value, whole: Value) -> Value:
    """p * 2**n with one rounding, for -150 <= n <= 128 and p near 1."""
    lanes = p.type.lanes
    if b.target.has_masks and b.target.architecture == "x86_64" and lanes in (4, 8, 16):
        name = f"llvm.x86.avx512.mask.scalef.ps.{32 * lanes}"
        mask = constant(I16 if lanes == 16 else int_type(8), -1)
        rounding = [constant(I32, 4)] if lanes == 16 else []
        return b.call(name, p.type, [p, n, p, mask, *rounding])
    half = b.ashr(whole, constant(whole.type, 1))
    first = b.mul(p, _power_of_two(b, half))
    return b.mul(first, _power_of_two(b, b.sub(whole, half)))


def _exp(b: Builder, x: Value, low: float | None = -104.0, high: float | None = 89.0) -> Value:
    n, whole, r = _reduce(b, _clamp(b, x, low, high))
    one = constant(x.type, 1.0)
    p = b.add(b.fma(b.mul(r, r), _polynomial(b, r, _EXP), r), one)
    return _scale(b, p, n, whole)


def _expm1(b: Builder, x: Value) -> Value:
    _, whole, r = _reduce(b, _clamp(b, x, -18.0, 89.0))
    q = b.fma(b.mul(r, r), _polynomial(b, r, _EXPM1), r)
    half = _power_of_two(b, b.sub(whole, constant(whole.type, 1)))  # 2**128 does not exist
    value = b.fma(half, q, b.sub(half, constant(x.type, 0.5)))
    doubled = b.add(value, value)
    return b.select(b.fcmp("oeq", x, constant(x.type, 0.0)), x, doubled)


def _sigmoid(b: Builder, x: Value) -> Value:
    """1 / (1 + e^-x), through e^-|x| so that nothing overflows or cancels."""
    minus = b.fneg(_magnitude(b, x))
    is_single = x.type.element is FLOAT
    decay = _exp(b, minus, high=None) if is_single else emit_math(b, "exp", [minus])
    one = constant(x.type, 1.0)
    top = b.select(b.fcmp("oge", x, constant(x.type, 0.0)), one, decay)
    return b.fdiv(top, b.add(one, decay))


def _tanh(b: Builder, x: Value) -> Value:
    a = _magnitude(b, x)
    square = b.mul(a, a)
    small = b.fma(b.mul(a, square), _polynomial(b, square, _TANH), a)
    capped = _clamp(b, a, None, 9.5)
    growth = _exp(b, b.add(capped, capped), low=None, high=None)
    one = constant(x.type, 1.0)
    large = b.sub(one, b.fdiv(constant(x.type, 2.0), b.add(growth, one)))
    near = b.fcmp("olt", a, constant(x.type, 0.625))
    return _with_sign_of(b, b.select(near, small, large), x)


def _erf(b: Builder, x: Value) -> Value:
    a = _magnitude(b, x)
    square = b.mul(a, a)
    small = b.fma(a, _polynomial(b, square, _ERF_SMALL), a)
    t = _clamp(b, a, None, 4.0)
    tail = b.fneg(b.mul(t, _polynomial(b, t, _ERF_LARGE)))
    large = b.sub(constant(x.type, 1.0), _exp(b, tail, low=None, high=None))
    near = b.fcmp("olt", a, constant(x.type, 0.95))
    return _with_sign_of(b, b.select(near, small, large), x)


def _gelu(b: Builder, x: Value) -> Value:
    """x (1/2 + erf(x / sqrt(2)) / 2)"""
    half = constant(x.type, 0.5)
    if x.type.element is not FLOAT:
        erf = emit_math(b, "erf", [b.mul(x, constant(x.type, math.sqrt(0.5)))])
        return b.mul(x, b.fma(half, erf, half))
    return _gate(b, x, _GELU_TOP, _GELU_BOTTOM, _GELU_LIMIT)


def _gelu_tanh(b: Builder, x: Value) -> Value:
    if x.type.element is FLOAT:
        return _gelu_tanh32(b, x)
    half = constant(x.type, 0.5)
    cubic = b.fma(b.mul(x, constant(x.type, 0.044715)), b.mul(x, x), x)
    tanh = emit_math(b, "tanh", [b.mul(cubic, constant(x.type, math.sqrt(2 / math.pi)))])
    return b.mul(x, b.fma(half, tanh, half))


def _gelu_tanh32(b: Builder, x: Value) -> Value:
    """x / (1 + w^2), w = 2^v, v = -log2(e) sqrt(2 / pi) (t + 0.044715 t^3), t = x in the limit.

    Multiplications are what there is least room for beside sums of products.  The exponent of w is
    moved as an integer: half of that of w^2, it always fits.
    """
    t = _clamp(b, x, -_GELU_TANH_LIMIT, _GELU_TANH_LIMIT)
    rate = -_LOG2_E * math.sqrt(2 / math.pi)
    slope = b.fma(b.mul(t, t), constant(t.type, 0.044715 * rate), constant(t.type, rate))
    v, magic = b.mul(t, slope), constant(t.type, _MAGIC)
    shifted = b.add(v, magic)
    near = _polynomial(b, b.sub(v, b.sub(shifted, magic)), _POWER)
    whole = x.type.as_int()
    exponent = b.shl(b.bitcast(shifted, whole), constant(whole, 23))
    w = b.bitcast(b.add(b.bitcast(near, whole), exponent), x.type)
    return b.fdiv(x, b.fma(w, w, constant(x.type, 1.0)))


def _gate(
    b: Builder, x: Value, top: Sequence[float], bottom: Sequence[float], limit: float
) -> Value:
    """x (1/2 + t top(t^2) / bottom(t^2)) where t is x within the limit."""
    t = _clamp(b, x, -limit, limit)
    square = b.mul(t, t)
    share = b.fdiv(b.mul(t, _polynomial(b, square, top)), _polynomial(b, square, bottom))
    return b.mul(x, b.add(constant(x.type, 0.5), share))


# --- logarithms -----------------------------------------------------------------------------------


def _split(b: Builder, x: Value) -> tuple[Value, Value]:
    """x = 2**e (1 + f) with 1 + f between sqrt(1/2) and sqrt(2) -> (e as i32, f)."""
    bits = b.bitcast(x, x.type.as_int())
    e = b.ashr(b.sub(bits, constant(bits.type, _ROOT_HALF_BITS)), constant(bits.type, 23))
    mantissa = b.bitcast(b.sub(bits, b.shl(e, constant(bits.type, 23))), x.type)
    return e, b.sub(mantissa, constant(x.type, 1.0))


def _log_of(b: Builder, e: Value, f: Value) -> Value:
    """log(2**e (1 + f)); e is a float."""
    square = b.mul(f, f)
    tail = b.mul(e, constant(f.type, _LN2_LOW))
    tail = b.fma(b.mul(f, square), _polynomial(b, f, _LOG), tail)
    tail = b.fma(constant(f.type, -0.5), square, tail)
    return b.fma(e, constant(f.type, _LN2_HIGH), b.add(f, tail))


def _log(b: Builder, x: Value) -> Value:
    tiny = b.fcmp("olt", x, constant(x.type, 2.0**-126))
    scaled = b.select(tiny, b.mul(x, constant(x.type, 2.0**23)), x)
    e, f = _split(b, scaled)
    shift = b.select(tiny, constant(x.type, -23.0), constant(x.type, 0.0))
    value = _log_of(b, b.add(b.sitofp(e, x.type), shift), f)
    return _outside_log(b, x, value, 0.0)


def _log1p(b: Builder, x: Value) -> Value:
    one = constant(x.type, 1.0)
    u = b.add(one, x)
    lost = b.sub(x, b.sub(u, one))
    e, f = _split(b, u)
    biased = b.sub(constant(e.type, 127), e)
    biased = b.intrinsic("smax", e.type, [biased, constant(e.type, 0)])
    unit = b.shl(biased, constant(e.type, 23))  # 2**-e; 0 where nothing can have been lost
    f = b.fma(lost, b.bitcast(unit, x.type), f)
    value = _log_of(b, b.sitofp(e, x.type), f)
    return _with_sign_of(b, _outside_log(b, x, value, -1.0), x)


def _outside_log(b: Builder, x: Value, value: Value, pole: float) -> Value:
    """``value`` right of the pole, -inf at it, NaN left of it, infinity at infinity."""
    at, infinite = constant(x.type, pole), constant(x.type, math.inf)
    minus, nan = constant(x.type, -math.inf), constant(x.type, math.nan)
    left = b.select(b.fcmp("oeq", x, at), minus, nan)
    inside = b.select(b.fcmp("oeq", x, infinite), infinite, value)
    return b.select(b.fcmp("ogt", x, at), inside, left)


_FLOAT32: dict[str, Callable[[Builder, Value], Value]] = {
    "exp": _exp,
    "expm1": _expm1,
    "tanh": _tanh,
    "erf": _erf,
    "log": _log,
    "log1p": _log1p,
}
_EVERY_FLOAT: dict[str, Callable[[Builder, Value], Value]] = {
    "sigmoid": _sigmoid,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}
