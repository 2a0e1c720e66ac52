"""Requantisation: every accumulator, for each scale of a grid, on every kind of instruction."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import tilewright as tw
from tilewright.runtime.reference.quantization import requantize
from unit.graph.models import model_of, node, tensor_info
from unit.quantized.qdq import all_pairs_of_bytes, assert_exact

# Ties at every half, at every other sum, thirds, tiny and huge ones, numbers of many digits.
SCALES = [0.5, 0.25, 1.5, 1 / 3, 0.0123, 0.3, 1e-4, 0.00729927, 2.0**-15, 7.5e-3, 1e-9, 3e4]
TARGETS = ["host", "skylake-avx512", "haswell", "x86-64-v2"]
RANGE = 127 * 255 + 255


def exact(total: int, factor: Any, zero: int, low: int, high: int) -> int:
    """The rule in fractions: one product of float32, rounded to float32, then to an integer."""
    product = np.float32(total) * factor
    if not np.isfinite(product):
        return high if product > 0 else low
    return min(max(round(Fraction(float(product))) + zero, low), high)


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 131), ("int8", -7)])
def test_the_simulator_keeps_the_rule(dtype: str, zero: int) -> None:
    limits = np.iinfo(dtype)
    totals = np.r_[np.arange(-1500, 1500), [-(2**31), 2**31 - 1, 2**24 + 1, -(2**24) - 3]]
    for scale in np.asarray(SCALES, np.float32):
        found = requantize(
            totals.astype(np.int32), np.asarray(scale), np.asarray(zero, dtype), np.dtype(dtype)
        )
        wanted = [exact(int(t), scale, zero, limits.min, limits.max) for t in totals]
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("seed", range(4))
def test_sums_of_all_pairs_of_bytes_equal_the_simulator(seed: int) -> None:
    """Residual sums divide by the scale of the result; each quotient must round as it does."""
    for cpu in ("host", "haswell"):
        assert_exact(*all_pairs_of_bytes(seed), cpu=cpu)


@pytest.mark.parametrize("cpu", TARGETS)
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 131), ("int8", -7)])
def test_kernels_equal_the_simulator_for_every_accumulator(cpu: str, dtype: str, zero: int) -> None:
    """One filter a scale and sign; its sum is 127 * high + low of each pixel: all of the range."""
    filters = 2 * len(SCALES)
    weights = np.zeros((filters, 4, 1, 1), np.int8)
    weights[:, 0, 0, 0], weights[:, 1, 0, 0] = 127, 1
    weights[1::2] *= -1
    scales = np.repeat(np.asarray(SCALES, np.float32), 2)
    grid = np.zeros((1, 4, 256, 256), np.uint8)
    grid[0, 0], grid[0, 1] = np.mgrid[:256, :256]
    model = model_of(
        [node("QLinearConv", ["x", "one", "x0", "w", "s", "w0", "one", "y0"], ["y"], name="conv")],
        inputs=[tensor_info("x", grid.shape, TensorProto.UINT8)],
        weights={
            "one": np.float32(1),
            "x0": np.uint8(0),
            "w": weights,
            "s": scales,
            "w0": np.zeros(filters, np.int8),
            "y0": np.asarray(zero, dtype),
        },
    )
    engine = tw.compile(model, cache=None, cpu=cpu, threads=1, require=["compiled"])
    found = engine.run({"x": grid})["y"][0].reshape(filters, -1)
    totals = (127 * grid[0, 0].astype(np.int32) + grid[0, 1]).reshape(-1)
    assert set(range(RANGE + 1)) == {*totals.tolist()}
    for row, scale in enumerate(scales):
        signed = -totals if row % 2 else totals
        wanted = requantize(signed, np.asarray(scale), np.asarray(zero, dtype), np.dtype(dtype))
        np.testing.assert_array_equal(found[row], wanted)
