"""Nonlinear functions in 32-bit integers, written once for NumPy arrays and kernel expressions.

Input -> Output: integers ``v`` that mean ``v * x_scale``, parameters -> integers that mean
``(w - zero) * y_scale``; numbers are fixed point: ``Q15`` has 15 bits behind the point.
Requires: ``|v| <= 2**15``; what a function says of its size.
Guarantees: additions, products, shifts, comparisons of int32 only, none of which overflows; real
numbers occur in parameters alone, which are computed before any data.  ``MAX_ERROR`` is tested over
the whole domain.
Not here: operators (integer_only), their kernels (lower.integer_only).
Sources: the shape of the method, I-BERT (Kim et al., 2021); polynomial and constants are our own
fits: 2**-r by degree 4 (2.5e-5), Gelu as x * sigmoid(1.60031 x + 0.0694018 x**3) (2.7e-4).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

# Largest errors beside that of rounding to the result's step (half of it).  Of exp relative to the
# value, of sqrt to the largest root; Gelu has 5e-5 * |x| more; of a layer normalisation in units of
# the largest |gamma|, times the row's largest normalised value where that is above 1.
MAX_ERROR = {
    "IntegerExp": 6e-5,
    "IntegerSqrt": 4e-5,
    "IntegerSigmoid": 6e-5,
    "IntegerGelu": 5e-4,
    "IntegerSoftmax": 1e-4,
    "IntegerLayerNormalization": 1e-3,
}
MAX_ROW = 4096
_LOG2_E = math.log2(math.e)
_EXP2 = (-45422, 15697, -3490, 447)  # 2**-r - 1 = c0 r + c1 r**2 + ..., in Q16
_GELU_LINEAR = round(1.6003141584637002 * _LOG2_E * 2**12)
_GELU_CUBIC = round(0.06940178605928565 * _LOG2_E * 2**15)
_RECIPROCAL = (46261, 15420)  # 24/17 - 8/17 d in Q15, within 1/17 of 1/d
_TINY = (30 << 15) + (1 << 14)  # 2**-x is less than half a unit of Q30
_ONE = 1 << 15


class Integers(Protocol):
    """What the functions need beside ``+ - *``: of arrays, or of expressions."""

    def right(self, x: Any, count: Any) -> Any:
        """Shifts right, the sign kept."""

    def left(self, x: Any, count: Any) -> Any:
        """Shifts left."""

    def low(self, x: Any, bits: int) -> Any:
        """The lowest bits."""

    def less(self, x: Any, y: Any) -> Any:
        """Where x < y."""

    def choose(self, condition: Any, x: Any, y: Any) -> Any:
        """x where the condition holds, else y."""

    def lesser(self, x: Any, y: Any) -> Any:
        """The minimum."""

    def greater(self, x: Any, y: Any) -> Any:
        """The maximum."""

    def over(self, x: Any, divisor: int) -> Any:
        """The whole quotient of x >= 0 by a positive constant."""


# All elements of a row: ("sum" or "max", a function of one element) -> one integer a row.
Reduce = Callable[[str, Callable[[Any], Any]], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """What integers mean.

    Attributes:
        x_scale, y_scale: steps of input and result, positive.
        x_bits: of the largest ``|v|`` (9 for 8-bit integers with a zero point, 16 for int16).
        zero: the result's zero point.
        low, high: the result's smallest and largest integer.
    """

    x_scale: float
    y_scale: float
    x_bits: int
    zero: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Factor:
    """A positive real number as ``(high * 2**15 + low) * 2**-(shift + 15)``, to 30 bits."""

    high: int
    low: int
    shift: int

    @staticmethod
    def of(real: float) -> Factor:
        """The nearest factor."""
        fraction, exponent = math.frexp(real)
        whole = round(fraction * 2**30)
        if whole == 2**30:
            whole, exponent = 2**29, exponent + 1
        return Factor(whole >> 15, whole & (_ONE - 1), 15 - exponent)


# --- building blocks ------------------------------------------------------------------------------


def rescale(ops: Integers, v: Any, factor: Factor) -> Any:
    """``round(v * factor)`` for ``|v| <= 2**15`` (and a little), at most 2**30 in size."""
    product = v * factor.high + ops.right(v * factor.low + (_ONE >> 1), 15)
    if factor.shift > 30:
        return v * 0
    if factor.shift > 0:
        return ops.right(product + (1 << (factor.shift - 1)), factor.shift)
    count = min(-factor.shift, 30)
    limit = (1 << 30) >> count
    return ops.left(clamped(ops, product, -limit, limit), count)


def clamped(ops: Integers, x: Any, low: int, high: int) -> Any:
    """x within limits."""
    return ops.lesser(ops.greater(x, low), high)


def rounded(ops: Integers, x: Any, count: int) -> Any:
    """``x / 2**count``, half upwards."""
    return ops.right(x + ((1 << count) >> 1), count) if count else x


def shifted(ops: Integers, x: Any, count: Any) -> Any:
    """``x / 2**count``, half upwards; the count, 0 to 30, is data."""
    half = ops.right(ops.left(count * 0 + 1, count), 1)
    return ops.right(x + half, count)


def magnitude(ops: Integers, x: Any) -> Any:
    """|x|"""
    return ops.greater(x, x * -1)


def power_of_half(ops: Integers, r: Any) -> Any:
    """``2**-r`` in Q16 for r of Q15 from 0 to 1."""
    total = r * _EXP2[-1]
    for coefficient in _EXP2[-2::-1]:
        total = (rounded(ops, total, 15) + coefficient) * r
    return rounded(ops, total, 15) + (1 << 16)


def reciprocal(ops: Integers, d: Any) -> Any:
    """``1 / d`` in Q15 for d of Q14 from 1 to 2: three steps of Newton, within 2.3e-5."""
    start, slope = _RECIPROCAL
    r = ops.right(d * slope, 14) * -1 + start
    for _ in range(3):
        r = rounded(ops, r * rounded(ops, d * r * -1 + (1 << 30), 14), 15)
    return r


def bit_length(ops: Integers, x: Any) -> Any:
    """Bits of x >= 0: 0 of 0, 31 of 2**30 and above."""
    count = x * 0
    for step in (16, 8, 4, 2, 1):
        small = ops.less(x, 1 << step)
        count = ops.choose(small, count, count + step)
        x = ops.choose(small, x, ops.right(x, step))
    return count + x


def whole_sqrt(ops: Integers, x: Any) -> Any:
    """The largest r with ``r * r <= x``, for 0 <= x < 2**31: one binary digit a step."""
    root = x * 0
    for place in range(30, -1, -2):
        trial = root + (1 << place)
        small = ops.less(x, trial)
        half = ops.right(root, 1)
        x = ops.choose(small, x, x - trial)
        root = ops.choose(small, half, half + (1 << place))
    return root


def stored(ops: Integers, w: Any, scales: Scales) -> Any:
    """The result's integer: zero point added, saturated."""
    return clamped(ops, w + scales.zero, scales.low, scales.high)


