"""A fixed, short run of the fuzzers; ``python tests/fuzz/run.py --minutes 10`` runs long."""

from __future__ import annotations

import pytest

from fuzz.run import KINDS, fuzz

_CASES = {"models": 500, "engines": 500}
_SEED = 20_000


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_files_are_refused_or_harmless(kind: str) -> None:
    summary = fuzz(kind, _SEED, cases=_CASES[kind])
    assert summary.cases >= _CASES[kind]
    assert not summary.findings, summary.text
    refused = sum(count for name, count in summary.outcomes.items() if name != "success")
    assert refused > summary.cases // 3, f"hardly anything is hostile: {summary.text}"
