"""Narrow products and quantised models on a GPU: integers equal the simulator bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from gpu.launch import arch, run_on_gpu
from tilewright.codegen.cuda.contraction import ranked_tiles
from tilewright.codegen.cuda.target import cuda_target
from tilewright.core.dtypes import FLOAT8_E4M3FN as FLOAT8
from tilewright.core.dtypes import INT8, INT32, UINT8
from tilewright.core.shape import Dim
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Axis, Expr, Kernel, constant, reduce_axes
from tilewright.lower.quantized import requantized
from tilewright.runtime.reference.quantization import requantize
from unit.codegen.cpu.kernels import buffer, pure
from unit.codegen.cuda.attentions import IN_BFLOAT16
from unit.codegen.cuda.contractions import NARROW, byte_convolution, feeds_of, narrow_product
from unit.compiler import models
from unit.quantized import float8
from unit.quantized.qdq import all_pairs_of_bytes, simulated
from unit.quantized.test_networks import network
from unit.quantized.test_requantize import SCALES

pytestmark = pytest.mark.gpu
LARGE = {
    "bytes": narrow_product(200, 328, 640, UINT8, INT8),
    "signed bytes": narrow_product(49, 72, 2304, INT8),
    "window": byte_convolution((3, 14, 14, 256), 256, 3, zero=5),
    "float8": narrow_product(200, 328, 640, FLOAT8),
}


def _check(kernel: Kernel, expected: Any, **options: Any) -> None:
    found = run_on_gpu(kernel, feeds_of(kernel), {}, **options)["out"]
    if kernel.outputs[0].dtype.is_integer:
        np.testing.assert_array_equal(found, expected)
    else:
        largest = float(np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-3 * largest)


@pytest.mark.parametrize("name", NARROW)
def test_narrow_products(name: str) -> None:
    kernel = NARROW[name]
    expected = interpret(kernel, feeds_of(kernel), {})["out"]
    for disabled in ((), ("tma",), ("tensor_core",)):
        _check(kernel, expected, disabled=disabled)


@pytest.mark.parametrize("name", LARGE)
def test_every_tile(name: str) -> None:
    kernel = LARGE[name]
    expected = interpret(kernel, feeds_of(kernel), {})["out"]
    for tile in ranked_tiles(kernel, (), cuda_target(arch()).clusters):
        _check(kernel, expected, tile=tile, constants=tuple({"b", "w"} & feeds_of(kernel).keys()))


@pytest.mark.parametrize(("dtype", "zero"), [(UINT8, 0), (UINT8, 131), (INT8, -7)])
def test_every_accumulator(dtype: Any, zero: int) -> None:
    """A column a scale and sign; its sum is 127 * high + low of each row: all of the range."""
    scales = np.repeat(np.asarray(SCALES, np.float32), 2)
    count = scales.size
    a, b = buffer("a", 65536, 16, dtype=UINT8), buffer("b", count, 16, dtype=INT8)
    factor, r = buffer("factor", count), Axis("r", Dim.of(16))

    def body(i: Expr, j: Expr) -> Expr:
        total = reduce_axes("sum", (r,), a[i, r.var].cast(INT32) * b[j, r.var].cast(INT32))
        return requantized(total, factor[j], constant(zero, dtype), dtype)

    kernel = pure(buffer("out", 65536, count, dtype=dtype), (a, b, factor), body)
    rows, columns = np.zeros((65536, 16), np.uint8), np.zeros((count, 16), np.int8)
    rows[:, 0], rows[:, 1] = np.mgrid[:256, :256].reshape(2, -1)
    columns[:, 0], columns[:, 1] = 127, 1
    columns[1::2] *= -1
    found = run_on_gpu(kernel, {"a": rows, "b": columns, "factor": scales}, {})["out"]
    totals = rows.astype(np.int32) @ columns.T.astype(np.int32)
    for column, scale in enumerate(scales):
        given = np.asarray(scale), np.asarray(zero, dtype.numpy), np.dtype(dtype.numpy)
        np.testing.assert_array_equal(found[:, column], requantize(totals[:, column], *given))


def _assert_exact(model: Any, feeds: dict[str, Any]) -> None:
    expected, _ = simulated(model, feeds)
    engine = tw.compile(model, target=arch(), cache=None, verify=False)
    found = engine.run(feeds)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("seed", range(4))
def test_sums_of_all_pairs_of_bytes(seed: int) -> None:
    """Residual sums: each product, sum and quotient must round as the simulator does."""
    _assert_exact(*all_pairs_of_bytes(seed))


def test_attention_in_bfloat16() -> None:
    feeds = feeds_of(IN_BFLOAT16)
    expected = interpret(IN_BFLOAT16, feeds, {})["out"].astype(np.float64)
    found = run_on_gpu(IN_BFLOAT16, feeds, {})["out"].astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=3e-2, atol=1.6e-2)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_values_of_16_bits(precision: str) -> None:
    feeds = models.feeds_of()
    tw.compile(models.network(), target=arch(), precision=precision, cache=None, verify_feeds=feeds)


@pytest.mark.parametrize("seed", range(6))
def test_networks(seed: int) -> None:
    _assert_exact(*network(seed))


def test_networks_of_float8() -> None:
    feeds = {"x": models.normal(*float8.SHAPE, seed=3)}
    tw.compile(float8.network(), target=arch(), precision="fp16", cache=None, verify_feeds=feeds)
