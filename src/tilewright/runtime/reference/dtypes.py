"""ONNX element types in NumPy, and the conversions between them.

TensorProto.DataType codes <-> NumPy dtypes; `cast` -> an array of another element type.
Guarantees: one rounding (to nearest even) even from float64 to narrow types; float8 saturation
and float8e8m0 rounding as in the Cast operator; integers keep their low bits when out of range.
Source: ONNX operator specification, Cast-28.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from tilewright.core import dtypes as core_dtypes

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

CODES: dict[int, np.dtype[Any]] = {dtype.code: dtype.numpy for dtype in core_dtypes.ALL} | {
    27: np.dtype(ml_dtypes.float6_e2m3fn),
    28: np.dtype(ml_dtypes.float6_e3m2fn),
}
_CODE_OF = {dtype: code for code, dtype in CODES.items()}

FLOAT8 = frozenset(CODES[code] for code in (17, 18, 19, 20))
E8M0 = CODES[24]
TINY_FLOAT = FLOAT8 | {CODES[23], CODES[27], CODES[28], E8M0}
TINY_INT = {
    CODES[21]: (4, False),
    CODES[22]: (4, True),
    CODES[25]: (2, False),
    CODES[26]: (2, True),
}
HALF = frozenset({CODES[10], CODES[16]})
RAISED = HALF | {CODES[1]}
FLOATS = RAISED | {CODES[11]}
INTEGER_RANGES: dict[np.dtype[Any], tuple[int, int]] = {
    CODES[2]: (0, 255),
    CODES[3]: (-128, 127),
    CODES[4]: (0, 65535),
    CODES[5]: (-32768, 32767),
    CODES[21]: (0, 15),
    CODES[22]: (-8, 7),
    CODES[25]: (0, 3),
    CODES[26]: (-2, 1),
}


def dtype_of(code: int) -> np.dtype[Any]:
    """The NumPy dtype of a TensorProto.DataType code; raises ValueError when there is none."""
    if code not in CODES:
        raise ValueError(f"{code} is not an element type")
    return CODES[code]


def code_of(dtype: np.dtype[Any]) -> int:
    """The TensorProto.DataType code of a dtype; raises ValueError when there is none."""
    if dtype.kind in "US":
        return 8
    if dtype not in _CODE_OF:
        raise ValueError(f"{dtype} has no ONNX element type")
    return _CODE_OF[dtype]


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether the dtype is one of ONNX's floating-point types (8-bit and smaller included)."""
    return dtype in FLOATS or dtype in TINY_FLOAT


def cast(
    array: Array, dtype: np.dtype[Any], *, saturate: bool = True, round_mode: str = "up"
) -> Array:
    """Convert as the ONNX Cast operator does.

    `saturate` matters for float8 targets only, `round_mode` ("up", "down", "nearest") for
    float8e8m0 only. Raises ValueError for text that is not a number.
    """
    if array.dtype == dtype and dtype != np.dtype(object):
        return array
    if dtype == np.dtype(object):
        return _to_text(array)
    if array.dtype.kind in "OUS":
        return _from_text(array, dtype, saturate, round_mode)
    if dtype == np.dtype(np.bool_):
        return np.asarray(_plain(array) != 0)
    if dtype in TINY_INT:
        return _to_tiny_int(_plain(array), dtype)
    if dtype == E8M0:
        return _to_e8m0(_plain(array), saturate, round_mode)
    if dtype in TINY_FLOAT or dtype == CODES[16]:
        return _to_narrow_float(_plain(array), dtype, saturate)
    return _plain(array).astype(dtype)


def _plain(array: Array) -> Array:
    """The same values in a dtype that NumPy itself defines."""
    if array.dtype in TINY_INT:
        return array.astype(np.int8)
    if array.dtype in TINY_FLOAT or array.dtype == CODES[16]:
        return array.astype(np.float32)
    return array


