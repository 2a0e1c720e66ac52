"""Activations: ONNX's cases, NaN, and no overflow."""

import math
from typing import Any

import numpy as np
import pytest

from tilewright.runtime.reference import evaluate
from unit.lower.harness import Array, Case, check_case, node_cases, run_operator

OPERATORS = (
    "Celu Elu Gelu HardSigmoid HardSwish LeakyRelu Mish PRelu Relu Selu Shrink Sigmoid Softplus "
    "Softsign SwiGLU Swish ThresholdedRelu"
).split()
THRESHOLDS = ("Shrink", "ThresholdedRelu")
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
    assert np.isnan(result).tolist() == [op_type not in THRESHOLDS, False, False]


@pytest.mark.parametrize(
    ("op_type", "how"),
    [
        ("ThresholdedRelu", {}),
        ("ThresholdedRelu", {"alpha": -0.5}),
        ("Shrink", {}),
        ("Shrink", {"bias": 1.0}),
        ("Shrink", {"lambd": 1.5, "bias": 0.5}),
    ],
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_what_is_beyond_no_threshold_is_positive_zero(
    op_type: str, how: dict[str, Any], dtype: type
) -> None:
    """NaN is on neither side of one."""
    below = [-0.75] * 4 if how.get("alpha") == -0.5 else [1e-7, -1e-7, 0.0, -0.0]
    x: Array = np.array([np.nan, *below, np.inf, 2], dtype)
    (found,) = run_operator(op_type, {"x": x}, **how)
    (meant,) = evaluate("", op_type, [x], how, opset=22)
    for result in (found, np.asarray(meant)):
        assert not result[:5].any()
        assert not np.signbit(result[:5]).any()
        assert np.isposinf(result[5])
        assert result[6] == 2 - how.get("bias", 0)


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
