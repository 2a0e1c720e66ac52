"""Times in one unit."""

from __future__ import annotations

import pytest

from tilewright.report.units import us_text


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0.0, "0.000 ms"),
        (0.042, "0.00004 ms"),
        (7.0, "0.007 ms"),
        (1234.5, "1.234 ms"),
        (123456.0, "123.5 ms"),
    ],
)
def test_times_are_milliseconds(microseconds: float, text: str) -> None:
    assert us_text(microseconds) == text
