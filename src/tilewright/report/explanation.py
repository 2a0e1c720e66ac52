"""An explanation: why an engine is as fast as it is, and what to do about it.

Input -> Output: the records of this module -> text, JSON values, one HTML file.
Guarantees: a number that is not known is None and never guessed; bytes and operations are
compulsory ones, so a floor is below every correct measurement.
Not here: collecting the records (runtime.explain), rendering (explanation_text, page).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tilewright.core.plural import plural
from tilewright.core.record import Decision, Placement
from tilewright.report.what_if import WhatIf

SCHEMA = "tilewright.explanation/1"
_CONTRACTIONS = frozenset(
    """Attention Conv ConvInteger ConvTranspose DeformConv Einsum GRU Gemm LSTM MatMul MatMulInteger
    QLinearConv QLinearMatMul RNN""".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoofLevel:
    """A memory level: its bandwidth, that of reads, and how much the levels nearer to the registers
    hold.
    """

    name: str
    bytes_per_s: float
    read_bytes_per_s: float
    nearer_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoofModel:
    """The roofs that floors were computed with.

    Attributes:
        device: what they are of.
        source: ``measured on ...``, or the documents.
        is_measured: whether they were measured on this machine.
        peaks_flops: operations a second by type.
        levels: memory levels, the nearest first.
    """

    device: str
    source: str
    is_measured: bool
    peaks_flops: Mapping[str, float]
    levels: tuple[RoofLevel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    """One kernel of an engine; times are of one run.

    Attributes:
        index: its number in the engine.
        code: key of its object code; kernels of the same code differ only in their buffers.
        name: operator of its result.
        nodes, operators: source nodes computed, and their operators.
        dtype: type that bounds its operations; ``types`` are those of its inputs and results.
        layout: how its results lie in memory.
        tactic, schedule: how each stage runs.
        refused: tactics that were not taken, with reasons.
        alternatives: tactics that were timed, with microseconds.
        num_bytes, flops: of one call; their formulas in the symbolic dims.
        weight_bytes: part of ``num_bytes`` that is constants.
        intensity: operations a byte.
        calls: in one run.
        time_us: measured; ``share`` of the run.
        floor_us: the least time, set by ``limit``; ``limits_us`` has every resource's.
        headroom_us: time that a perfect kernel would save in a run that nothing disturbs.
        advice: the next step, as a sentence.
        best_us: the least time in any run, with which the floor is compared.
    """

    index: int
    code: str
    name: str
    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    dtype: str
    types: str
    layout: str
    tactic: str
    schedule: str
    refused: tuple[tuple[str, str], ...]
    alternatives: tuple[tuple[str, float], ...]
    num_bytes: int | None
    flops: int | None
    bytes_formula: str
    flops_formula: str
    weight_bytes: int
    intensity: float | None
    calls: int
    time_us: float | None
    share: float | None
    floor_us: float | None
    limit: str
    limits_us: Mapping[str, float]
    headroom_us: float | None
    advice: str = ""
    best_us: float | None = None

    @property
    def anchor(self) -> str:
        """The node that most of its time goes to: its contraction, else that of its result."""
        pairs = list(zip(self.nodes, self.operators, strict=False))
        found = [node for node, operator in pairs if operator in _CONTRACTIONS]
        return (found or self.nodes or (self.name,))[-1]

    @property
    def roof_fraction(self) -> float | None:
        """How close it is to its roof; 1 is on it."""
        if not self.best_us or self.floor_us is None:
            return None
        return self.floor_us / self.best_us


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """A step between kernels."""

    kind: str
    name: str
    node: str
    reason: str
    calls: int
    time_us: float | None
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Intermediate:
    """A value that goes through memory between two kernels, and why they were not fused.

    Attributes:
        producer, consumer: numbers of the kernels.
        num_bytes: its size.
        price_us: bytes that fusion would save over the bandwidth of the level that holds it.
    """

    value: str
    producer: int
    consumer: int
    num_bytes: int | None
    reason: str
    price_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferLife:
    """A buffer of the arena: where it lies and from which kernel to which it lives."""

    name: str
    segment: int
    offset_bytes: int
    num_bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Memory of a run.

    Attributes:
        weight_bytes: constants.
        arena_bytes: of all segments at the given sizes; None where a size is not known.
        live_bytes_formula: the most bytes that live at once, as a formula of the symbolic dims.
        buffers: at the given sizes.
    """

    weight_bytes: int
    arena_bytes: int | None
    live_bytes_formula: str
    buffers: tuple[BufferLife, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """What to do about a bottleneck.

    Attributes:
        subject: the node, or ``runtime``.
        kernels: numbers of the kernels concerned.
        saves_us: what it would save in a run, at most.
        text: the sentence.
    """

    subject: str
    kernels: tuple[int, ...] = ()
    saves_us: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEstimate:
    """The least time of the same kernels on a device."""

    device: str
    floor_us: float
    limit: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Explanation:
    """Everything that is known of an engine, or of a model before it is built.

    Attributes:
        title: the model's name.
        is_built: False for an estimate: then there are no tactics and no times.
        facts: target, processor, threads, versions.
        sizes: of symbolic dims; ``assumed`` names those that nobody gave, ``dims`` those of inputs.
        roofs: None where nothing is known of the device.
        end_to_end_us, kernels_us, host_us, runtime_us: measured; None without a measurement.
        runs: how many runs were timed.
        floor_us: the sum of all floors.
        fused: (result, number of kernels) of each kernel that absorbed others.
        interpreted: (node, operator, reason).
        specialised: what the engine was fixed to.
        approximated: where results may differ from the model's arithmetic, by how much.
        warnings: what to know before trusting a number.
        what_if: what another precision would be worth, where that was asked.
        disturbance: what shows that the machine was busy while it was timed; empty on a quiet one.
    """

    title: str
    is_built: bool
    facts: Mapping[str, Any]
    sizes: Mapping[str, int]
    assumed: tuple[str, ...]
    roofs: RoofModel | None
    end_to_end_us: float | None
    kernels_us: float | None
    host_us: float | None
    runtime_us: float | None
    runs: int
    floor_us: float | None
    kernels: tuple[KernelReport, ...]
    host: tuple[HostReport, ...]
    intermediates: tuple[Intermediate, ...]
    fused: tuple[tuple[str, int], ...]
    memory: MemoryReport
    placements: tuple[Placement, ...]
    layouts: tuple[tuple[str, str, str], ...]
    interpreted: tuple[tuple[str, str, str], ...]
    specialised: tuple[str, ...]
    approximated: tuple[str, ...]
    next_steps: tuple[NextStep, ...]
    devices: tuple[DeviceEstimate, ...] = ()
    decisions: tuple[Decision, ...] = ()
    warnings: tuple[str, ...] = field(default=())
    dims: tuple[str, ...] = ()
    disturbance: str = ""
    what_if: WhatIf | None = None

    @property
    def input_sizes(self) -> dict[str, int]:
        """Sizes of the symbolic dims of inputs."""
        return {name: self.sizes[name] for name in self.dims if name in self.sizes}

    @property
    def best_us(self) -> float | None:
        """All kernels at their best, each in its least disturbed run; None if one was not timed."""
        times = [kernel.best_us for kernel in self.kernels if kernel.best_us is not None]
        return sum(times) if times and len(times) == len(self.kernels) else None

    @property
    def roof_fraction(self) -> float | None:
        """How close a whole run is to the sum of the floors."""
        if self.floor_us is None or not self.end_to_end_us:
            return None
        return self.floor_us / self.end_to_end_us

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Explanation of {self.title}: {plural(len(self.kernels), 'kernel')}>"

    def text(self, most: int = 15) -> str:
        """Lines for a terminal, with the ``most`` important kernels."""
        from tilewright.report.explanation_text import explanation_text

        return explanation_text(self, most)

    def json(self) -> dict[str, Any]:
        """JSON values (see docs/explain.md)."""
        return explanation_json(self)

    def html(self, path: str | Path) -> None:
        """Writes one self-contained page.

        Raises:
            CacheError: the file cannot be written.
        """
        from tilewright.report.page import page
        from tilewright.report.profile import write_text

        write_text(path, page(self))


def explanation_json(explanation: Explanation) -> dict[str, Any]:
    """An explanation as JSON values."""
    body = asdict(explanation)
    for kernel, record in zip(body["kernels"], explanation.kernels, strict=True):
        kernel["roof_fraction"] = record.roof_fraction
    derived = {"roof_fraction": explanation.roof_fraction, "best_us": explanation.best_us}
    return {"schema": SCHEMA, **body, **derived}
