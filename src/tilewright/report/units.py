"""Numbers with their units, the same wherever they are printed.

Input -> Output: microseconds, bytes, operations -> text.
"""

from __future__ import annotations

_BYTE_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_FLOP_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def ms_number(microseconds: float) -> str:
    """Microseconds as a number of milliseconds, with three digits after the point; more below 1
    microsecond and fewer from 100 milliseconds on.
    """
    value = microseconds / 1e3
    if value >= 100:
        return f"{value:.1f}"
    return f"{value:.3f}" if value >= 0.001 or not value else f"{value:.5f}"


def us_text(microseconds: float) -> str:
    """Microseconds in milliseconds, whatever they are, so that times can be compared."""
    return f"{ms_number(microseconds)} ms"


def bytes_text(value: float | None) -> str:
    """Bytes in decimal units."""
    if value is None:
        return "?"
    for size, unit in _BYTE_UNITS:
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:.0f} B"


def flops_text(value: float | None) -> str:
    """Operations in decimal units."""
    if value is None:
        return "?"
    for size, unit in _FLOP_UNITS:
        if value >= size:
            return f"{value / size:.2f} {unit}F"
    return f"{value:.0f} F"
