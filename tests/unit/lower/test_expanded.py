"""ONNX's function bodies: graphs of simple operators that other operators stand for."""

import pytest

from unit.lower.harness import Case, check_case, expanded_cases


@pytest.mark.parametrize("case", expanded_cases(without=["RandomUniformLike"]))
def test_expanded(case: Case) -> None:
    check_case(case)
