"""Running sums and products: ONNX's cases, axes known at run time, halves, empties."""

import numpy as np
import pytest

from unit.lower.harness import Case, check_case, node_cases, run_operator

CASES = node_cases("CumSum", "CumProd")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("constant", [(), (1,)])
def test_case(case: Case, constant: tuple[int, ...]) -> None:
    check_case(case, constant=constant)
    check_case(case, constant=constant, symbolic=True)


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
def test_halves_accumulate_in_float32(reverse: int, exclusive: int) -> None:
    x = np.ones((4000, 2), np.float16)
    (result,) = run_operator(
        "CumSum", {"x": x, "axis": np.int64(0)}, reverse=reverse, exclusive=exclusive
    )
    counts = np.arange(4000) + 1 - exclusive
    expected = (counts[::-1] if reverse else counts).astype(np.float16)
    np.testing.assert_array_equal(result, np.stack([expected, expected], 1))


def test_an_empty_axis() -> None:
    (result,) = run_operator("CumSum", {"x": np.zeros((3, 0), np.int64), "axis": np.int64(1)})
    assert result.shape == (3, 0)
