"""The kernels, schedules and fusions of representative graphs, as text that people read.

``pytest tests/golden --update-golden`` writes the files anew; look at the difference before you
keep it: it is what a change does to the code of networks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tilewright as tw
from golden.graphs import GRAPHS
from tilewright.core.record import Decision
from tilewright.runtime.program import KernelCall, Segment, all_steps

FOLDER = Path(__file__).parent / "expected"
# Not this machine: the files are the same everywhere.
PROCESSOR = "znver4"


def describe(name: str, scratch: Path) -> str:
    """Kernels in order with their schedules; then what was fused or not, and why."""
    engine = tw.compile(
        GRAPHS[name](), cpu=PROCESSOR, threads=1, verify=False, cache=None, dump_kernels=scratch
    )
    calls = [
        call
        for step in all_steps(engine.program)
        if isinstance(step, Segment)
        for call in step.calls
    ]
    tactics = (decision for decision in engine.decisions if decision.stage == "tactic")
    lines = [line for call in calls for line in _kernel(call, tactics, scratch)]
    lines += [line for decision in engine.decisions for line in _choice(decision)]
    return "\n".join(lines) + "\n"


def _kernel(call: KernelCall, tactics: Iterator[Decision], scratch: Path) -> Iterator[str]:
    yield f"=== {' + '.join(call.sources)}"
    yield from (scratch / f"{call.kernel}.txt").read_text().rstrip().splitlines()
    for stage, decision in zip(call.stages, tactics, strict=False):
        yield f"  {stage.symbol}: {decision.chosen}"
        yield from (f"    not {option}: {reason}" for option, reason in decision.rejected)
    yield ""


def _choice(decision: Decision) -> Iterator[str]:
    if decision.stage in ("tactic", "import", "verify"):
        return
    yield f"{decision.stage}: {decision.subject}: {decision.chosen}"
    yield from (f"    not {option}: {reason}" for option, reason in decision.rejected)


@pytest.mark.parametrize("name", GRAPHS)
def test_golden(name: str, tmp_path: Path, update_golden: bool) -> None:
    found = describe(name, tmp_path)
    path = FOLDER / f"{name}.txt"
    if update_golden:
        path.parent.mkdir(exist_ok=True)
        path.write_text(found)
    assert path.exists(), f"{path.name} is missing: run pytest tests/golden --update-golden"
    assert found == path.read_text()


def test_every_file_has_a_graph() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(GRAPHS)
