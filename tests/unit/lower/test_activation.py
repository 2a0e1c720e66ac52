"""Activations: ONNX's cases, NaN, and no overflow."""

import math

import numpy as np
import pytest

from unit.lower.harness import Array, Case, check_case, node_cases, run_operator

OPERATORS = (
    "Celu Elu Gelu HardSigmoid HardSwish LeakyRelu Mish PRelu Relu Selu Shrink Sigmoid Softplus "
    "Softsign SwiGLU Swish ThresholdedRelu"
).split()
CASES = node_cases(*OPERATORS)


@pytest.mark.parametrize("case", CASES)
def test_case(case: Case) -> None:
    check_case(case)


@pytest.mark.parametrize("case", CASES)
def test_case_with_unknown_sizes(case: Case) -> None:
    check_case(case, symbolic=True)


@pytest.mark.parametrize("op_type", OPERATORS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_nan_propagates(op_type: str, dtype: type) -> None:
    feeds: dict[str, Array] = {"x": np.array([np.nan, 1, -1], dtype)}
    if op_type in ("PRelu", "SwiGLU"):
        feeds["second"] = np.array([0.5, 0.5, 0.5], dtype)
    (result,) = run_operator(op_type, feeds)
    assert np.isnan(result).tolist() == [True, False, False]


def test_softplus_does_not_overflow() -> None:
    x = np.array([-1000, -100, 0, 100, 1000], np.float32)
    (result,) = run_operator("Softplus", {"x": x})
    np.testing.assert_allclose(result, np.logaddexp(x, np.float32(0)), rtol=1e-6)


@pytest.mark.parametrize("op_type", ["Elu", "Selu", "Celu", "Mish", "Swish", "Gelu"])
def test_large_arguments_stay_finite(op_type: str) -> None:
    (result,) = run_operator(op_type, {"x": np.array([-1e4, 1e4], np.float32)})
    assert np.isfinite(result).all()


def test_elu_near_zero_keeps_its_digits() -> None:
    (result,) = run_operator("Elu", {"x": np.array([-1e-6], np.float32)})
    np.testing.assert_allclose(result, math.expm1(-1e-6), rtol=1e-6)


def test_relu_of_integers() -> None:
    (result,) = run_operator("Relu", {"x": np.array([-3, 3], np.int8)})
    np.testing.assert_array_equal(result, np.array([0, 3], np.int8))


def test_shrink_of_integers() -> None:
    (result,) = run_operator("Shrink", {"x": np.array([-3, 1, 3], np.int16)}, lambd=1.5, bias=1.0)
    np.testing.assert_array_equal(result, np.array([-2, 0, 2], np.int16))