def _to_tiny_int(array: Array, dtype: np.dtype[Any]) -> Array:
    bits, signed = TINY_INT[dtype]
    whole = array.astype(np.int64) & ((1 << bits) - 1)
    if signed:
        whole = np.where(whole >= 1 << (bits - 1), whole - (1 << bits), whole)
    return whole.astype(np.int8 if signed else np.uint8).astype(dtype)


def _to_narrow_float(array: Array, dtype: np.dtype[Any], saturate: bool) -> Array:
    if array.dtype not in FLOATS:
        array = array.astype(np.float64)
    if dtype in FLOAT8 and saturate:
        limit = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
        array = np.where(np.isnan(array), array, np.clip(array, -limit, limit))
    return _round_to_odd(array).astype(dtype)


def _round_to_odd(array: Array) -> Array:
    """float64 -> float32 so that a second rounding to a narrower type acts as the only one."""
    if array.dtype != np.float64:
        return array.astype(np.float32)
    near = array.astype(np.float32)
    outward = np.abs(near.astype(np.float64)) > np.abs(array)
    inward = np.asarray(np.where(outward, np.nextafter(near, np.float32(0)), near), np.float32)
    inexact = (inward.astype(np.float64) != array) & ~np.isnan(array)
    return np.asarray((inward.view(np.uint32) | inexact.astype(np.uint32)).view(np.float32))


def _to_e8m0(array: Array, saturate: bool, round_mode: str) -> Array:
    """Powers of two 2**(code - 127), code 255 = NaN; the sign is ignored."""
    values = np.abs(array.astype(np.float64))
    mantissa, exponent = np.frexp(values)
    step = {"up": mantissa > 0.5, "down": np.zeros(values.shape, bool), "nearest": mantissa >= 0.75}
    if round_mode not in step:
        raise ValueError(f"round_mode={round_mode!r} is not one of up, down, nearest")
    code = exponent.astype(np.int64) - 1 + 127 + step[round_mode]
    code = np.where(values == 0, 0 if saturate else 255, code)
    in_range = np.clip(code, 0, 254) if saturate else np.where((code < 0) | (code > 254), 255, code)
    return np.where(np.isfinite(values), in_range, 255).astype(np.uint8).view(E8M0)


def _to_text(array: Array) -> Array:
    if array.dtype.kind in "OUS":
        return array.astype(object)
    plain = _plain(array)
    if plain.dtype == np.float64:
        single = plain.astype(np.float32)
        if np.array_equal(single, plain, equal_nan=True):
            plain = single  # a widened float32 prints as the float32 it stands for
    return plain.astype(np.str_).astype(object)


def _from_text(array: Array, dtype: np.dtype[Any], saturate: bool, round_mode: str) -> Array:
    texts = [item.decode() if isinstance(item, bytes) else str(item) for item in array.ravel()]
    if dtype.kind in "iu" and dtype not in TINY_INT:
        whole = [int(text) if _is_whole(text) else int(float(text)) for text in texts]
        return (
            np.array([value & (2**64 - 1) for value in whole], np.uint64)
            .astype(dtype)
            .reshape(array.shape)
        )
    if dtype.kind == "c":
        return np.array([complex(text) for text in texts], dtype).reshape(array.shape)
    numbers = np.array([float(text) for text in texts], np.float64).reshape(array.shape)
    return cast(numbers, dtype, saturate=saturate, round_mode=round_mode)


def _is_whole(text: str) -> bool:
    stripped = text.strip()
    return stripped.lstrip("+-").isdigit()


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype to compute in: `dtype` itself, or float32 for narrower floats."""
    return CODES[1] if dtype in HALF or dtype in TINY_FLOAT else dtype


def summed_in(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which to sum many values of `dtype`: float64 for float32, else itself."""
    return CODES[11] if dtype == CODES[1] else dtype


def mean_over(
    x: Array, axes: tuple[int, ...] | int | None, dtype: np.dtype[Any] | None = None
) -> Array:
    """The mean along axes, which are kept; NaN (without NumPy's warning) where there is nothing."""
    total = np.asarray(np.sum(x, axis=axes, keepdims=True, dtype=dtype))
    count = x.size // max(total.size, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(total / total.dtype.type(count))
