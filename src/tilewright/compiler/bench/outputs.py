"""Whether contenders compute the same, before any of them is timed."""

from __future__ import annotations

import numpy as np

from tilewright.compiler.feeds import Arrays
from tilewright.core.errors import VerificationFailed


def errors_of(
    outputs: dict[str, Arrays], tolerance: float, *, must: str, hint: str | None = None
) -> tuple[dict[str, float], dict[str, str]]:
    """Returns each contender's greatest difference from the first, and what is wrong with some.

    Args:
        outputs: arrays by name, by contender.
        tolerance: relative to the greatest magnitude of each output.
        must: the contender that must not differ by more; others are left out then.
        hint: what else may be why, with a remedy.

    Raises:
        VerificationFailed: it differs by more.
    """
    first = next(iter(outputs))
    errors = {name: relative_error(arrays, outputs[first]) for name, arrays in outputs.items()}
    wrong = {name: error for name, error in errors.items() if not error <= tolerance}
    if must in wrong:
        listed = ", ".join(f"{name} by {error:.1e}" for name, error in wrong.items())
        more = f"; {hint}" if hint else ""
        raise VerificationFailed(
            f"outputs differ from {first}'s: {listed}; {tolerance:.1e} is allowed",
            remedy=f"nothing was timed; if the difference is expected, raise --tolerance{more}",
        )
    return errors, {
        name: f"{name}: its outputs differ from {first}'s by {error:.1e}; "
        f"{tolerance:.1e} is allowed (--tolerance)" + (f"; {hint}" if hint else "")
        for name, error in wrong.items()
    }


def relative_error(actual: Arrays, wanted: Arrays) -> float:
    """Returns the greatest difference of any output, relative to that output's greatest magnitude.

    Infinite when names or shapes differ, or when one has a NaN or infinity that the other has not.
    """
    if actual.keys() != wanted.keys():
        return float("inf")
    worst = 0.0
    for name, want in wanted.items():
        got = actual[name]
        if got.shape != want.shape:
            return float("inf")
        if want.size == 0 or np.array_equal(got, want, equal_nan=want.dtype.kind in "fc"):
            continue
        got, want = got.astype(np.float64), want.astype(np.float64)
        finite = np.isfinite(want)
        same_specials = np.array_equal(got[~finite], want[~finite], equal_nan=True)
        if not same_specials or not np.isfinite(got[finite]).all():
            return float("inf")
        difference = float(np.abs(got[finite] - want[finite]).max(initial=0.0))
        scale = float(np.abs(want[finite]).max(initial=0.0))
        worst = max(worst, difference / scale if scale > 0 else float("inf"))
    return worst
