"""The report of each kernel: its nodes, work, time, limit and how its tactic was chosen.

Input -> Output: ``Subject`` (what is explained), sizes, a profile, floors -> ``KernelReport``s.
Not here: what to do about them (advice), everything that is not a kernel (collect).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.core.record import Decision, Placement
from tilewright.report.explanation import KernelReport
from tilewright.report.profile import Profile, StepTime
from tilewright.runtime.explain.floors import Floors
from tilewright.runtime.explain.traffic import CallTraffic, size_of, traffic_of
from tilewright.runtime.program import Program, TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is explained: an engine, or a model that was lowered but not built.

    Attributes:
        constants: bytes by name.
        info: of the build (target, options, versions, summary).
        is_built: False where kernels have no code.
    """

    title: str
    program: Program
    constants: Mapping[str, int]
    decisions: Sequence[Decision]
    placements: Sequence[Placement]
    info: Mapping[str, Any] = field(default_factory=dict)
    is_built: bool = True


class Kernels:
    """Makes the reports of all kernels of a subject."""

    def __init__(
        self,
        subject: Subject,
        sizes: Mapping[str, int],
        profile: Profile | None,
        floors: Floors | None,
    ) -> None:
        self._sizes, self._floors = sizes, floors
        self._profile = profile
        self._times: dict[int, StepTime] = (
            {} if profile is None else {step.index: step for step in profile.kernels}
        )
        self._tactics: dict[str, deque[Decision]] = {}
        for decision in subject.decisions:
            if decision.stage == "tactic":
                self._tactics.setdefault(decision.subject, deque()).append(decision)
        self._nodes: dict[str, list[Placement]] = {}
        for placement in subject.placements:
            for name in placement.computed_by:
                self._nodes.setdefault(name, []).append(placement)

    def reports(self, calls: Sequence[CallTraffic]) -> list[KernelReport]:
        return [self._report(item) for item in calls]

    def _report(self, item: CallTraffic) -> KernelReport:
        call, step = item.call, self._times.get(item.index)
        decisions = self._decisions(item)
        traffic = traffic_of(item, self._sizes)
        flops = size_of(call.flops, self._sizes)
        repeats = step.calls if step is not None else 1
        bound = None
        if self._floors is not None and traffic is not None and flops is not None:
            bound = self._floors.bound(flops, call.dtype, traffic)
        time_us = None if step is None else step.microseconds
        best_us = None if step is None else step.best_us
        floor_us = None if bound is None else bound.time_s * repeats * 1e6
        nodes = [p for name in call.sources for p in self._nodes.get(name, ())]
        nodes = list(dict.fromkeys(nodes))
        moved = None if traffic is None else int(traffic.total)
        return KernelReport(
            index=item.index,
            code=call.kernel,
            name=call.name,
            nodes=tuple(p.node for p in nodes) or call.sources,
            operators=tuple(p.op_type for p in nodes),
            dtype=call.dtype,
            types=_types(item.inputs, item.outputs),
            layout=", ".join(dict.fromkeys(layout_text(spec) for spec in item.outputs)),
            tactic=call.tactic,
            schedule="; ".join(decision.chosen for decision in decisions),
            refused=tuple(dict.fromkeys(pair for d in decisions for pair in d.rejected)),
            alternatives=tuple(
                (d.chosen, d.measured_us) for d in decisions if d.measured_us is not None
            ),
            num_bytes=moved,
            flops=flops,
            bytes_formula=str(call.bytes),
            flops_formula=str(call.flops),
            weight_bytes=int(size_of(item.weights, self._sizes) or 0),
            intensity=flops / moved if moved and flops is not None else None,
            calls=repeats,
            time_us=time_us,
            share=None if step is None else step.share,
            floor_us=floor_us,
            limit="" if bound is None else bound.limit,
            limits_us={}
            if bound is None
            else {name: value * repeats * 1e6 for name, value in bound.times_s.items()},
            headroom_us=None
            if best_us is None or floor_us is None
            else max(0.0, best_us - floor_us),
            best_us=best_us,
        )

    def _decisions(self, item: CallTraffic) -> list[Decision]:
        """The tactic decisions of a call: one for each stage, in the order of the engine."""
        waiting = self._tactics.get("+".join(item.call.sources))
        if waiting is None:
            return []
        return [waiting.popleft() for _ in item.call.stages if waiting]


def _types(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str:
    before = ", ".join(dict.fromkeys(spec.dtype.name for spec in inputs))
    after = ", ".join(dict.fromkeys(spec.dtype.name for spec in outputs))
    return f"{before} -> {after}"


def layout_text(spec: TensorSpec) -> str:
    """How a value lies in memory."""
    if spec.stored is None:
        return "row-major"
    borders = dict.fromkeys(f"{before}+{after}" for _, before, after in spec.stored.border)
    border = f" with a border of {', '.join(borders)}" if borders else ""
    return f"dim {spec.stored.dim} in blocks of {spec.stored.block}{border}"
