"""The verdict of a verification: the same in its report, as JSON and as exit code."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright as tw
from tilewright.cli.verify import _facts
from tilewright.compiler import verify
from tilewright.compiler.bisect import Fault, Region
from tilewright.compiler.compare import OutputError
from tilewright.compiler.verify import Verification
from tilewright.runtime.engine import Engine
from unit.compiler import models

BEYOND = OutputError(name="y", error=2e-5, tolerance=1e-5)
INNER = OutputError(name="sum", error=1e-7, tolerance=1e-5)
ROUNDING = Fault(
    cause="rounding",
    found=INNER,
    region=Region(value="sum", inputs=(), nodes=()),
    kernel=None,
)


@pytest.mark.parametrize("rounding", [None, ROUNDING])
def test_one_verdict_everywhere(rounding: Fault | None) -> None:
    found = Verification(outputs=(BEYOND,), rounding=rounding)
    accepted = rounding is not None
    facts = _facts(found, None)
    outputs: Any = facts["outputs"]
    assert found.passed is facts["passed"] is outputs[0]["passed"] is accepted
    assert ("WRONG" in str(found)) is not accepted
    assert ("rounding that this model amplifies (accepted)" in str(found)) is accepted
    assert (facts["rounding"] == {"value": "sum", "error": 1e-7}) is accepted


def test_tolerances_of_a_build_go_by_its_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[str] = []

    def keeps_float8(engine: Engine) -> bool:
        stages.extend(entry.stage for entry in engine.decisions)
        return False

    monkeypatch.setattr(verify, "_keeps_float8", keeps_float8)
    tw.compile(models.network(), cache=None)
    assert "tactic" in stages
