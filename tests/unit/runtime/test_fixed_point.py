"""Functions in integers: their stated errors over whole domains, no overflow, the exact root."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tilewright.runtime.reference import fixed_point
from tilewright.runtime.reference.fixed_point import MAX_ERROR, MAX_ROW, Factor, Scales
from tilewright.runtime.reference.integer_only import (
    ELEMENTWISE,
    ArrayIntegers,
    Rows,
    reason_against,
    weights_of,
)

Array = npt.NDArray[Any]
OPS = ArrayIntegers()
LOW, HIGH = -65536, 65535  # wider than any type, so that steps can be small
_erf = np.vectorize(math.erf)
EXACT: dict[str, Callable[[Array], Array]] = {
    "IntegerExp": lambda x: np.exp(np.minimum(x, 80)),
    "IntegerSqrt": lambda x: np.sqrt(np.maximum(x, 0)),
    "IntegerSigmoid": lambda x: 1 / (1 + np.exp(np.minimum(-x, 700))),
    "IntegerGelu": lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))),
}
DOMAINS = {9: np.arange(-255, 256), 16: np.arange(-32768, 32768)}  # every input that there is


def scales(x_scale: float, y_scale: float, bits: int) -> Scales:
    x, y = float(np.float32(x_scale)), float(np.float32(y_scale))
    return Scales(x_scale=x, y_scale=y, x_bits=bits, zero=0, low=LOW, high=HIGH)


def settings(op_type: str, bits: int) -> Iterator[Scales]:
    """Ranges from a part of 1 to 2000, results in fine and coarse steps."""
    for largest in np.geomspace(0.03, 2000, 19):
        for top in (0.5, 1.0, 30.0):
            x_scale, y_scale = largest / DOMAINS[bits][-1], top / HIGH
            if op_type == "IntegerSqrt":
                y_scale = max(y_scale, math.sqrt(largest) / 32000)
            found = scales(x_scale, y_scale, bits)
            kind = np.dtype(np.int8 if bits == 9 else np.int16)
            if reason_against(op_type, kind, np.dtype(np.int16), found, 0) is None:
                yield found


def beyond_rounding(found: Array, exact: Array, of: Scales) -> Array:
    """Errors beyond half a step, of values that the result can hold."""
    step = of.y_scale
    error = np.abs(found * step - exact) - step / 2
    return np.where((exact > LOW * step) & (exact < HIGH * step), np.maximum(error, 0), 0)


@pytest.mark.parametrize("bits", DOMAINS)
@pytest.mark.parametrize("op_type", ELEMENTWISE)
def test_errors_are_as_stated_over_the_whole_domain(op_type: str, bits: int) -> None:
    v = DOMAINS[bits]
    for of in settings(op_type, bits):
        x = v * of.x_scale
        found = ELEMENTWISE[op_type](OPS, v.astype(np.int32), of)
        exact = EXACT[op_type](x)
        error = beyond_rounding(found, exact, of)
        allowed = MAX_ERROR[op_type] * np.ones_like(exact)
        if op_type == "IntegerExp":
            allowed = allowed * exact
        elif op_type == "IntegerSqrt":
            allowed = allowed * math.sqrt(x.max())
        elif op_type == "IntegerGelu":
            allowed = allowed + 5e-5 * np.abs(x)
        assert np.all(error <= allowed), of


@pytest.mark.parametrize("bits", DOMAINS)
@pytest.mark.parametrize("op_type", ELEMENTWISE)
def test_nothing_overflows_32_bits(op_type: str, bits: int) -> None:
    v = DOMAINS[bits]
    for of in settings(op_type, bits):
        narrow = ELEMENTWISE[op_type](OPS, v.astype(np.int32), of)
        assert narrow.dtype == np.int32
        np.testing.assert_array_equal(narrow, ELEMENTWISE[op_type](OPS, v.astype(np.int64), of))


def rows(size: int, bits: int) -> Iterator[Array]:
    """Uniform, normal, constant, sparse and nearly constant rows."""
    rng, top = np.random.default_rng(size), int(DOMAINS[bits][-1])
    shape = (max(1, 6000 // size), size)
    yield rng.integers(-top, top + 1, shape)
    yield np.rint(rng.normal(top / 3, top / 12, shape)).clip(-top, top).astype(np.int64)
    yield np.full(shape, 5)
    yield np.where(rng.random(shape) < 0.01, top, -top)
    yield rng.integers(0, 3, shape)


SIZES = (1, 2, 7, 64, 384, 1000, MAX_ROW)


@pytest.mark.parametrize("bits", DOMAINS)
@pytest.mark.parametrize("size", SIZES)
def test_softmax(size: int, bits: int) -> None:
    for v in rows(size, bits):
        for largest in (0.1, 4.0, 30.0, 1000.0):
            of = scales(largest / DOMAINS[bits][-1], 1 / HIGH, bits)
            x = v * of.x_scale
            power = np.exp(x - x.max(1, keepdims=True))
            exact = power / power.sum(1, keepdims=True)
            narrow, wide = (
                fixed_point.softmax(OPS, part, Rows(part, (1,)).reduce, size, of)
                for part in (v.astype(np.int32), v)
            )
            np.testing.assert_array_equal(narrow, wide)
            assert beyond_rounding(narrow, exact, of).max() <= MAX_ERROR["IntegerSoftmax"]


@pytest.mark.parametrize("epsilon", [1e-12, 1e-5, 1.0])
@pytest.mark.parametrize("bits", DOMAINS)
@pytest.mark.parametrize("size", SIZES)
def test_layer_normalisation(size: int, bits: int, epsilon: float) -> None:
    rng = np.random.default_rng(size)
    gamma, beta = rng.normal(1, 0.3, size), rng.normal(0, 0.3, size)
    for v in rows(size, bits):
        for x_scale in (1e-5, 1e-3, 0.1, 4.0):
            of = scales(x_scale, 8 / 32767, bits)
            x = v * of.x_scale
            norm = x - x.mean(1, keepdims=True)
            norm = norm / np.sqrt(x.var(1, keepdims=True) + epsilon)
            weights = weights_of(gamma, beta, of.y_scale, size)
            assert weights is not None
            narrow, wide = (
                fixed_point.layer_norm(
                    OPS,
                    part,
                    Rows(part, (1,)).reduce,
                    size,
                    of,
                    weights[2],
                    (weights[0].astype(part.dtype), weights[1].astype(part.dtype)),
                    epsilon,
                )
                for part in (v.astype(np.int32), v)
            )
            np.testing.assert_array_equal(narrow, wide)
            unit = np.abs(gamma).max() * max(1.0, np.abs(norm).max())
            error = beyond_rounding(narrow, norm * gamma + beta, of).max() / unit
            assert error <= MAX_ERROR["IntegerLayerNormalization"]


def test_the_root_is_exact_where_it_changes() -> None:
    root = np.arange(46341, dtype=np.int64)
    first, last = root**2, np.minimum((root + 1) ** 2, 2**31) - 1
    for x in (first, last):
        np.testing.assert_array_equal(fixed_point.whole_sqrt(OPS, x.astype(np.int32)), root)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2**31, 300_000)
    np.testing.assert_array_equal(
        fixed_point.whole_sqrt(OPS, x.astype(np.int32)), [math.isqrt(int(n)) for n in x]
    )


def test_bit_lengths_and_reciprocals() -> None:
    x = np.array([0, 1, 2, 3, 255, 256, 2**30 - 1, 2**30, 2**31 - 1], np.int32)
    expected = [int(n).bit_length() for n in x]
    np.testing.assert_array_equal(fixed_point.bit_length(OPS, x), expected)
    d = np.arange(2**14, 2**15 + 1, dtype=np.int32)
    found = fixed_point.reciprocal(OPS, d)
    assert np.abs(found / 2**15 - 2**14 / d).max() < 2.5e-5


@pytest.mark.parametrize("real", [1e-12, 3e-5, 0.3, 1 - 1e-12, 1.0, 7.0, 3e4])
def test_rescaling_rounds_to_the_nearest(real: float) -> None:
    v = np.arange(-32768, 32768, dtype=np.int32)
    exact = v.astype(np.float64) * real
    found = fixed_point.rescale(OPS, v, Factor.of(real))
    assert np.abs(found - exact).max() <= 0.5 + 2e-5 + np.abs(exact).max() * 2**-29


def test_powers_of_a_half_reach_both_ends() -> None:
    r = np.arange(2**15 + 1, dtype=np.int32)
    found = fixed_point.power_of_half(OPS, r)
    assert (found[0], found[-1]) == (2**16, 2**15)
    assert np.abs(found / 2**16 - 2.0 ** (-r / 2**15)).max() < 2.5e-5
