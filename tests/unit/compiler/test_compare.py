"""Differences are found, whatever the type; what is equal has none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tilewright.compiler.compare import compare_output, relative_error, tolerance_of
from tilewright.core import dtypes

INF, NAN = math.inf, math.nan


def F(values: list[float]) -> Any:  # noqa: N802 - as short as a type
    """Float32 numbers."""
    return np.array(values, np.float32)


def _bytes(value: int) -> Any:
    return np.array([value], np.int8)


@pytest.mark.parametrize(
    ("got", "want", "error"),
    [
        (F([1, 2]), np.array([1.0, 2.0]), 0.0),
        (F([1, 2]), np.array([1.0, 4.0]), 0.5),
        (F([0, -4]), np.array([1.0, -4.0]), 0.25),
        (F([NAN, 1]), np.array([NAN, 1.0]), 0.0),
        (F([INF, 1]), np.array([INF, 1.0]), 0.0),
        (F([INF, 0]), np.array([INF, 0.0]), 0.0),
        (F([INF, 1]), np.array([1e300, 1.0]), 0.0),  # float32 has no such number
        (F([-INF, 1]), np.array([1e300, 1.0]), INF),
        (F([INF, 1]), np.array([-INF, 1.0]), INF),
        (F([NAN, 1]), np.array([2.0, 1.0]), INF),
        (F([2, 1]), np.array([NAN, 1.0]), INF),
        (F([1, 2]), np.array([[1.0, 2.0]]), INF),
        (F([]), np.array([]), 0.0),
        (np.array([1, 2]), np.array([1, 2]), 0.0),
        (np.array([1, 2]), np.array([1, 3]), INF),
        (np.array([True]), np.array([False]), INF),
        (np.array(["a"], object), np.array(["a"], object), 0.0),
        (np.array(["a"], object), np.array(["b"], object), INF),
        (np.array([3 + 4j], np.complex64), np.array([3 + 4j]), 0.0),
        (np.array([3 + 4j], np.complex64), np.array([3.0 + 0j]), 4 / 3),
        (None, None, 0.0),
        (None, F([1]), INF),
        ([F([1]), F([2])], [np.array([1.0]), np.array([4.0])], 0.5),
        ([F([1])], [], INF),
    ],
)
def test_relative_error(got: Any, want: Any, error: float) -> None:
    found, detail = relative_error(got, want)
    assert found == pytest.approx(error)
    assert bool(detail) == math.isinf(error)


def test_tolerances_follow_the_type() -> None:
    floats = [tolerance_of(getattr(dtypes, name)) for name in ("FLOAT64", "FLOAT32", "FLOAT16")]
    assert floats == sorted(floats)
    assert tolerance_of(dtypes.COMPLEX64) == tolerance_of(dtypes.FLOAT32)
    assert tolerance_of(dtypes.INT8) == tolerance_of(dtypes.BOOL) == 0.0


def test_the_better_of_two_references_counts() -> None:
    found = compare_output("y", dtypes.INT8, _bytes(3), _bytes(4), _bytes(3))
    assert found.passed
    found = compare_output("y", dtypes.INT8, _bytes(3), _bytes(4), _bytes(2))
    assert not found.passed
