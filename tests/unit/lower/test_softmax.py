"""Softmax and relatives: ONNX's cases, large values, halves, rows of -inf."""

import numpy as np
import pytest

from unit.lower.harness import Case, check_case, node_cases, run_operator

CASES = node_cases("Softmax", "LogSoftmax", "Hardmax")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("symbolic", [False, True])
def test_case(case: Case, symbolic: bool) -> None:
    check_case(case, symbolic=symbolic)


def test_large_values_do_not_overflow() -> None:
    x = np.array([[1e4, 1e4 - 1], [-1e4, -1e4 - 1]], np.float32)
    expected = 1 / (1 + np.exp(-1))
    (result,) = run_operator("Softmax", {"x": x})
    np.testing.assert_allclose(result[:, 0], [expected, expected], rtol=1e-6)
    (result,) = run_operator("LogSoftmax", {"x": x})
    np.testing.assert_allclose(result[:, 0], np.log([expected, expected]), rtol=1e-6)


def test_halves_are_normalised_in_float32() -> None:
    x = np.zeros((1, 5000), np.float16)
    (result,) = run_operator("LogSoftmax", {"x": x})
    np.testing.assert_array_equal(result, np.full_like(x, -np.log(5000)))


def test_rows_without_a_finite_largest_element_give_nan() -> None:
    x = np.array([[-np.inf, -np.inf], [np.inf, 0], [-np.inf, 0]], np.float32)
    (result,) = run_operator("Softmax", {"x": x})
    np.testing.assert_array_equal(result, [[np.nan] * 2, [np.nan, np.nan], [0, 1]])


def test_an_empty_axis() -> None:
    (result,) = run_operator("Softmax", {"x": np.zeros((3, 0), np.float32)})
    assert result.shape == (3, 0)


def test_hardmax_takes_the_first_of_equals() -> None:
    (result,) = run_operator("Hardmax", {"x": np.array([[1, 3, 3]], np.float32)})
    np.testing.assert_array_equal(result, [[0, 1, 0]])
