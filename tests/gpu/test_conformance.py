"""ONNX's conformance cases on a GPU: none is wrong."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from conformance.test_onnx_cases import KINDS, results
from gpu.launch import arch

pytestmark = pytest.mark.gpu


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_cases(kind: str, tmp_path: Path) -> None:
    found = results(kind, tmp_path, arch())
    counts = Counter(result.status for result in found)
    compiled = sum(result.compiled for result in found)
    others = [result for result in found if result.status not in ("passed", "random")]
    lines = [f"{kind} on {arch()}: {dict(sorted(counts.items()))}, {compiled} without the host"]
    lines += [f"  {r.status}: {r.name}: {(r.detail or '?').splitlines()[0]}" for r in others]
    sys.stdout.write("\n" + "\n".join(lines) + "\n")
    assert counts["wrong"] == 0
