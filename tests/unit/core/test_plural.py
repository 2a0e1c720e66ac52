"""Counts read as English."""

from __future__ import annotations

import pytest

from tilewright.core.plural import plural


@pytest.mark.parametrize(("count", "text"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes")])
def test_one_is_singular(count: int, text: str) -> None:
    assert plural(count, "node") == text
