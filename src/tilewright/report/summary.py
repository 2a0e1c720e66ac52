"""What was built, as lines of text.

Input -> Output: an engine's facts -> (label, text) pairs in the order in which a person reads.
Not here: gathering the facts (runtime.engine), printing (cli).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.core.plural import plural
from tilewright.report.units import us_text


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSummary:
    """The facts of one build.

    Attributes:
        file: the engine file, with its ``num_bytes``.
        inputs, outputs: name, dtype and shape of each as text.
        cpu, threads: what it was compiled for.
        kernels_before_fusion, kernels: how many.
        arena_bytes: of one run, at ``arena_sizes``; None where it was not run.
        max_error: largest relative error against the reference; None where it was not verified.
        verification: the same in words.
        interpreted: (node, operator, reason) of nodes without a kernel.
        tuning: rounds of the search, schedules timed, and those that other programs disturbed;
            microseconds that a run gained, of those that its kernels took; empty where nothing was
            timed.
        seconds: of each stage, and ``total_seconds``.
        notes: on what the build could not do besides, such as to fill the cache.
    """

    file: Path
    num_bytes: int
    model: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    target: str
    cpu: str
    threads: int
    precision: str
    ranges: Mapping[str, Sequence[int | None]]
    kernels_before_fusion: int
    kernels: int
    arena_bytes: int | None
    arena_sizes: Mapping[str, int]
    max_error: float | None
    verification: str
    interpreted: Sequence[Sequence[str]]
    num_decisions: int
    tuning: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    total_seconds: float = 0.0
    notes: Sequence[str] = ()

    @staticmethod
    def of(
        file: Path,
        info: Mapping[str, Any],
        summary: Mapping[str, Any],
        inputs: Sequence[str],
        outputs: Sequence[str],
        num_decisions: int,
    ) -> BuildSummary:
        """Takes the facts from an engine's ``info`` and ``summary``."""
        return BuildSummary(
            file=file,
            num_bytes=file.stat().st_size,
            model=info["model"],
            inputs=inputs,
            outputs=outputs,
            target=info["target"],
            cpu=info["cpu"],
            threads=info["threads"],
            precision=info["precision"],
            ranges=info["ranges"],
            kernels_before_fusion=summary["kernels_before_fusion"],
            kernels=summary["kernels"],
            arena_bytes=summary.get("arena_bytes"),
            arena_sizes=summary.get("arena_sizes", {}),
            max_error=summary.get("max_error"),
            verification=summary["verification"],
            interpreted=summary["interpreted"],
            num_decisions=num_decisions,
            tuning=summary.get("tuning", {}),
            seconds=summary.get("seconds", {}),
            total_seconds=summary.get("total_seconds", 0.0),
            notes=summary.get("notes", ()),
        )

    def lines(self) -> list[tuple[str, str]]:
        """Label and text of each line."""
        device = " ".join(dict.fromkeys((self.target, self.cpu)))  # of a GPU both are the same
        target = f"{device}, {plural(self.threads, 'thread')}, {self.precision}"
        kernels = f"{self.kernels} after fusion, {self.kernels_before_fusion} before"
        return [
            ("engine", f"{self.file} ({readable_bytes(self.num_bytes)})"),
            ("model", self.model),
            *[("input", text) for text in self.inputs],
            *[("output", text) for text in self.outputs],
            *[("range", f"{name}: {_range(bounds)}") for name, bounds in self.ranges.items()],
            ("target", target),
            ("kernels", kernels),
            ("arena", self._arena()),
            ("error", self.verification),
            *self._interpreted(),
            *self._tuning(),
            *[("note", text) for text in self.notes],
            ("seconds", self._seconds()),
        ]

    def _arena(self) -> str:
        if self.arena_bytes is None:
            return "known when it runs"
        sizes = ", ".join(f"{name} = {size}" for name, size in self.arena_sizes.items())
        return readable_bytes(self.arena_bytes) + (f" at {sizes}" if sizes else "")

    def _interpreted(self) -> list[tuple[str, str]]:
        if not self.interpreted:
            return [("interpreted", "nothing: every node is compiled")]
        return [
            ("interpreted", f"{node} ({operator}): {reason}")
            for node, operator, reason in self.interpreted
        ]

    def _tuning(self) -> list[tuple[str, str]]:
        if not self.tuning:
            return []
        timed = plural(int(self.tuning["timed"]), "timing")
        text = f"{timed} in {plural(int(self.tuning['rounds']), 'round')}"
        gained_us, formula_us = self.tuning["gained_us"], self.tuning["formula_us"]
        if formula_us:
            text += f"; kernels gained {us_text(gained_us)} of {us_text(formula_us)}"
        if disturbed := int(self.tuning["disturbed"]):
            text += f"; {plural(disturbed, 'schedule')} given up, as the machine was busy"
        return [("tuning", text)]

    def _seconds(self) -> str:
        parts = [f"{name} {value:.2f}" for name, value in self.seconds.items() if value >= 0.005]
        return f"{self.total_seconds:.2f}" + (f" ({', '.join(parts)})" if parts else "")


def _range(bounds: Sequence[int | None]) -> str:
    low, high = bounds
    if low == high and low is not None:
        return f"{low}, checked in each run; it fixes no size in the kernels"
    return f"{'' if low is None else low}..{'' if high is None else high}"


def readable_bytes(num_bytes: int) -> str:
    """A size in the largest fitting unit."""
    if num_bytes < 1024:
        return f"{num_bytes} bytes"
    amount = float(num_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        amount /= 1024
        if amount < 1024:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1024:.1f} TiB"
