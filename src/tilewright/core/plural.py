"""Counts in messages.

Input -> Output: a count and a noun -> text.
"""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """Returns ``1 thread``, ``2 threads``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
