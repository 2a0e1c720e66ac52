"""Data-dependent indices: wrapping, refusal, duplicates, reductions, element types."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.core.errors import OutOfRange
from tilewright.kernel.ir import Kernel
from tilewright.lower.context import Unlowerable
from unit.lower.direct import Array, lower, run

SYMBOLIC = pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])


def _x(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(1).integers(-4, 5, shape).astype(dtype)


@SYMBOLIC
@pytest.mark.parametrize("axis", [0, -1])
def test_gather_wraps_negative_indices(axis: int, symbolic: bool) -> None:
    x, indices = _x(3, 4, 5), np.array([[0, -1], [-3, 2]], np.int32)
    expected = np.take(x, indices, axis=axis)
    (found,) = run(
        "Gather",
        [x, indices],
        [(x.dtype, expected.shape)],
        attributes={"axis": axis},
        symbolic=symbolic,
    )
    np.testing.assert_array_equal(found, expected)


@SYMBOLIC
@pytest.mark.parametrize("bad", [3, -4])
def test_an_index_outside_is_reported(bad: int, symbolic: bool) -> None:
    x, updates = _x(3), _x(1)
    index = np.array([bad], np.int64)
    y = [(x.dtype, (1,))]
    with pytest.raises(OutOfRange):
        run("Gather", [x, index], y, symbolic=symbolic)
    with pytest.raises(OutOfRange):
        run("GatherElements", [x, index], y, symbolic=symbolic)
    with pytest.raises(OutOfRange):
        run("GatherND", [x, index], [(x.dtype, ())], symbolic=symbolic, fixed=(1,))
    y = [(x.dtype, (3,))]
    with pytest.raises(OutOfRange):
        run("ScatterElements", [x, index, updates], y, symbolic=symbolic)
    with pytest.raises(OutOfRange):
        run("ScatterND", [x, index[None], updates], y, symbolic=symbolic, fixed=(1,))


@SYMBOLIC
def test_gathering_nothing(symbolic: bool) -> None:
    x, indices = _x(0, 2), np.zeros((0,), np.int64)
    (found,) = run("Gather", [x, indices], [(x.dtype, (0, 2))], symbolic=symbolic)
    assert found.shape == (0, 2)


def _fold(reduction: str, old: Any, new: Any) -> Any:
    folds = {
        "none": lambda: new,
        "add": lambda: old + new,
        "mul": lambda: old * new,
        "max": lambda: np.maximum(old, new),
        "min": lambda: np.minimum(old, new),
    }
    with np.errstate(over="ignore"):
        return folds[reduction]()


@SYMBOLIC
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.uint64, np.bool_]
)
def test_duplicates_scatter_in_order(dtype: Any, reduction: str, axis: int, symbolic: bool) -> None:
    x, updates = _x(4, 5).astype(dtype), _x(3, 3).astype(dtype)
    indices = np.array([[1, -1, 1], [1, 3, 1], [0, -1, 2]], np.int64)
    expected = x.copy()
    for i, j in np.ndindex(3, 3):
        at = (indices[i, j], j) if axis == 0 else (i, indices[i, j])
        expected[at] = _fold(reduction, expected[at], updates[i, j])
    (found,) = run(
        "ScatterElements",
        [x, indices, updates],
        [(x.dtype, x.shape)],
        attributes={"axis": axis, "reduction": reduction},
        symbolic=symbolic,
    )
    np.testing.assert_array_equal(found, expected)


@SYMBOLIC
@pytest.mark.parametrize("reduction", ["none", "add", "max"])
def test_duplicate_rows_scatter_in_order(reduction: str, symbolic: bool) -> None:
    x, updates = _x(4, 5), _x(3, 5)
    indices = np.array([[1], [-1], [1]], np.int64)
    expected = x.copy()
    for i in range(3):
        expected[indices[i, 0]] = _fold(reduction, expected[indices[i, 0]], updates[i])
    (found,) = run(
        "ScatterND",
        [x, indices, updates],
        [(x.dtype, x.shape)],
        attributes={"reduction": reduction},
        symbolic=symbolic,
        fixed=(1,),
    )
    np.testing.assert_array_equal(found, expected)


def test_only_axes_on_which_duplicates_meet_are_ordered() -> None:
    x, indices = _x(4, 5), np.zeros((3, 3), np.int64)
    lowering, _ = lower(
        "ScatterElements",
        [x, indices, _x(3, 3)],
        [(x.dtype, x.shape)],
        attributes={"axis": 1, "reduction": "add"},
    )
    (kernel,) = lowering.items
    assert isinstance(kernel, Kernel)
    assert [axis.ordered for axis in kernel.stages[-1].axes] == [False, True]


@SYMBOLIC
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32, np.uint8])
def test_one_hot_ignores_what_is_outside(dtype: Any, symbolic: bool) -> None:
    indices = np.array([0, 2, 9] if dtype is np.uint8 else [-1, 2, -9, 3]).astype(dtype)
    values = np.array([5, -6], np.int16)
    whole = indices.astype(np.int64)
    whole = np.where(whole < 0, whole + 3, whole)
    expected = np.where(whole[:, None] == np.arange(3), values[1], values[0])
    (found,) = run(
        "OneHot",
        [indices, np.array(3), values],
        [(np.int16, expected.shape)],
        symbolic=symbolic,
    )
    np.testing.assert_array_equal(found, expected)


@SYMBOLIC
@pytest.mark.parametrize(("mode", "start"), [("linear", 2), ("circular", 3), ("circular", -1)])
def test_tensor_scatter(mode: str, start: int, symbolic: bool) -> None:
    cache, update = _x(2, 4, 3), _x(2, 2, 3) + 100
    starts = np.array([start, 0], np.int64)
    expected = cache.copy()
    for b, s in np.ndindex(2, 2):
        expected[b, (starts[b] + s) % 4] = update[b, s]
    (found,) = run(
        "TensorScatter",
        [cache, update, starts],
        [(cache.dtype, cache.shape)],
        attributes={"mode": mode, "axis": -2},
        symbolic=symbolic,
    )
    np.testing.assert_array_equal(found, expected)


@SYMBOLIC
@pytest.mark.parametrize("start", [3, -1])
def test_a_linear_cache_does_not_overflow(start: int, symbolic: bool) -> None:
    cache, update = _x(1, 4, 3), _x(1, 2, 3)
    with pytest.raises(OutOfRange):
        run(
            "TensorScatter",
            [cache, update, np.array([start])],
            [(cache.dtype, cache.shape)],
            symbolic=symbolic,
        )


@SYMBOLIC
def test_max_unpool_keeps_the_last_of_duplicates(symbolic: bool) -> None:
    x = np.array([[[[1.0, 2.0], [3.0, 4.0]]]], np.float32)
    indices = np.array([[[[0, 5], [5, 15]]]], np.int64)
    expected = np.zeros((1, 1, 4, 4), np.float32)
    expected[0, 0, [0, 1, 3], [0, 1, 3]] = [1, 3, 4]
    (found,) = run(
        "MaxUnpool",
        [x, indices],
        [(x.dtype, expected.shape)],
        attributes={"kernel_shape": [2, 2], "strides": [2, 2]},
        symbolic=symbolic,
    )
    np.testing.assert_array_equal(found, expected)


def test_index_tuples_of_unknown_length_are_refused() -> None:
    x, indices = _x(3, 4), np.zeros((2, 1), np.int64)
    with pytest.raises(Unlowerable, match="length of index tuples"):
        lower("GatherND", [x, indices], [(x.dtype, (2, 4))], symbolic=True)


def test_an_unknown_reduction_is_refused() -> None:
    x, indices = _x(3), np.zeros((1,), np.int64)
    with pytest.raises(Unlowerable, match="reduction mean"):
        lower(
            "ScatterElements",
            [x, indices, _x(1)],
            [(x.dtype, x.shape)],
            attributes={"reduction": "mean"},
        )
