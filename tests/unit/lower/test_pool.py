"""Pooling against the reference: geometry, ceil_mode, indices, counting of padding, types, NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.kernel.ir import Call, Kernel, walk
from unit.lower.against_reference import check, integers, uniform, window
from unit.lower.direct import lower

_GEOMETRY: list[tuple[Sequence[int], Sequence[int], dict[str, Sequence[int]], int]] = [
    ((7,), (3,), {}, 0),
    ((7,), (2,), {"strides": [2]}, 1),
    ((8,), (3,), {"pads": [1, 1], "strides": [3], "dilations": [2]}, 1),
    ((6, 5), (3, 3), {"pads": [1, 1, 1, 1]}, 0),
    ((6, 5), (3, 2), {"pads": [0, 1, 2, 0], "strides": [2, 2]}, 0),
    ((7, 6), (3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}, 1),
    ((7, 9), (2, 3), {"dilations": [2, 3], "strides": [2, 1]}, 1),
    ((4, 5, 6), (2, 3, 2), {"pads": [1, 0, 1, 0, 1, 1], "strides": [1, 2, 2]}, 0),
]


@pytest.mark.parametrize(("size", "kernel", "how", "ceil"), _GEOMETRY)
@pytest.mark.parametrize("op", ["MaxPool", "LpPool", "AveragePool", "padded AveragePool"])
def test_pool(
    op: str, size: Sequence[int], kernel: Sequence[int], how: dict[str, Sequence[int]], ceil: int
) -> None:
    attributes, params = window(kernel, **how)
    known: dict[str, Any] = {**attributes, "ceil_mode": ceil}
    if op.startswith("padded"):
        known["count_include_pad"] = 1
    check(op.split()[-1], [uniform(2, 3, *size)], known, params=params)


@pytest.mark.parametrize(("size", "kernel", "how", "ceil"), _GEOMETRY)
@pytest.mark.parametrize("order", [0, 1])
def test_max_indices(
    size: Sequence[int],
    kernel: Sequence[int],
    how: dict[str, Sequence[int]],
    ceil: int,
    order: int,
) -> None:
    attributes, params = window(kernel, **how)
    known = {**attributes, "ceil_mode": ceil, "storage_order": order}
    x = np.floor(uniform(2, 3, *size) * 3)  # with many equal values
    check("MaxPool", [x], known, params=params, num_outputs=2)


def test_max_of_nan_is_nan_and_its_index_the_first_nan() -> None:
    attributes, params = window((2, 2))
    x = uniform(1, 1, 4, 4)
    x[0, 0, 1, 2] = x[0, 0, 2, 2] = math.nan
    values, indices = check("MaxPool", [x], attributes, params=params, num_outputs=2)
    assert np.isnan(values[0, 0, 1, 2])
    assert indices[0, 0, 1, 2] == 6


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float16, np.float64, ml_dtypes.bfloat16])
def test_max_pool_types(dtype: Any) -> None:
    attributes, params = window((2, 2), pads=[1, 1, 0, 0])
    x = integers(1, 2, 4, 4, dtype=np.int8).astype(dtype)
    check("MaxPool", [x], attributes, params=params, num_outputs=2)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_norms(p: int) -> None:
    attributes, params = window((2, 2))
    check("LpPool", [uniform(2, 3, 4, 5)], {**attributes, "p": p}, params=params)
    check("GlobalLpPool", [uniform(2, 3, 4, 5)], {"p": p})


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 4, 5), (0, 3, 4, 5), (1, 2, 3, 1, 2)])
def test_global(op: str, dtype: Any, shape: tuple[int, ...]) -> None:
    check(op, [uniform(*shape, dtype=dtype)])


def test_average_of_whole_windows_divides_by_a_constant() -> None:
    attributes, params = window((2, 2), strides=[2, 2])
    x = uniform(1, 2, 4, 4)
    lowering, _ = lower(
        "AveragePool", [x], [(np.float32, (1, 2, 2, 2))], attributes=attributes, params=params
    )
    (kernel,) = lowering.items
    assert isinstance(kernel, Kernel)
    assert kernel.is_pure
    nodes = walk(kernel.stages[0].stores[0].value)
    assert not any(isinstance(node, Call) and node.op in ("select", "max") for node in nodes)
