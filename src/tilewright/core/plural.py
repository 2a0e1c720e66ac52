"""Counts and lists in messages.

Input -> Output: a count and a noun, or names -> text.
"""

from __future__ import annotations

from collections.abc import Iterable


def plural(count: int, noun: str) -> str:
    """Returns ``1 thread``, ``2 threads``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(names: Iterable[object]) -> str:
    """Returns ``a, b, c``; ``none`` for nothing."""
    return ", ".join(map(str, names)) or "none"
