"""Compares runtimes on one model: outputs first, then times in turns; speed claims rest on it.

Model, inputs, contenders -> ``Comparison`` with each one's times and the ratios.
Method: each contender has a process of its own (``bench_worker``) with the same processors and
number of threads; outputs are compared before anything is timed; then the contenders take turns at
short batches, so that a change of clock or load meets all of them; minimum and median are kept.
Not here: a canary that shows what the machine itself could do at the time (none yet).
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from tilewright.compiler.bench_worker import OPENERS
from tilewright.compiler.feeds import Arrays, InputSpec, load_npz, random_feeds
from tilewright.core.errors import BadOption, InternalError, UserError, VerificationFailed
from tilewright.core.plural import plural

OURS = "tilewright"
PEERS = tuple(name for name in OPENERS if name != OURS)
SETTLE_S = 0.02  # before a batch: the other contenders' threads stop spinning meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """How to compare: see ``bench``."""

    peers: tuple[str, ...] = ("onnxruntime",)
    threads: int = 1
    rounds: int = 15
    batch_ms: float = 60.0
    tolerance: float = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One contender's times for one run of the model, in microseconds, over ``num_runs`` runs."""

    contender: str
    version: str
    precision: str
    setup_s: float
    num_runs: int
    min_us: float
    median_us: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The timings, and for each peer how many times as long it takes as Tilewright.

    ``Timing.error`` is the greatest difference from the first peer, relative to its greatest value.
    """

    model: str
    threads: int
    device: str
    commit: str | None
    inputs: Mapping[str, str]
    timings: Sequence[Timing]
    ratio_min: Mapping[str, float]
    ratio_median: Mapping[str, float]


def bench(
    model: Path,
    options: BenchOptions,
    *,
    feeds: Arrays | None = None,
    sizes: Mapping[str, int] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Times Tilewright and its peers on one model.

    Args:
        model: an ONNX file.
        options: peers, threads; ``rounds`` batches each of about ``batch_ms``; the ``tolerance``
            within which outputs must agree, relative to the greatest value of each output.
        feeds: inputs by name; by default those of the ``.npz`` beside the model, else random ones.
        sizes: sizes of the symbolic dims for random inputs.
        progress: is told what goes on.

    Raises:
        BadOption: a peer is unknown or cannot run here, or a dim has no size.
        VerificationFailed: outputs differ by more than the tolerance; nothing is timed then.
        UserError: a contender cannot run the model.
    """
    if unknown := sorted(set(options.peers) - set(PEERS)):
        raise BadOption(f"unknown peers {unknown}", remedy=f"choose from {list(PEERS)}")
    if not options.peers:
        raise BadOption("there is nothing to compare with", remedy="name a peer in --against")
    if not model.is_file():
        raise UserError("no such file", file=os.fspath(model), remedy="check the path")
    if model.suffix == ".tw":
        raise UserError(
            "this is an engine; bench compares runtimes on an ONNX file",
            file=os.fspath(model),
            remedy="name the ONNX file that the engine was built from",
        )
    say = progress or (lambda _: None)
    threads = plural(options.threads, "thread")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tilewright-bench-")))
        workers = []
        for name in (*options.peers, OURS):
            say(f"{model.name}: preparing {name} with {threads}")
            workers.append(stack.enter_context(Worker(name, model, options.threads)))
        feeds = feeds or _default_feeds(model, workers[0].specs, sizes or {}, say)
        np.savez(folder / "feeds.npz", **feeds)  # type: ignore[arg-type]
        errors = _compare_outputs(workers, folder, options.tolerance)
        samples_us = _take_turns(workers, options, say)
    timings = [_timing(worker, samples_us[worker.name], errors[worker.name]) for worker in workers]
    ours = timings[-1]
    return Comparison(
        model=model.name,
        threads=options.threads,
        device=describe_device(),
        commit=describe_commit(),
        inputs={name: f"{array.dtype}{list(array.shape)}" for name, array in feeds.items()},
        timings=timings,
        ratio_min={t.contender: t.min_us / ours.min_us for t in timings[:-1]},
        ratio_median={t.contender: t.median_us / ours.median_us for t in timings[:-1]},
    )