# --- functions of one element ---------------------------------------------------------------------


def exponential(ops: Integers, v: Any, scales: Scales) -> Any:
    """``exp``: the result's scale is part of the exponent, so that small values keep their bits."""
    offset = round(math.log2(scales.y_scale) * _ONE)
    power = rescale(ops, v, Factor.of(scales.x_scale * _LOG2_E * _ONE))
    power = clamped(ops, power * -1 + offset, -16 * _ONE, 2 * _ONE - 1)
    value = power_of_half(ops, ops.low(power, 15))
    return stored(ops, shifted(ops, ops.left(value, 13), ops.right(power, 15) + 29), scales)


def square_root(ops: Integers, v: Any, scales: Scales) -> Any:
    """``sqrt``; what is negative gives 0."""
    ratio = scales.x_scale / scales.y_scale**2
    digits = sqrt_digits(scales)
    wide = rescale(ops, ops.greater(v, 0), Factor.of(ratio * 4.0**digits))
    return stored(ops, rounded(ops, whole_sqrt(ops, wide), digits), scales)


def sqrt_digits(scales: Scales) -> int:
    """Bits behind the point of a square root before it is rounded; negative: it cannot be held."""
    largest = scales.x_scale / scales.y_scale**2 * 2.0 ** (scales.x_bits - 1)
    return min(15, math.floor(math.log(2.0**30 / largest, 4)))


def _sigmoid_of_magnitude(ops: Integers, power: Any) -> Any:
    """``1 / (1 + 2**-power)`` in Q15, power of Q15 and not negative."""
    power = ops.lesser(power, _TINY)
    small = shifted(ops, power_of_half(ops, ops.low(power, 15)), ops.right(power, 15))
    return reciprocal(ops, rounded(ops, small + (1 << 16), 2))


def sigmoid(ops: Integers, v: Any, scales: Scales) -> Any:
    """``1 / (1 + exp(-x))``"""
    power = rescale(ops, magnitude(ops, v), Factor.of(scales.x_scale * _LOG2_E * _ONE))
    upper = _sigmoid_of_magnitude(ops, power)
    value = ops.choose(ops.less(v, 0), upper * -1 + _ONE, upper)
    return stored(ops, rescale(ops, value, Factor.of(1 / (_ONE * scales.y_scale))), scales)


def gelu(ops: Integers, v: Any, scales: Scales) -> Any:
    """``x * Phi(x)``: 0 or x beyond 8, x times a share of Q15 within."""
    size = magnitude(ops, rescale(ops, v, Factor.of(scales.x_scale * 2**12)))
    size = ops.lesser(size, _ONE)  # 8 in Q12
    square = ops.right(size * size, 12)
    slope = ops.right(square * _GELU_CUBIC + (_ONE >> 1), 15) + _GELU_LINEAR
    upper = _sigmoid_of_magnitude(ops, rounded(ops, size * slope, 9))
    negative = ops.less(v, 0)
    share = ops.choose(negative, upper * -1 + _ONE, upper)
    lift = 16 - scales.x_bits
    if scales.x_scale * 2.0 ** (scales.x_bits - 1) <= 8:  # the input's own steps are the finer ones
        value = rounded(ops, v * (1 << lift) * share, 15)
        factor = Factor.of(scales.x_scale / 2.0**lift / scales.y_scale)
        return stored(ops, rescale(ops, value, factor), scales)
    value = rounded(ops, ops.choose(negative, size * -1, size) * share, 15)
    value = rescale(ops, value, Factor.of(1 / (2**12 * scales.y_scale)))
    far = rescale(ops, ops.greater(v, 0), Factor.of(scales.x_scale / scales.y_scale))
    return stored(ops, ops.choose(ops.less(size, _ONE), value, far), scales)


