"""ONNX's conformance cases: how many pass, how many without interpretation, none wrong.

Prints the table that README and docs quote (``pytest -s``).
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from conformance.cases import Result, cases, run_part

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
# What was reached; a change may raise these numbers, never lower them.
LEAST_PASSED = {"node": 1870, "simple": 21, "pytorch-converted": 82, "pytorch-operator": 35}
LEAST_COMPILED = {"node": 1760, "simple": 7, "pytorch-converted": 82, "pytorch-operator": 35}
TABLE = Path(__file__).resolve().parents[2] / "docs" / "conformance.json"


def results(kind: str, folder: Path, target: str = "cpu") -> list[Result]:
    """What became of every case of a set, in several processes."""
    parts = max(1, len(os.sched_getaffinity(0)))
    jobs = [(kind, part, parts, str(folder), target) for part in range(parts)]
    with ProcessPoolExecutor(parts, mp_context=get_context("spawn")) as workers:
        return [result for found in workers.map(run_part, jobs) for result in found]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_cases(kind: str, tmp_path: Path) -> None:
    found = results(kind, tmp_path)
    counts = Counter(result.status for result in found)
    compiled = sum(result.compiled for result in found)
    row = {"cases": len(found), "compiled": compiled, **dict(sorted(counts.items()))}
    others = [result for result in found if result.status != "passed"]
    lines = [f"{kind}: {row}"]
    lines += [f"  {r.status}: {r.name}: {(r.detail or '?').splitlines()[0]}" for r in others]
    sys.stdout.write("\n" + "\n".join(lines) + "\n")
    assert len(found) == len(cases(kind))
    assert not [result for result in found if result.status == "wrong"]
    assert counts["passed"] >= LEAST_PASSED[kind]
    assert compiled >= LEAST_COMPILED[kind]
    stored = json.loads(TABLE.read_text())[kind]
    assert row == stored, f"{TABLE.name} is out of date: run scripts/update_conformance.py"