class Worker:
    """A contender in a process of its own, which talks in lines of JSON (``bench_worker``)."""

    def __init__(self, name: str, model: Path, threads: int) -> None:
        self.name = name
        command = [sys.executable, "-m", "tilewright.compiler.bench_worker"]
        self._process = subprocess.Popen(
            [*command, name, os.fspath(model), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            hello = self._receive()
        except BaseException:
            self.close()
            raise
        self.version = str(hello["version"])
        self.precision = str(hello["precision"])
        self.setup_s = float(hello["setup_s"])
        self.specs = [
            InputSpec(name=name, dtype=dtype, shape=tuple(shape))
            for name, dtype, shape in hello["inputs"]
        ]

    def ask(self, **request: object) -> dict[str, Any]:
        """Sends a request and returns the answer.

        Raises:
            UserError: the contender failed, with what it said.
        """
        if self._process.stdin is None:
            raise InternalError("the worker has no stdin")
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            code = self._process.wait()
            raise UserError(
                f"{self.name} died with exit code {code}", remedy="what it wrote before is above"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise UserError(f"{self.name}: {answer['error']}", remedy=answer.get("remedy"))
        return answer

    def close(self) -> None:
        """Ends the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.terminate()
        self._process.wait()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def relative_error(actual: Arrays, wanted: Arrays) -> float:
    """Returns the greatest difference of any output, relative to that output's greatest magnitude.

    Infinite when names or shapes differ, or when one has a NaN or infinity that the other has not.
    """
    if actual.keys() != wanted.keys():
        return float("inf")
    worst = 0.0
    for name, want in wanted.items():
        got = actual[name]
        if got.shape != want.shape:
            return float("inf")
        if want.size == 0 or np.array_equal(got, want, equal_nan=want.dtype.kind in "fc"):
            continue
        got, want = got.astype(np.float64), want.astype(np.float64)
        finite = np.isfinite(want)
        same_specials = np.array_equal(got[~finite], want[~finite], equal_nan=True)
        if not same_specials or not np.isfinite(got[finite]).all():
            return float("inf")
        difference = float(np.abs(got[finite] - want[finite]).max(initial=0.0))
        scale = float(np.abs(want[finite]).max(initial=0.0))
        worst = max(worst, difference / scale if scale > 0 else float("inf"))
    return worst


def describe_device() -> str:
    """Returns the processor's name and how many this process may use."""
    name = platform.processor() or platform.machine()
    table = Path("/proc/cpuinfo")
    if table.is_file():
        names = [line for line in table.read_text().splitlines() if line.startswith("model name")]
        name = names[0].partition(":")[2].strip() if names else name
    return f"{name}, {os.cpu_count()} processors"


def describe_commit() -> str | None:
    """Returns the source tree's commit, with ``-dirty`` after changes; ``None`` outside one."""
    folder = Path(__file__).parent
    command = ["git", "-C", os.fspath(folder), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # there is no git
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def _default_feeds(
    model: Path,
    specs: Sequence[InputSpec],
    sizes: Mapping[str, int],
    progress: Callable[[str], None],
) -> Arrays:
    beside = model.with_suffix(".npz")
    if beside.is_file() and not sizes:
        progress(f"{model.name}: inputs from {beside.name}")
        return load_npz(beside)
    progress(f"{model.name}: random inputs")
    return random_feeds(specs, sizes)


def _compare_outputs(workers: Sequence[Worker], folder: Path, tolerance: float) -> dict[str, float]:
    """Runs every contender once; returns each one's error against the first."""
    outputs: dict[str, Arrays] = {}
    for worker in workers:
        path = folder / f"{worker.name}.npz"
        worker.ask(verb="check", feeds=os.fspath(folder / "feeds.npz"), outputs=os.fspath(path))
        outputs[worker.name] = load_npz(path)
    reference = outputs[workers[0].name]
    errors = {name: relative_error(arrays, reference) for name, arrays in outputs.items()}
    wrong = {name: error for name, error in errors.items() if not error <= tolerance}
    if wrong:
        listed = ", ".join(f"{name} by {error:.1e}" for name, error in wrong.items())
        raise VerificationFailed(
            f"outputs differ from {workers[0].name}'s: {listed}; {tolerance:.1e} is allowed",
            remedy="nothing was timed; if the difference is expected, raise --tolerance",
        )
    return errors


def _take_turns(
    workers: Sequence[Worker], options: BenchOptions, progress: Callable[[str], None]
) -> dict[str, list[float]]:
    samples_us: dict[str, list[float]] = {worker.name: [] for worker in workers}
    for number in range(options.rounds):
        progress(f"round {number + 1} of {options.rounds}")
        # Whoever goes first after a pause may meet a slower clock, so the order turns.
        for worker in workers if number % 2 == 0 else reversed(workers):
            time.sleep(SETTLE_S)
            answer = worker.ask(verb="time", milliseconds=options.batch_ms)
            samples_us[worker.name] += answer["samples_us"]
    return samples_us


def _timing(worker: Worker, samples_us: Sequence[float], error: float) -> Timing:
    return Timing(
        contender=worker.name,
        version=worker.version,
        precision=worker.precision,
        setup_s=worker.setup_s,
        num_runs=len(samples_us),
        min_us=min(samples_us),
        median_us=statistics.median(samples_us),
        error=error,
    )
