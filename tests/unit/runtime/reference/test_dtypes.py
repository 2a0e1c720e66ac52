"""Casts between ONNX element types."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.runtime.reference.dtypes import CODES, HALF, cast, code_of, dtype_of

f32 = partial(np.array, dtype=np.float32)
E4M3FN, E4M3FNUZ, E5M2, E5M2FNUZ = (CODES[code] for code in (17, 18, 19, 20))
NAN, INF = float("nan"), float("inf")


def values(array: np.ndarray[Any, Any]) -> list[float]:
    return [float(v) for v in array.astype(np.float64)]


def test_codes_and_dtypes_are_inverse() -> None:
    for code, dtype in CODES.items():
        assert code_of(dtype) == code
        assert dtype_of(code) == dtype
    with pytest.raises(ValueError, match="not an element type"):
        dtype_of(0)


@pytest.mark.parametrize(
    ("dtype", "largest"),
    [(E4M3FN, 448.0), (E4M3FNUZ, 240.0), (E5M2, 57344.0), (E5M2FNUZ, 57344.0)],
)
def test_float8_saturates(dtype: np.dtype[Any], largest: float) -> None:
    x = np.array([1e9, -1e9, INF, -INF, 1.0], np.float32)
    assert values(cast(x, dtype)) == [largest, -largest, largest, -largest, 1.0]
    assert np.isnan(cast(f32([NAN]), dtype).astype(np.float32))
    loose = values(cast(x, dtype, saturate=False))
    if dtype == E5M2:
        assert loose[:4] == [INF, -INF, INF, -INF]
    else:
        assert np.isnan(loose[:4]).all()


def test_negative_zero_has_no_code_in_fnuz() -> None:
    assert not np.signbit(cast(f32([-0.0]), E4M3FNUZ).astype(np.float32))
    assert np.signbit(cast(f32([-0.0]), E4M3FN).astype(np.float32))


@pytest.mark.parametrize("dtype", [CODES[16], CODES[10], E4M3FN, E5M2])
def test_float64_is_rounded_once(dtype: np.dtype[Any]) -> None:
    step = float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]
    tie = 1 + step / 2  # to even: down to 1
    just_above = tie + 2.0**-50  # a float32 stop on the way would fall back on the tie
    assert values(cast(np.array([tie, just_above]), dtype)) == [1.0, 1 + step]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("up", [1.0, 2.0, 2.0, 4.0]),
        ("down", [1.0, 1.0, 1.0, 2.0]),
        ("nearest", [1.0, 1.0, 2.0, 4.0]),
    ],
)
def test_float8_e8m0_rounding(mode: str, expected: list[float]) -> None:
    x = f32([1.0, 1.25, 1.5, 3.9])
    assert values(cast(x, CODES[24], round_mode=mode)) == expected
    with pytest.raises(ValueError, match="round_mode"):
        cast(x, CODES[24], round_mode="odd")


def test_integers_keep_their_low_bits() -> None:
    x = np.array([200, -129, 17], np.int16)
    assert cast(x, CODES[3]).tolist() == [-56, 127, 17]
    assert cast(x, CODES[22]).astype(np.int8).tolist() == [-8, -1, 1]
    assert cast(x, CODES[21]).astype(np.int8).tolist() == [8, 15, 1]
    assert cast(x, CODES[26]).astype(np.int8).tolist() == [0, -1, 1]


def test_booleans() -> None:
    assert cast(f32([0, -0.0, NAN, 0.1]), CODES[9]).tolist() == [False, False, True, True]
    assert cast(np.array([True, False]), CODES[1]).tolist() == [1.0, 0.0]


def test_text() -> None:
    text = np.array(["1e-5", "+INF", "-inf", "NaN", "3"], object)
    floats = cast(text, CODES[1])
    assert floats.dtype == np.float32
    assert floats[1] == INF
    assert floats[2] == -INF
    assert np.isnan(floats[3])
    assert cast(np.array(["100.5", "9007199254740993"], object), CODES[7]).tolist() == [
        100,
        9007199254740993,
    ]
    assert cast(np.array(["-3"], object), CODES[7]).tolist() == [-3]
    assert cast(f32([0.1, 2]), CODES[8]).tolist() == ["0.1", "2.0"]
    assert cast(f32([0.1]).astype(np.float64), CODES[8]).tolist() == ["0.1"]
    with pytest.raises(ValueError, match="Hello"):
        cast(np.array(["Hello"], object), CODES[1])


def test_half_types_are_named() -> None:
    assert {dtype.name for dtype in HALF} == {"float16", "bfloat16"}
