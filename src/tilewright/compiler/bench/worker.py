"""The inside of a process: ``worker CONTENDER MODEL THREADS PRECISION``, or of the canary.

Lines of JSON on stdin -> lines of JSON on stdout. A contender greets with version, precision,
settings, seconds of set-up and input specs; ``check`` runs once and writes the outputs; ``time``
runs a batch. The canary tells what the same processors reach in multiply-adds.
Guarantees: it uses only as many processors as threads were asked for; it ends with its stdin.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TextIO

from tilewright.codegen.cpu.canary import PeakCanary
from tilewright.compiler.bench.peers import CANARY, OPENERS
from tilewright.compiler.bench.peers.opened import Bound
from tilewright.compiler.feeds import load_npz, to_files
from tilewright.core.errors import InternalError, UserError
from tilewright.core.npz import save_npz


def serve_canary(threads: int, answers: TextIO) -> None:
    """Answers each request with what the processors can do, until stdin ends."""
    with closing(PeakCanary(threads)) as canary:
        _answer(answers)
        for _ in sys.stdin:
            _answer(answers, flops=canary.measure(), round_trip_ns=canary.round_trip_ns())


def serve(contender: str, model: Path, threads: int, precision: str, answers: TextIO) -> None:
    """Opens the model, then answers requests until stdin ends."""
    try:
        start = time.perf_counter()
        opened = OPENERS[contender](model, threads, precision)
        _answer(
            answers,
            version=opened.version,
            precision=opened.precision,
            settings=opened.settings,
            setup_s=time.perf_counter() - start,
            inputs=[(spec.name, spec.dtype, spec.shape) for spec in opened.inputs],
        )
        bound: Bound | None = None
        for line in sys.stdin:
            request = json.loads(line)
            if request["verb"] == "check":
                bound = opened.bind(load_npz(Path(request["feeds"])))
                bound.run()
                arrays, _ = to_files(bound.outputs())
                save_npz(Path(request["outputs"]), arrays)
                _answer(answers)
            elif bound is None:
                raise InternalError("a batch is timed only after a check")
            else:
                _answer(answers, samples_us=time_batch(bound.run, request["milliseconds"]))
    except UserError as error:
        _answer(answers, error=error.message, remedy=error.remedy)


def tell_of_failures(contender: str, answers: TextIO) -> None:
    """Makes whatever a runtime raises an answer: the parent shows it, without a traceback."""

    def tell(kind: type[BaseException], error: BaseException, trace: object) -> None:
        del trace
        said = next(iter(str(error).strip().splitlines()), "")[:500]
        remedy = (
            f"{contender} cannot open or run this model with these inputs: check both, "
            "or leave it out of --against"
        )
        _answer(answers, error=f"{kind.__name__}: {said}", remedy=remedy, cannot_run=True)

    sys.excepthook = tell


def time_batch(run: Callable[[], object], milliseconds: float) -> list[float]:
    """Runs once to warm up, then again and again for so long; returns each run's microseconds."""
    run()
    samples_us: list[float] = []
    end = time.perf_counter() + milliseconds / 1e3
    while not samples_us or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        samples_us.append((time.perf_counter() - start) * 1e6)
    return samples_us


def _answer(answers: TextIO, **fields: object) -> None:
    try:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()
    except BrokenPipeError:  # whoever asked has gone
        os._exit(1)


def _limit_processors(threads: int) -> None:
    """Leaves this process a processor a thread, on different cores first, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        return
    seen: dict[str, int] = {}

    def rank(processor: int) -> tuple[int, int]:
        table = f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
        core = Path(table).read_text() if Path(table).is_file() else str(processor)
        seen[core] = seen.get(core, 0) + 1
        return seen[core], processor

    ranked = sorted(rank(processor) for processor in sorted(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, [processor for _, processor in ranked[:threads]])


def main() -> None:
    """Runs the worker; stdout is kept for the answers, whatever a runtime prints goes to stderr."""
    contender, model, threads, precision = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    tell_of_failures(contender, answers)
    _limit_processors(int(threads))
    if contender == CANARY:
        serve_canary(int(threads), answers)
    else:
        serve(contender, Path(model), int(threads), precision, answers)


if __name__ == "__main__":
    main()
