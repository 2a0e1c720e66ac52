"""Fuzzes the loaders of models and engine files.

    python tests/fuzz/run.py --minutes 10 [--seed N] [--kind models|engines]

Only a ``UserError`` or success is allowed, each within 10 s and 1 GiB.  Prints what was found with
the seed that repeats it (``--seed N --cases 1``); exit status 1 when something was found.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

KINDS = ("models", "engines")
SECONDS = 10.0
_PREPARE_SECONDS = 180.0
_BATCH = 400
_WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A case that ended as none may."""

    kind: str
    seed: int
    detail: str


@dataclass(slots=True)
class Summary:
    """What a run of the fuzzer saw."""

    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    @property
    def text(self) -> str:
        """A few lines."""
        ends = ", ".join(f"{name} {count}" for name, count in self.outcomes.most_common())
        lines = [f"{self.cases} cases ({ends}), the slowest took {self.slowest:.1f} s"]
        lines += [f"{f.kind} --seed {f.seed}: {f.detail}" for f in self.findings]
        return "\n".join(lines)


def fuzz(
    kind: str, first: int, *, cases: int | None = None, seconds: float | None = None
) -> Summary:
    """Runs cases of consecutive seeds, until there are enough or the time is over."""
    summary = Summary()
    end = None if seconds is None else time.monotonic() + seconds
    seed = first
    with tempfile.TemporaryDirectory(prefix="tilewright-fuzz-") as name:
        while (cases is None or summary.cases < cases) and (end is None or time.monotonic() < end):
            count = _BATCH if cases is None else min(_BATCH, cases - summary.cases)
            seed = _batch(kind, seed, count, Path(name), summary, end)
    return summary


def _batch(
    kind: str, first: int, count: int, folder: Path, summary: Summary, end: float | None
) -> int:
    """One process; the seed at which the next one goes on."""
    environment = {**os.environ, "TILEWRIGHT_CACHE": str(folder / "cache")}
    process = subprocess.Popen(
        [sys.executable, str(_WORKER), kind, str(first), str(count), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    current: int | None = None
    try:
        for line in _lines(process):
            if line is None:
                where = "while preparing" if current is None else f"after {SECONDS:.0f} s"
                summary.findings.append(
                    Finding(kind=kind, seed=current or first, detail=f"hangs ({where})")
                )
                break
            if "outcome" not in line:
                current = int(line["seed"])
                continue
            _note(kind, line, summary)
            current = None
            if end is not None and time.monotonic() > end:
                return int(line["seed"]) + 1
            if int(line["seed"]) == first + count - 1:
                return first + count
    finally:
        process.kill()
        _, errors = process.communicate()
    done = current if current is not None else first
    if current is not None and process.returncode not in (0, -9):
        text = errors.decode("utf-8", "replace")[-1500:]
        detail = f"the process ended with {process.returncode}: {text}"
        summary.findings.append(Finding(kind=kind, seed=current, detail=detail))
    elif current is None and not summary.cases:
        raise RuntimeError(errors.decode("utf-8", "replace"))
    summary.cases += 1
    return done + 1


def _note(kind: str, line: dict[str, Any], summary: Summary) -> None:
    summary.cases += 1
    summary.outcomes[line["outcome"]] += 1
    summary.slowest = max(summary.slowest, line["seconds"])
    detail = ""
    if line["outcome"] == "fault":
        detail = line["detail"]
    elif line["seconds"] > SECONDS:
        detail = f"took {line['seconds']} s"
    elif line["growth"] > 1 << 30:
        detail = f"grew by {line['growth']} bytes"
    if detail:
        summary.findings.append(Finding(kind=kind, seed=line["seed"], detail=detail))


def _lines(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any] | None]:
    """The worker's lines; None when one does not come in time."""
    stream: IO[bytes] | None = process.stdout
    if stream is None:
        return
    os.set_blocking(stream.fileno(), False)
    rest, patience = b"", _PREPARE_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            if not selector.select(patience):
                yield None
                return
            data = stream.read()
            if not data:
                return
            *whole, rest = (rest + data).split(b"\n")
            for text in whole:
                yield json.loads(text)
            patience = SECONDS + 5


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--cases", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS)
    given = parser.parse_args()
    if given.minutes is None and given.cases is None:
        parser.error("give --minutes or --cases")
    kinds = [given.kind] if given.kind else list(KINDS)
    seconds = None if given.minutes is None else given.minutes * 60 / len(kinds)
    failed = False
    for kind in kinds:
        summary = fuzz(kind, given.seed, cases=given.cases, seconds=seconds)
        sys.stdout.write(f"{kind}: {summary.text}\n")
        failed = failed or bool(summary.findings)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
