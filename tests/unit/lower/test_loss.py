"""Losses: ONNX's cases, labels that are no class."""

import numpy as np
import pytest

from tilewright.core.errors import OutOfRange
from unit.lower.harness import Case, check_case, node_cases, run_operator

CASES = node_cases("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("symbolic", [False, True])
def test_case(case: Case, symbolic: bool) -> None:
    check_case(case, symbolic=symbolic)


@pytest.mark.parametrize("label", [-1, 3])
def test_labels_outside_of_the_classes_raise(label: int) -> None:
    feeds = {"x": np.zeros((2, 3), np.float32), "t": np.array([0, label])}
    with pytest.raises(OutOfRange):
        run_operator("NegativeLogLikelihoodLoss", feeds)
    (result,) = run_operator("NegativeLogLikelihoodLoss", feeds, ignore_index=label)
    assert result == 0


def test_scores_far_apart_do_not_overflow() -> None:
    scores = np.array([[1e4, 0], [0, 1e4]], np.float16)
    loss, logits = run_operator(
        "SoftmaxCrossEntropyLoss", {"x": scores, "t": np.array([0, 0])}, ("loss", "logits")
    )
    assert loss == 5000
    assert loss.dtype == np.float16
    np.testing.assert_array_equal(logits, [[0, -1e4], [-1e4, 0]])
