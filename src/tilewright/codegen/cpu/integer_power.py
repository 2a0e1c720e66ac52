"""Powers of integers by repeated squaring.

Input -> Output: base and exponent lanes -> base ** exponent, wrapped to the type.
Guarantees: a negative exponent gives the truncated reciprocal: 1, -1 or (for other bases) 0.
Not here: powers of floats (vector_math).
"""

from __future__ import annotations

from tilewright.codegen.cpu.emit import Builder
from tilewright.codegen.cpu.values import Value, constant


def integer_power(b: Builder, base: Value, exponent: Value, signed: bool) -> Value:
    """``base ** exponent``; the exponent has the base's type and signedness."""
    if isinstance(exponent.const, int) and 0 <= exponent.const <= 64:
        return _unrolled(b, base, exponent.const)
    one = constant(base.type, 1)
    zero = constant(base.type, 0)
    left = exponent
    if signed:
        left = b.intrinsic("smax", base.type, [exponent, zero])
    total, square, rest = (b.alloca(base.type) for _ in range(3))
    for value, place in ((one, total), (base, square), (left, rest)):
        b.store(value, place)
    with b.forever() as done:
        bits = b.load(base.type, rest)
        more = b.label("more")
        b.branch(b.any_lane(b.icmp("ne", bits, zero)), more, done)
        b.enter(more)
        factor = b.load(base.type, square)
        so_far = b.load(base.type, total)
        odd = b.icmp("ne", b.and_(bits, one), zero)
        b.store(b.select(odd, b.mul(so_far, factor), so_far), total)
        b.store(b.mul(factor, factor), square)
        b.store(b.lshr(bits, one), rest)
    result = b.load(base.type, total)
    if not signed:
        return result
    parity = b.icmp("ne", b.and_(exponent, one), zero)
    minus = constant(base.type, -1)
    of_minus = b.select(parity, minus, one)
    unit = b.select(b.icmp("eq", base, minus), of_minus, zero)
    unit = b.select(b.icmp("eq", base, one), one, unit)
    return b.select(b.icmp("slt", exponent, zero), unit, result)


def _unrolled(b: Builder, base: Value, exponent: int) -> Value:
    result = constant(base.type, 1)
    while exponent:
        if exponent & 1:
            result = b.mul(result, base)
        exponent >>= 1
        if exponent:
            base = b.mul(base, base)
    return result
