"""The processes of a comparison: one for each contender, and one for the canary.

Guarantees: a process ends with the block that started it; Ctrl-C reaches only the parent.
Not here: what happens inside (worker).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tilewright.compiler.bench.peers import CANARY
from tilewright.compiler.bench.peers.opened import EXACT
from tilewright.compiler.feeds import InputSpec
from tilewright.compiler.processes import source_path, start_undisturbed
from tilewright.core.errors import InternalError, UserError

_PATIENCE_S = 5.0


class CannotRun(UserError):
    """A runtime does not execute a model."""


class Worker:
    """A process that talks in lines of JSON; ``hello`` is its first answer.

    Raises:
        UserError: it could not start, with what it said; ``CannotRun`` if only the model is why.
    """

    def __init__(self, name: str, model: Path | str, threads: int, precision: str = EXACT) -> None:
        self.name = name
        module = "tilewright.compiler.bench.worker"
        self._process = start_undisturbed(
            # -P: a file of the user's in the current folder must not shadow a module.
            [sys.executable, "-P", "-m", module, name, os.fspath(model), str(threads), precision],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": source_path()},
        )
        try:
            self.hello = self._receive()
        except BaseException:
            self.close()
            raise

    def ask(self, **request: object) -> dict[str, Any]:
        """Sends a request and returns the answer.

        Raises:
            UserError: the process failed, with what it said; ``CannotRun`` if the model is why.
        """
        if self._process.stdin is None:
            raise InternalError("the worker has no stdin")
        with suppress(BrokenPipeError):  # it has ended, and said why
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            code = self._process.wait()
            raise CannotRun(
                f"{self.name} died with exit code {code}", remedy="what it wrote before is above"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            kind = CannotRun if answer.get("cannot_run") else UserError
            raise kind(f"{self.name}: {answer['error']}", remedy=answer.get("remedy"))
        return answer

    def close(self) -> None:
        """Ends the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self._process.terminate()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:  # a runtime that hangs, or minds no signal
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Contender(Worker):
    """A runtime with a model."""

    def __init__(self, name: str, model: Path, threads: int, precision: str = EXACT) -> None:
        super().__init__(name, model, threads, precision)
        self.version = str(self.hello["version"])
        self.precision = str(self.hello["precision"])
        self.settings = str(self.hello["settings"])
        self.setup_s = float(self.hello["setup_s"])
        self.specs = [
            InputSpec(name=name, dtype=dtype, shape=tuple(shape))
            for name, dtype, shape in self.hello["inputs"]
        ]

    def check(self, feeds: Path, outputs: Path) -> None:
        """Runs once on the feeds of a file and writes the outputs to another."""
        self.ask(verb="check", feeds=os.fspath(feeds), outputs=os.fspath(outputs))

    def time_us(self, batch_ms: float) -> list[float]:
        """Microseconds of each run of a batch."""
        return [float(us) for us in self.ask(verb="time", milliseconds=batch_ms)["samples_us"]]


class Canary(Worker):
    """Measures what the contenders' processors can do at the moment."""

    def __init__(self, threads: int) -> None:
        super().__init__(CANARY, "-", threads)

    def sing(self) -> tuple[float, float | None]:
        """Float32 operations a second in multiply-adds on all threads, and the nanoseconds of a
        cache line from one processor to another and back; None with one thread.
        """
        found = self.ask()
        return found["flops"], found["round_trip_ns"]
