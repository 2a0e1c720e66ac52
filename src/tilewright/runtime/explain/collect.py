"""Joins program, decisions, profile and roofs into one explanation.

Input -> Output: ``Subject`` (what is explained), sizes, a profile, floors -> ``Explanation``.
Guarantees: without a profile there are no times, without floors no limits; the parts that need
neither are always there.
Not here: floors (floors), sentences (advice), memory (memory).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.core.plural import plural
from tilewright.core.record import Decision
from tilewright.core.shape import Dim
from tilewright.hw.tables.boards import GRAPH_KERNEL_US
from tilewright.report.explanation import (
    DeviceEstimate,
    Explanation,
    HostReport,
    Intermediate,
    KernelReport,
)
from tilewright.report.profile import Profile
from tilewright.report.units import us_text
from tilewright.runtime.explain.advice import advise
from tilewright.runtime.explain.floors import PEAK, Floors
from tilewright.runtime.explain.kernels import Kernels, Subject
from tilewright.runtime.explain.memory import memory_report
from tilewright.runtime.explain.traffic import (
    CallTraffic,
    Flow,
    call_traffic,
    flows,
    spec_bytes,
)
from tilewright.runtime.explain.what_if import what_if
from tilewright.runtime.program import Program, Segment, all_steps

_MUCH = 1.05
_CLOCK_US = 0.2  # how far the time of a call may be off


def explain(
    subject: Subject,
    *,
    sizes: Mapping[str, int],
    assumed: Sequence[str] = (),
    profile: Profile | None = None,
    floors: Floors | None = None,
    devices: Sequence[DeviceEstimate] = (),
    warnings: Sequence[str] = (),
    precision: str | None = None,
) -> Explanation:
    """Collects an explanation.

    Args:
        sizes: of symbolic dims; a profile's own sizes come on top.
        assumed: names among them that nobody gave.
        profile: measured times.
        floors: the device's roofs.
        devices: what the same kernels cost elsewhere.
        warnings: what the caller wants said.
        precision: another one whose worth is to be told.
    """
    known = {**sizes, **(profile.sizes if profile is not None else {})}
    calls = call_traffic(subject.program, subject.constants)
    kernels = Kernels(subject, known, profile, floors).reports(calls)
    beaten: list[str] = []
    if floors is not None and (factors := _beaten(kernels)):
        raised = floors.raised({limit: factor for limit, (factor, _) in factors.items()})
        beaten = _raised_text(factors, floors, raised)
        floors = raised
        kernels = Kernels(subject, known, profile, floors).reports(calls)
    kernels = [_capped(kernel) for kernel in kernels]
    between = [_intermediate(flow, calls, subject, known, floors) for flow in _flows(subject)]
    host = _host(subject, profile)
    steps, kernels = advise(kernels, between, host, profile)
    floor_values = [k.floor_us for k in kernels if k.floor_us is not None]
    return Explanation(
        title=subject.title,
        is_built=subject.is_built,
        facts=_facts(subject, profile, floors),
        sizes=known,
        assumed=tuple(assumed),
        disturbance="" if profile is None else profile.disturbance,
        dims=tuple(unknown_sizes(subject.program, {})),
        roofs=None if floors is None else floors.model,
        end_to_end_us=None if profile is None else profile.end_to_end_us,
        kernels_us=None if profile is None else profile.kernels_us,
        host_us=None if profile is None else profile.host_us,
        runtime_us=None if profile is None else profile.runtime_us,
        runs=0 if profile is None else profile.runs,
        floor_us=sum(floor_values) if floor_values else None,
        kernels=tuple(kernels),
        host=tuple(host),
        intermediates=tuple(between),
        fused=tuple((k.nodes[-1], len(k.nodes)) for k in kernels if len(k.nodes) > 1),
        memory=memory_report(subject.program, subject.constants, known),
        placements=tuple(subject.placements),
        layouts=tuple(_layouts(subject.decisions)),
        interpreted=tuple(_interpreted(subject.info)),
        specialised=tuple(_specialised(subject)),
        approximated=tuple(_approximated(subject)),
        next_steps=tuple(steps),
        devices=tuple(devices),
        decisions=tuple(subject.decisions),
        what_if=None if precision is None else what_if(precision, kernels, calls, known, floors),
        warnings=(*warnings, *beaten, *_warnings(subject, floors, profile, len(kernels))),
    )


def footprint_bytes(subject: Subject, sizes: Mapping[str, int]) -> float:
    """Memory that a whole run touches, as far as sizes are known."""
    memory = memory_report(subject.program, subject.constants, sizes)
    ends: dict[int, int] = {}
    for buffer in memory.buffers:
        end = buffer.offset_bytes + buffer.num_bytes
        ends[buffer.segment] = max(ends.get(buffer.segment, 0), end)
    return memory.weight_bytes + sum(ends.values())


# --- the rest -------------------------------------------------------------------------------------


def _beaten(kernels: Sequence[KernelReport]) -> dict[str, tuple[float, int]]:
    """By limit: how many times its roof a kernel reached, and which kernel reached most."""
    result: dict[str, tuple[float, int]] = {}
    for kernel in kernels:
        if not kernel.best_us:
            continue
        for limit, floor_us in kernel.limits_us.items():
            factor = floor_us / kernel.best_us
            is_clear = floor_us > kernel.best_us + _CLOCK_US * kernel.calls
            if is_clear and factor > result.get(limit, (1.0, 0))[0]:
                result[limit] = (factor, kernel.index)
    return result


def _raised_text(
    factors: Mapping[str, tuple[float, int]], before: Floors, after: Floors
) -> list[str]:
    result = []
    for limit, (factor, index) in factors.items():
        unit = "G/s" if limit.endswith(PEAK) else "GB/s"
        low, high = before.rate_of(limit) / 1e9, after.rate_of(limit) / 1e9
        again = "" if factor < _MUCH else "; run `tilewright device --probe` on a quiet machine"
        result.append(
            f"kernel #{index} ran faster than the roofs allow: the {limit} roof was raised from "
            f"{low:.4g} to {high:.4g} {unit}{again}"
        )
    return result


def _capped(kernel: KernelReport) -> KernelReport:
    """A floor is never above a measurement; what is left here is within the clock's accuracy."""
    if not kernel.best_us or kernel.floor_us is None or kernel.floor_us <= kernel.best_us:
        return kernel
    limits = {name: min(us, kernel.best_us) for name, us in kernel.limits_us.items()}
    return replace(kernel, floor_us=kernel.best_us, limits_us=limits, headroom_us=0.0)


