"""Scales, zero points, rounding and saturation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.compress.affine import (
    FLOAT8,
    affine,
    dequantize,
    largest_magnitude,
    quantize,
    quantize_weights,
    symmetric,
)
from tilewright.graph.insert_qdq import Affine
from unit.graph.passes.harness import f32

ENDS = st.floats(-1e6, 1e6, width=32)


def test_a_range_without_0_is_widened_to_contain_it() -> None:
    params = affine(2.0, 4.0)
    assert params.zero == 0
    assert params.scale == np.float32(4 / 255)
    params = affine(-4.0, -2.0)
    assert params.zero == 255


@given(ENDS, ENDS)
def test_0_is_exact_and_the_ends_are_within_a_step(one: float, other: float) -> None:
    low, high = min(one, other, 0), max(one, other, 0)
    params = affine(low, high)
    values = np.array([0.0, low, high], np.float32)
    restored = dequantize(quantize(values, params), params)
    assert restored[0] == 0
    assert np.abs(restored - values).max() <= float(params.scale) * 1.001


def test_halves_go_to_even_before_the_zero_point_is_added() -> None:
    params = Affine(scale=np.array(1, np.float32), zero=np.array(1, np.uint8))
    given_values = np.array([0.5, 1.5, 2.5, 300, -7], np.float32)
    np.testing.assert_array_equal(quantize(given_values, params), [1, 3, 3, 255, 0])


def test_a_range_of_nothing_has_scale_1() -> None:
    assert affine(0, 0).scale == 1
    assert affine(0, 1e-40).scale == 1
    assert symmetric(np.array([0.0, 2.0])).scale.tolist() == [1.0, np.float32(2 / 127)]


def test_float8_rounds_to_even_saturates_and_keeps_small_numbers() -> None:
    params = symmetric(np.array(448.0), dtype=FLOAT8)
    assert params.scale == 1
    numbers = np.array([17, 19, 1e9, -500, 2**-9, 2**-11, -0.0], np.float32)
    found = quantize(numbers, params)
    assert found.dtype == FLOAT8
    np.testing.assert_array_equal(dequantize(found, params), f32([16, 20, 448, -448, 2**-9, 0, 0]))
    weights = np.array([[1, -2, 0.5, 4], [0.1, 0.2, 0.3, -0.4]], np.float32)
    codes, params = quantize_weights(weights, 0, dtype=FLOAT8)
    assert np.abs(codes.astype(np.float32)).max(1).tolist() == [448, 448]
    assert np.abs(dequantize(codes, params) - weights).max() <= 4 / 16


def test_weights_by_channel_and_by_block() -> None:
    weights = np.array([[1, -2, 0.5, 4], [0.1, 0.2, 0.3, -0.4]], np.float32)
    np.testing.assert_array_equal(largest_magnitude(weights, 0), f32(4, 0.4))
    np.testing.assert_array_equal(largest_magnitude(weights, 1, 2), f32([2, 4], [0.2, 0.4]))
    assert largest_magnitude(weights, None) == 4
    for axis, block in ((None, 0), (0, 0), (1, 0), (1, 2), (1, 3)):
        integers, params = quantize_weights(weights, axis, block)
        assert integers.dtype == np.int8
        assert np.abs(integers).max() == 127
        steps = np.abs(dequantize(integers, params) - weights)
        assert steps.max() <= 0.5 * params.scale.max() * 1.001


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)])
def test_scales_follow_their_axis(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(shape).astype(np.float32)
    for axis in range(len(shape)):
        integers, params = quantize_weights(weights, axis)
        assert params.scale.shape == (shape[axis],)
        for index in range(shape[axis]):
            part = np.take(weights, index, axis)
            expected = np.rint(part / params.scale[index])
            np.testing.assert_array_equal(np.take(integers, index, axis), expected)
