"""How far a value is from its reference, and how far it may be.

Input -> Output: an array and what it should be -> ``OutputError``.
Tolerance: largest difference relative to the largest reference value; integers, bools and strings
must be equal; NaN and infinities must be in the same places.
Not here: which values are compared (compiler.verify, compiler.bisect).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.core.dtypes import DType, Kind

# Unit roundoff of each float type times what long sums and deep networks add up to.
TOLERANCES = {
    "float64": 1e-12,
    "float32": 1e-5,
    "float16": 2e-2,
    "bfloat16": 6e-2,
    "complex64": 1e-5,
    "complex128": 1e-12,
}
_SMALL_FLOAT_TOLERANCE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputError:
    """One output's largest difference, relative to its largest reference value."""

    name: str
    error: float
    tolerance: float
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance


def compare_output(name: str, dtype: DType, got: Any, wide: Any, narrow: Any) -> OutputError:
    """The better of the errors against the two references."""
    tolerance = tolerance_of(dtype)
    errors = [relative_error(got, want) for want in (wide, narrow)]
    best = min(errors, key=lambda pair: pair[0])
    return OutputError(name=name, error=best[0], tolerance=tolerance, detail=best[1])


def compare_nearest(name: str, dtype: DType, got: Any, wants: Sequence[Any]) -> OutputError:
    """The error of an array of which each element may equal its counterpart in any of ``wants``."""
    arrays = [np.asarray(want) for want in wants]
    array = np.asarray(got)
    nearest = arrays[0]
    if all(want.shape == array.shape and want.dtype.kind in "biuf" for want in arrays):
        for want in arrays[1:]:
            with np.errstate(invalid="ignore"):
                closer = _distance(array, want) < _distance(array, nearest)
            nearest = np.where(closer, want, nearest)
    return compare_output(name, dtype, got, nearest, nearest)


def _distance(a: Any, b: Any) -> Any:
    return np.abs(a.astype(np.float64) - b.astype(np.float64))


def tolerance_of(dtype: DType) -> float:
    """The tolerance of an output type; 0 for what must be exact."""
    if dtype.kind not in (Kind.FLOAT, Kind.COMPLEX):
        return 0.0
    return TOLERANCES.get(dtype.name, _SMALL_FLOAT_TOLERANCE)


def relative_error(got: Any, want: Any) -> tuple[float, str]:
    """Largest absolute difference over the largest finite reference value; infinite if not
    comparable.
    """
    if got is None or want is None:
        return (0.0, "") if got is want else (math.inf, "one is empty")
    if isinstance(got, list) or isinstance(want, list):
        if len(got) != len(want):
            return math.inf, f"{len(got)} elements, expected {len(want)}"
        pairs = [relative_error(a, b) for a, b in zip(got, want, strict=True)]
        return max(pairs, default=(0.0, ""))
    a, b = np.asarray(got), np.asarray(want)
    if a.shape != b.shape:
        return math.inf, f"shape {list(a.shape)}, expected {list(b.shape)}"
    if a.dtype == object or b.dtype.kind in "OUS" or not _is_number(b):
        same = bool(np.array_equal(a.astype(str), b.astype(str)))
        return (0.0, "") if same else (math.inf, "values differ")
    if not a.size:
        return 0.0, ""
    return _numeric_error(a, b)


def _is_number(array: Any) -> bool:
    return array.dtype.kind in "biufcV"


def _numeric_error(a: Any, b: Any) -> tuple[float, str]:
    if b.dtype.kind in "biu":
        wrong = int(np.count_nonzero(a != b))
        return (0.0, "") if not wrong else (math.inf, f"{wrong} of {a.size} values differ")
    kind = np.complex128 if b.dtype.kind == "c" else np.float64
    x, y = a.astype(kind), b.astype(kind)
    special = ~np.isfinite(y) | ~np.isfinite(x)
    with np.errstate(invalid="ignore", over="ignore"):
        overflow = np.isfinite(y) & (np.abs(y) > _largest(a.dtype))
        same = (x == y) | (np.isnan(x) & np.isnan(y)) | (overflow & (x == np.inf * np.sign(y)))
    if special.any() and not bool(same[special].all()):
        return math.inf, "NaN or infinity in other places"
    x, y = np.where(special, 0, x), np.where(special, 0, y)
    scale = float(np.abs(y).max())
    difference = float(np.abs(x - y).max())
    return difference / max(scale, 1e-30) if difference else 0.0, ""


def _largest(dtype: Any) -> float:
    return float(np.finfo(dtype).max) if dtype.kind == "f" else math.inf
