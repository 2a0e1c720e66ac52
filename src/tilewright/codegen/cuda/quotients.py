"""Quotients by a constant in two instructions.

    x / c   ->   fma(x, high, x * low)   where high is 1 / c cut off, and low is what was cut
Input -> Output: a divisor -> ``high`` and ``low``, or None.
Guarantees: IEEE's quotient for every x, infinities and NaN among them, where neither it nor
``x * low`` underflows. The error before the last rounding is below 1.5 * 2^-47, so that only an x
whose quotient lies that near the middle of two floats could be rounded elsewhere: there are few,
and each was tried.
Not here: divisors that are not known, powers of two (their inverses are exact).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

import numpy as np

_BITS = 24  # of a float's mantissa
_NEAR = 7  # 1.5 * 2^-47 of a product of 25 and of 24 bits, and a little more


@lru_cache(maxsize=1 << 10)
def quotient_factors(divisor: float) -> tuple[float, float] | None:
    """``high`` and ``low`` of a float32 that is not 0; None where they do not give all quotients.

    The sign of both is that of the divisor: with an infinite x there is no NaN between them.
    """
    mantissa, exponent = math.frexp(abs(divisor))
    whole = int(mantissa * 2**_BITS)
    scale = 2 * _BITS - 1
    high, rest = divmod(1 << scale, whole)
    if rest == 0:
        return None
    low = float(np.float32(rest / whole))
    if not all(_is_right(x, whole, scale, high, low) for x in _hard(whole)):
        return None
    unit = math.copysign(math.ldexp(1.0, _BITS - scale - exponent), divisor)
    return high * unit, low * unit


def _hard(whole: int) -> Iterator[int]:
    """Mantissas x whose quotients almost lie between two floats: x * 2^s = m * whole + j, for odd
    m of 25 bits and small j.
    """
    even = (whole & -whole).bit_length() - 1
    for shift in (_BITS, _BITS + 1):
        modulus = 1 << (shift - even)
        inverse = pow(whole >> even, -1, modulus)
        for near in range(-_NEAR, _NEAR + 1):
            if near % (1 << even):
                continue
            first = -(near >> even) * inverse % modulus
            start = first + ((1 << _BITS) - first + modulus - 1) // modulus * modulus
            for middle in range(start, 2 << _BITS, modulus):
                x, rest = divmod(middle * whole + near, 1 << shift)
                if rest == 0 and middle % 2 and x.bit_length() == _BITS:
                    yield x


def _is_right(x: int, whole: int, scale: int, high: int, low: float) -> bool:
    small = Fraction(float(np.float32(x * low)))  # the product is exact in float64
    return _rounded(x * high + small) == _rounded(Fraction(x << scale, whole))


def _rounded(value: Fraction) -> Fraction:
    """The nearest number of 24 bits, half to even."""
    exponent = math.floor(value).bit_length() - _BITS
    unit = Fraction(2) ** exponent
    return round(value / unit) * unit
