"""Ranking and compaction: ties, NaN, element types, run-time lengths."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.core.errors import OutOfRange
from tilewright.lower.context import Unlowerable
from unit.lower.direct import Array, lower, run

SYMBOLIC = pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])


def _topk(x: Array, k: int, axis: int, largest: bool) -> tuple[Array, Array]:
    """Stable order with NaN as the largest value."""
    wide = x.astype(np.float64) if x.dtype.kind not in "iu" else x.astype(np.int64)
    keys = -wide if largest else wide
    if keys.dtype.kind == "f" and largest:
        keys = np.where(np.isnan(keys), -np.inf, keys)
        spread = np.where(np.isnan(wide), 0, 1)  # NaN comes before +inf
        order = np.lexsort((np.indices(x.shape)[axis], keys, spread), axis=axis)
    else:
        order = np.argsort(keys, axis=axis, kind="stable")
    order = np.take(order, np.arange(k), axis=axis)
    return np.take_along_axis(x, order, axis), order


@SYMBOLIC
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.uint64]
)
def test_topk_orders_ties_and_nan(dtype: Any, axis: int, largest: bool, symbolic: bool) -> None:
    x = np.random.default_rng(3).integers(0, 4, (5, 6)).astype(dtype)
    if np.dtype(dtype).kind not in "iu":
        x[1, 2], x[3, 2], x[1, 4], x[2, 2] = np.nan, np.nan, np.inf, -np.inf
        x[0, 0], x[0, 1] = -0.0, 0.0
    values, order = _topk(x, 4, axis, largest)
    found = run(
        "TopK",
        [x, np.array([4])],
        [(x.dtype, values.shape), (np.int64, values.shape)],
        attributes={"axis": axis, "largest": int(largest)},
        params={"k": (4,)},
        symbolic=symbolic,
    )
    np.testing.assert_array_equal(found[1], order)
    np.testing.assert_array_equal(found[0].astype(np.float64), values.astype(np.float64))


@SYMBOLIC
def test_topk_of_none(symbolic: bool) -> None:
    x = np.zeros((2, 3), np.float32)
    found = run(
        "TopK",
        [x, np.array([0])],
        [(x.dtype, (2, 0)), (np.int64, (2, 0))],
        params={"k": (0,)},
        symbolic=symbolic,
    )
    assert [part.shape for part in found] == [(2, 0), (2, 0)]


def test_a_long_known_axis_is_left_to_a_sort() -> None:
    x = np.zeros((5000,), np.float32)
    outputs = [(np.dtype(np.float32), (3,)), (np.dtype(np.int64), (3,))]
    with pytest.raises(Unlowerable, match="sorted faster"):
        lower("TopK", [x, np.array([3])], outputs, params={"k": (3,)})


@SYMBOLIC
@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.int64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (7,), (3, 4), (2, 0, 3)])
def test_nonzero(shape: tuple[int, ...], dtype: Any, symbolic: bool) -> None:
    x = np.asarray(np.random.default_rng(4).integers(0, 2, shape)).astype(dtype)
    if not shape:
        expected = np.zeros((0, int(bool(x))), np.int64)
    else:
        expected = np.stack(np.nonzero(x.astype(np.float64)))
    (found,) = run("NonZero", [x], [(np.int64, expected.shape)], symbolic=symbolic)
    np.testing.assert_array_equal(found, expected)


@SYMBOLIC
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_compress(axis: int | None, symbolic: bool) -> None:
    x = np.arange(12).reshape(3, 4).astype(np.int16)
    condition = np.array([True, False, True])  # shorter than some axes
    expected = np.compress(condition, x, axis=axis)
    (found,) = run(
        "Compress",
        [x, condition],
        [(x.dtype, expected.shape)],
        attributes={} if axis is None else {"axis": axis},
        symbolic=symbolic,
    )
    np.testing.assert_array_equal(found, expected)


@SYMBOLIC
def test_compress_refuses_a_condition_beyond_the_axis(symbolic: bool) -> None:
    x, condition = np.zeros((2,), np.float32), np.array([True, False, True])
    with pytest.raises(OutOfRange):
        run("Compress", [x, condition], [(x.dtype, (2,))], symbolic=symbolic)


@pytest.mark.parametrize("op_type", ["Unique", "NonMaxSuppression"])
def test_sorting_operators_are_refused_with_a_reason(op_type: str) -> None:
    with pytest.raises(Unlowerable, match="depends on the data"):
        lower(op_type, [np.zeros(3, np.float32)], [(np.dtype(np.float32), (3,))])
