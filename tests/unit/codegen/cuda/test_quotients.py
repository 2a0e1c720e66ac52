"""Quotients by constants in two instructions: those of IEEE, or none."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from tilewright.codegen.cuda.quotients import quotient_factors

_DIVISORS = [float(np.float32(d)) for d in (0.0303, 3.0, 1e-3, 0.0265164, 7.5, 121.25, 1.9999999)]


def _by_factors(x: npt.NDArray[np.float32], factors: tuple[float, float]) -> list[float]:
    """``fma(x, high, x * low)``, rounded once."""
    high, low = Fraction(factors[0]), np.float32(factors[1])
    return [_nearest(Fraction(float(v)) * high + Fraction(float(v * low))) for v in x]


def _nearest(value: Fraction) -> float:
    exponent = math.frexp(float(value))[1] - 24
    return math.ldexp(round(value / Fraction(2) ** exponent), exponent)


@pytest.mark.parametrize("divisor", _DIVISORS)
def test_factors_give_the_quotients_of_ieee(divisor: float) -> None:
    factors = quotient_factors(divisor)
    if factors is None:
        return
    assert all(float(np.float32(factor)) == factor and factor > 0 for factor in factors)
    rng = np.random.default_rng(0)
    some = np.exp2(rng.uniform(-30, 30, 2000)).astype(np.float32)
    exact = (np.arange(1, 2000) * np.float32(divisor) / 2).astype(np.float32)  # halves, almost
    x = np.concatenate([some, exact, np.nextafter(exact, np.float32(0))])
    np.testing.assert_array_equal(_by_factors(x, factors), x / np.float32(divisor))


def test_most_divisors_have_factors() -> None:
    divisors = np.exp2(np.random.default_rng(1).uniform(-12, 6, 200)).astype(np.float32)
    found = [quotient_factors(float(divisor)) for divisor in divisors]
    assert sum(factors is not None for factors in found) > 150


def test_signs_are_those_of_the_divisor_and_infinities_stay() -> None:
    high, low = quotient_factors(-0.0303) or (0.0, 0.0)
    assert high < 0
    assert low < 0
    infinite = np.float32(np.inf)
    assert infinite * np.float32(high) + infinite * np.float32(low) == -np.inf


def test_powers_of_two_have_none() -> None:
    assert quotient_factors(0.25) is None
