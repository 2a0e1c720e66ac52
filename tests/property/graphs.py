"""Checks random models outside of pytest: ``python tests/property/graphs.py SEED [COUNT]``.

Prints a reproducer for each failure; exit status 1 when there is one.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_TESTS), str(_TESTS.parent / "src")]


def run(first: int, count: int) -> int:
    """Checks ``count`` seeds; returns how many fail."""
    from property.check import check, report
    from property.strategies import generate

    failed = 0
    for seed in range(first, first + count):
        sample = generate(seed)
        try:
            problems = check(sample)
        except Exception:  # noqa: BLE001 - whatever happened, the seed must be printed
            problems = []
            sys.stdout.write(f"{traceback.format_exc()}{sample.text}\n")
            failed += 1
        if problems:
            failed += 1
            sys.stdout.write(f"{report(sample, problems)}\n")
        sys.stdout.flush()
    return failed


if __name__ == "__main__":
    number = run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    sys.stdout.write(f"{number} failed\n")
    raise SystemExit(bool(number))