def _flows(subject: Subject) -> list[Flow]:
    return flows(subject.program, subject.constants)


def _intermediate(
    flow: Flow,
    calls: Sequence[CallTraffic],
    subject: Subject,
    sizes: Mapping[str, int],
    floors: Floors | None,
) -> Intermediate:
    num_bytes = spec_bytes(flow.value, sizes)
    producer, consumer = calls[flow.producer].call, calls[flow.consumer].call
    written = flow.is_only_reader and not flow.is_kept  # then the write is saved as well
    price = None
    if floors is not None and num_bytes:
        price = floors.move_us(num_bytes, written=written)
    return Intermediate(
        value=flow.value.name,
        producer=flow.producer,
        consumer=flow.consumer,
        num_bytes=num_bytes,
        reason=_refusal(producer.sources, consumer.sources, subject.decisions),
        price_us=price,
    )


def _refusal(
    producer: Sequence[str], consumer: Sequence[str], decisions: Sequence[Decision]
) -> str:
    """Why two kernels were not fused: the last such refusal that names them."""
    head = "+".join(producer) + " -> "
    for decision in reversed(decisions):
        if decision.stage != "fuse_vertical" or not decision.subject.startswith(head):
            continue
        asked = decision.subject[len(head) :]
        if decision.rejected and any(asked.endswith(name) for name in consumer):
            return decision.rejected[0][1]
    return "the producer is no single expression that could be computed in its consumer"


def _host(subject: Subject, profile: Profile | None) -> list[HostReport]:
    reasons = {node: reason for node, _, reason in _interpreted(subject.info)}
    times = list(profile.host) if profile is not None else []
    result: list[HostReport] = []
    steps = [step for step in all_steps(subject.program) if not isinstance(step, Segment)]
    for number, step in enumerate(steps):
        time = times[number] if number < len(times) else None
        node = getattr(step, "node", "")
        kind = type(step).__name__
        name = getattr(step, "op_type", "") or getattr(step, "function", "") or kind
        result.append(
            HostReport(
                kind=kind,
                name=name,
                node=node if isinstance(node, str) else "",
                reason=reasons.get(node, ""),
                calls=time.calls if time is not None else 1,
                time_us=None if time is None else time.microseconds,
                share=None if time is None else time.share,
            )
        )
    return result


