"""The next step for each bottleneck, as a sentence with a number.

Input -> Output: kernels, values between them, host steps, a profile -> ``NextStep``s, the most
saving first, and the kernels with their sentences.
Guarantees: each number is a bound by the roofs or a measured time, never a promise of a tuner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.report.explanation import HostReport, Intermediate, KernelReport, NextStep
from tilewright.report.profile import Profile
from tilewright.report.units import us_text

NEAR_ROOF = 0.8
_FAR = 0.25  # of the roof: below it, something else takes the time
_SMALL_US = 3.0
_WORTH_US = 0.5
_RUNTIME_SHARE = 0.2
_UNVECTORISED = ("scalar", "sequential")


def advise(
    kernels: Sequence[KernelReport],
    between: Sequence[Intermediate],
    host: Sequence[HostReport],
    profile: Profile | None,
) -> tuple[list[NextStep], list[KernelReport]]:
    """Finds what would save time.

    Args:
        kernels: without sentences.
        between: values that go through memory.
        host: steps between kernels.
        profile: None without a measurement: then floors are compared instead of times.
    """
    dearest: dict[int, Intermediate] = {}
    for item in between:
        known = dearest.get(item.producer)
        if (item.price_us or 0) > (0 if known is None else known.price_us or 0):
            dearest[item.producer] = item
    findings = [_finding(kernel, dearest.get(kernel.index)) for kernel in kernels]
    steps = [_step(group) for group in _alike([found for found in findings if found is not None])]
    steps += _host_steps(host)
    if profile is not None and profile.runtime_us > _RUNTIME_SHARE * profile.end_to_end_us:
        steps.append(_runtime_step(profile))
    said = [
        kernel if found is None else replace(kernel, advice=_step([found]).text)
        for kernel, found in zip(kernels, findings, strict=True)
    ]
    worth = [step for step in steps if step.saves_us >= _WORTH_US]
    return sorted(worth, key=lambda step: -step.saves_us), said


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """What holds one kernel back.

    Attributes:
        cause: ends ``Kernel ... is``.
        remedy: what would save ``saves_us``; empty where nothing would.
        kind: equal for remedies that are alike.
    """

    kernel: KernelReport
    cause: str
    remedy: str
    kind: str
    saves_us: float


def _finding(kernel: KernelReport, costly: Intermediate | None) -> _Finding | None:
    if not kernel.limit or kernel.floor_us is None:
        return None
    near = kernel.roof_fraction is None or kernel.roof_fraction >= NEAR_ROOF
    if not near:
        saves = kernel.headroom_us or 0.0
        remedy = _remedy(kernel)
        return _Finding(
            kernel=kernel, cause=_verdict(kernel), remedy=remedy, kind=remedy, saves_us=saves
        )
    price = (costly.price_us or 0.0) if costly is not None else 0.0
    most = kernel.floor_us if kernel.best_us is None else kernel.best_us
    if costly is not None and price >= _WORTH_US:
        return _Finding(
            kernel=kernel,
            cause=_verdict(kernel),
            remedy=f"fusing it with its reader #{costly.consumer} (refused: {costly.reason})",
            kind=costly.reason,
            saves_us=min(price, most),
        )
    if kernel.time_us is None:
        return None
    return _Finding(kernel=kernel, cause=_verdict(kernel), remedy="", kind="", saves_us=0.0)


def _alike(findings: Sequence[_Finding]) -> list[list[_Finding]]:
    """Groups kernels of the same code with the same remedy."""
    groups: dict[tuple[str, str, str], list[_Finding]] = {}
    for number, found in enumerate(findings):
        key = (found.kernel.code or str(number), found.kernel.limit, found.kind)
        groups.setdefault(key, []).append(found)
    return list(groups.values())


def _step(group: Sequence[_Finding]) -> NextStep:
    group = sorted(group, key=lambda found: -found.saves_us)
    first, saves = group[0], sum(found.saves_us for found in group)
    indices = tuple(sorted(found.kernel.index for found in group))
    name = f"Kernel #{first.kernel.index} ({first.kernel.anchor}) is"
    if len(group) > 1:
        name = f"{len(group)} kernels like #{first.kernel.index} ({first.kernel.anchor}) are"
    times = [found.kernel.best_us for found in group if found.kernel.best_us is not None]
    of_time = f" of {us_text(sum(times))}" if times else ""
    end = f"{first.remedy} would save up to {us_text(saves)}{of_time}."
    if not first.remedy:
        end = "only less work helps: a narrower type, or fewer channels."
    return NextStep(
        subject=first.kernel.anchor,
        kernels=indices,
        saves_us=saves,
        text=f"{name} {first.cause}; {end}",
    )


def _runtime_step(profile: Profile) -> NextStep:
    return NextStep(
        subject="runtime",
        saves_us=profile.runtime_us,
        text=f"The runtime itself (checking inputs, allocating results) takes "
        f"{us_text(profile.runtime_us)} of {us_text(profile.end_to_end_us)}: "
        "larger batches share it.",
    )


def _cause(kernel: KernelReport) -> str:
    if kernel.roof_fraction is None:
        return _bound(kernel.limit)
    if _is_unvectorised(kernel):
        return f"scalar code ({kernel.roof_fraction:.0%} of {_bound(kernel.limit)} reached)"
    return f"{_bound(kernel.limit)} ({kernel.roof_fraction:.0%} reached)"


def _verdict(kernel: KernelReport) -> str:
    """What holds a kernel back; far from every roof no roof does, and only a distance is known."""
    fraction = kernel.roof_fraction
    if fraction is None or fraction >= _FAR or _is_unvectorised(kernel):
        return f"bound by {_cause(kernel)}"
    if not fraction:
        return "so small that no roof sets it a floor"
    return f"{1 / fraction:.3g} times over the floor that {_bound(kernel.limit)} sets"


def _remedy(kernel: KernelReport) -> str:
    if _is_unvectorised(kernel):
        reasons = [f"{tactic}: {why}" for tactic, why in kernel.refused if why]
        because = f" (refused: {'; '.join(reasons[-2:])})" if reasons else ""
        return f"a vector tactic{because}"
    if kernel.best_us is not None and kernel.best_us / max(1, kernel.calls) < _SMALL_US:
        return "fusing it into a neighbour, so that it need not be started,"
    if kernel.limit.endswith("peak"):
        better = f"a better schedule of {kernel.tactic.split(' + ')[0] or 'it'} for these sizes"
        return better + (
            " than tuning found" if kernel.alternatives else " (`--time-budget` tunes)"
        )
    return f"moving its {_amount(kernel.num_bytes)} once, in whole vectors,"


def _is_unvectorised(kernel: KernelReport) -> bool:
    return kernel.tactic.split(" + ")[0].split()[-1:] in ([name] for name in _UNVECTORISED)


def _host_steps(host: Sequence[HostReport]) -> list[NextStep]:
    return [
        NextStep(
            subject=step.node,
            saves_us=step.time_us,
            text=f"Node {step.node} ({step.name}) runs in NumPy because {step.reason}; a kernel "
            f"would save up to {us_text(step.time_us)}.",
        )
        for step in host
        if step.kind == "Interpret" and step.time_us is not None and step.time_us >= _WORTH_US
    ]


def _bound(limit: str) -> str:
    return f"{limit[:-5]} arithmetic" if limit.endswith(" peak") else f"{limit} bandwidth"


def _amount(num_bytes: int | None) -> str:
    if num_bytes is None:
        return "bytes"
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} bytes"
