"""Conversions: ONNX's cases, rounding to powers of two, what is refused."""

import ml_dtypes
import numpy as np
import pytest

from tilewright.core.dtypes import BFLOAT16, FLOAT8_E8M0, INT8, STRING
from tilewright.lower.context import Unlowerable, View
from unit.lower.harness import (
    Case,
    check_case,
    lower_operator,
    node_cases,
    run_operator,
)

CASES = node_cases("Cast", "CastLike", "BitCast")


@pytest.mark.parametrize("case", CASES)
def test_case(case: Case) -> None:
    check_case(case)


def test_casting_to_the_same_type_is_a_view() -> None:
    lowering = lower_operator("Cast", {"x": np.ones(3, np.int8)}, to=INT8.code)
    assert [type(item) for item in lowering.items] == [View]


def test_strings_are_refused() -> None:
    with pytest.raises(Unlowerable, match="string"):
        run_operator("Cast", {"x": np.ones(3, np.int8)}, to=STRING.code)


def test_float64_rounds_once_to_bfloat16() -> None:
    (result,) = run_operator("Cast", {"x": np.array(1 + 2.0**-8 + 2.0**-40)}, to=BFLOAT16.code)
    assert result.astype(np.float32) == np.float32(1 + 2.0**-7)


@pytest.mark.parametrize(
    ("mode", "saturate", "expected"),
    [
        ("up", 1, [2.0, 1.0, 2.0**127, 2.0**-127, 2.0**-127, 2.0**-126, np.nan]),
        ("down", 1, [1.0, 1.0, 2.0**127, 2.0**-127, 2.0**-127, 2.0**-127, np.nan]),
        ("nearest", 1, [2.0, 1.0, 2.0**127, 2.0**-127, 2.0**-127, 2.0**-127, np.nan]),
        ("nearest", 0, [2.0, 1.0, np.nan, np.nan, np.nan, 2.0**-127, np.nan]),
    ],
)
def test_powers_of_two(mode: str, saturate: int, expected: list[float]) -> None:
    values = [1.5, 1.0, np.inf, 0.0, 2.0**-140, 1.25 * 2.0**-127, np.nan]
    (result,) = run_operator(
        "Cast",
        {"x": np.array(values, np.float32)},
        to=FLOAT8_E8M0.code,
        round_mode=mode,
        saturate=saturate,
    )
    np.testing.assert_array_equal(result.astype(np.float64), expected)


def test_powers_of_two_agree_with_the_reference() -> None:
    from tilewright.runtime.reference.dtypes import cast

    rng = np.random.default_rng(2)
    values = np.ldexp(rng.uniform(0.5, 1, 4000), rng.integers(-148, 128, 4000)).astype(np.float32)
    for mode in ("up", "down", "nearest"):
        for saturate in (False, True):
            (result,) = run_operator(
                "Cast", {"x": values}, to=FLOAT8_E8M0.code, round_mode=mode, saturate=int(saturate)
            )
            target = np.dtype(ml_dtypes.float8_e8m0fnu)
            expected = cast(values, target, saturate=saturate, round_mode=mode)
            np.testing.assert_array_equal(result.view(np.uint8), expected.view(np.uint8))