def _interpreted(info: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    entries = info.get("summary", {}).get("interpreted", ())
    return [(str(node), str(op), str(reason)) for node, op, reason in entries]


def _layouts(decisions: Sequence[Decision]) -> list[tuple[str, str, str]]:
    """(value, layout, why not another) of every layout decision."""
    return [
        (d.subject, d.chosen, "; ".join(f"{option}: {why}" for option, why in d.rejected))
        for d in decisions
        if d.stage == "layout"
    ]


def _facts(subject: Subject, profile: Profile | None, floors: Floors | None) -> dict[str, Any]:
    info = dict(subject.info)
    if info.get("cpu") == info.get("target"):  # a GPU's
        info.pop("cpu", None)
    if not subject.is_built and floors is not None and floors.roofs.threads is None:
        return {"device": floors.roofs.device, "precision": info.get("precision")}
    names = "target cpu precision vector_bytes disabled integer_only tilewright llvm".split()
    facts = {name: info[name] for name in names if info.get(name)}
    facts["threads"] = profile.threads if profile is not None else info.get("threads", 1)
    return facts


def _specialised(subject: Subject) -> list[str]:
    """What was fixed while building."""
    info, result = subject.info, []
    if "vector_bytes" in info:
        result.append(f"code for {info['cpu']}, vectors of {info['vector_bytes']} bytes")
    for name, (low, high) in dict(info.get("ranges", {})).items():
        result.append(
            f"dim {name} is in {'' if low is None else low}..{'' if high is None else high}"
        )
    names: set[str] = set()
    for spec in subject.program.inputs:
        for dim in spec.shape or ():
            names |= dim.symbols
    if names:
        result.append(f"no size is fixed for {', '.join(sorted(names))}: one build serves all")
    elif subject.program.inputs:
        result.append("all input sizes are fixed by the model")
    return result


_ROUNDING = {
    "fold_batch_normalization": "folded into weights, which are rounded once more",
    "fold_scale": "folded into weights, which are rounded once more",
    "winograd": "convolutions by Winograd's algorithm, whose error is larger",
    "strassen": "matrix products by Strassen's algorithm, whose error is larger",
}


def _approximated(subject: Subject) -> list[str]:
    """Where results may differ from the model's own arithmetic."""
    result = []
    for stage, what in _ROUNDING.items():
        done = [d for d in subject.decisions if d.stage == stage and not d.rejected]
        if done:
            result.append(f"{stage}: {len(done)} {what}")
    summary = subject.info.get("summary", {})
    if summary.get("verification"):
        result.append(f"verification: {summary['verification']}")
    return result


def _unknown_roofs(info: Mapping[str, Any]) -> str:
    """What to do where an engine is of another machine."""
    if info.get("archs"):
        return "no roofs were taken: `--on BOARD`, for example --on H200, takes those of a GPU"
    return f"no roofs are known of {info.get('cpu')}: explain the engine where it runs"


def _warnings(
    subject: Subject, floors: Floors | None, profile: Profile | None, num_kernels: int
) -> list[str]:
    result = []
    if floors is None:
        result.append(_unknown_roofs(subject.info))
    elif floors.note:
        result.append(floors.note)
    if floors is not None and floors.roofs.threads is None and num_kernels:
        starts = f"{plural(num_kernels, 'kernel')} would add about"
        starts += f" {us_text(num_kernels * GRAPH_KERNEL_US)}"
        each = f"{GRAPH_KERNEL_US:.2f} us each in a CUDA graph, as measured on an H200"
        result.append(f"the floor has no time for starting kernels: {starts} ({each})")
    if profile is not None and profile.disturbance:
        result.append(f"{profile.disturbance}; kernels may be faster than they look")
    return result


def constant_sizes(arrays: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of arrays by name."""
    return {name: int(array.nbytes) for name, array in arrays.items()}


def unknown_sizes(program: Program, sizes: Mapping[str, int]) -> list[str]:
    """Symbolic dims of the inputs that have no size."""
    names: set[str] = set()
    for spec in program.inputs:
        for dim in spec.shape or ():
            names |= Dim.of(dim).symbols
    return sorted(names - sizes.keys())