# --- functions of a row ---------------------------------------------------------------------------


def softmax(ops: Integers, v: Any, reduce: Reduce, size: int, scales: Scales) -> Any:
    """``exp(x - max) / sum(exp(x - max))`` of rows of ``size`` (at most ``MAX_ROW``)."""
    factor = Factor.of(scales.x_scale * _LOG2_E * _ONE)
    bits = max(1, (size - 1).bit_length())
    largest = reduce("max", lambda u: rescale(ops, u, factor))

    def exponent(u: Any) -> Any:
        """In Q(30 - bits), so that a whole row adds up to at most 2**30."""
        power = ops.lesser(largest - rescale(ops, u, factor), _TINY)
        value = ops.left(power_of_half(ops, ops.low(power, 15)), 13)
        return shifted(ops, value, ops.lesser(ops.right(power, 15) + (bits - 1), 30))

    total = reduce("sum", exponent)
    surplus = bit_length(ops, total) - 15
    inverse = reciprocal(ops, shifted(ops, total, surplus))
    value = rounded(ops, shifted(ops, exponent(v), surplus) * inverse, 14)
    return stored(ops, rescale(ops, value, Factor.of(1 / (_ONE * scales.y_scale))), scales)


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """Bits behind the point in a layer normalisation.

    Attributes:
        norm: of normalised values.
        gamma: of ``gamma / y_scale``; ``beta / y_scale`` has both.
    """

    norm: int
    gamma: int


def layer_norm(
    ops: Integers,
    v: Any,
    reduce: Reduce,
    size: int,
    scales: Scales,
    affine: Affine,
    weights: tuple[Any, Any],
    epsilon: float,
) -> Any:
    """``(x - mean) / sqrt(variance + epsilon) * gamma + beta`` of rows of ``size``.

    Args:
        size: at most ``MAX_ROW``.
        weights: gamma and beta in fixed point, ``|gamma| <= 2**14``, ``|beta| <= 2**29``.

    Deviations are exact (``size`` times as large); each row then has a shift of its own, so that
    its largest deviation has 15 bits.
    """
    total = reduce("sum", lambda u: u)
    fraction, power = math.frexp(max(epsilon, 1e-30) * (size / scales.x_scale) ** 2)
    least, exponent = round(fraction * _ONE), power - 15  # epsilon in squares of deviations

    def deviation(u: Any) -> Any:
        return u * size - total

    largest = reduce("max", lambda u: magnitude(ops, deviation(u)))
    shift = ops.greater(bit_length(ops, largest) - 15, min(30, max(-15, -((15 - exponent) // 2))))
    down, up = ops.greater(shift, 0), ops.greater(shift * -1, 0)

    def scaled(u: Any) -> Any:
        return ops.left(shifted(ops, deviation(u), down), up)

    high = reduce("sum", lambda u: ops.right(scaled(u) * scaled(u), 15))
    low = reduce("sum", lambda u: ops.low(scaled(u) * scaled(u), 15))
    high = high + ops.right(low, 15)
    quotient = ops.over(high, size)
    rest = ops.left(high - quotient * size, 15) + ops.low(low, 15)
    variance = ops.left(quotient, 15) + ops.over(rest, size)
    places = shift * -2 + exponent
    grown = ops.left(places * 0 + least, clamped(ops, places, 0, 15))
    variance = variance + ops.right(grown, clamped(ops, places * -1, 0, 30))
    variance = ops.greater(variance, 1)
    pairs = ops.right(bit_length(ops, variance) * -1 + 30, 1)
    even = ops.left(variance, ops.greater(pairs, 0) * 2)
    even = ops.choose(ops.less(pairs, 0), ops.right(even, 2), even)
    inverse = reciprocal(ops, whole_sqrt(ops, even))
    norm = shifted(ops, scaled(v) * inverse, pairs * -1 + (29 - affine.norm))
    gamma, beta = weights
    return stored(ops, rounded(ops, norm * gamma + beta, affine.norm + affine.gamma), scales)


def affine_bits(size: int, gamma: float, beta: float) -> Affine | None:
    """The most bits that fit; None where none do.

    Args:
        size: of a row.
        gamma, beta: the largest magnitudes, in steps of the result.
    """
    norm = 15 - (max(1, size - 1).bit_length() + 1) // 2
    found = min(
        14 - math.ceil(math.log2(gamma)) if gamma else 15,
        29 - norm - math.ceil(math.log2(beta)) if beta else 15,
        30 - norm,
    )
    return Affine(norm=norm, gamma=found) if norm + found >= 0 else None
