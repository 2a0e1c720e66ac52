"""Rotary embedding: ONNX's cases, positions beyond the cache."""

import numpy as np
import pytest

from tilewright.core.errors import OutOfRange, UserError
from unit.lower.harness import Case, check_case, node_cases, run_operator

CASES = node_cases("RotaryEmbedding")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("symbolic", [False, True])
def test_case(case: Case, symbolic: bool) -> None:
    check_case(case, symbolic=symbolic)


@pytest.mark.parametrize("position", [-1, 8])
def test_positions_outside_of_the_cache_raise(position: int) -> None:
    cache = np.zeros((8, 2), np.float32)
    feeds = {
        "x": np.zeros((1, 1, 1, 4), np.float32),
        "cos": cache,
        "sin": cache,
        "p": np.array([[position]]),
    }
    with pytest.raises(OutOfRange):
        run_operator("RotaryEmbedding", feeds)


def test_a_3d_input_needs_its_number_of_heads() -> None:
    cache = np.zeros((1, 2, 2), np.float32)
    feeds = {"x": np.zeros((1, 2, 8), np.float32), "cos": cache, "sin": cache}
    with pytest.raises(UserError, match="num_heads"):
        run_operator("RotaryEmbedding", feeds)
