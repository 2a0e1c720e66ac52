"""The memory of a run: what lives when, where it lies, and a formula of the most at once.

Input -> Output: a program and sizes -> ``MemoryReport``.
Guarantees: offsets are those of the runtime's own plan; the formula is, for each segment (each has
an arena), the maximum over kernels of the bytes that live then, which no plan can beat.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.core.shape import Dim, product
from tilewright.report.explanation import BufferLife, MemoryReport
from tilewright.runtime.explain.traffic import root_of
from tilewright.runtime.program import Program, Segment, all_steps
from tilewright.runtime.segment import SegmentPlan
from tilewright.runtime.segment_layout import SegmentLayout, segment_symbols

_MAX_TERMS = 6


def memory_report(
    program: Program, constants: Mapping[str, int], sizes: Mapping[str, int]
) -> MemoryReport:
    """Plans every segment at the given sizes.

    Args:
        program: of an engine.
        constants: bytes by name.
        sizes: of symbolic dims; segments with further ones are left out of the picture.
    """
    buffers: list[BufferLife] = []
    arena: int | None = 0
    live: list[list[Dim]] = []
    first = 0
    segments = [step for step in all_steps(program) if isinstance(step, Segment)]
    for number, segment in enumerate(segments):
        live.append(_maximal(_live_bytes(segment)))
        if set(segment_symbols(segment)) <= sizes.keys():
            plan = SegmentPlan(SegmentLayout(segment, None), sizes)
            arena = None if arena is None else arena + plan.arena_bytes
            buffers += [
                BufferLife(
                    name=life.name,
                    segment=number,
                    offset_bytes=plan.offsets[life.name],
                    num_bytes=life.size,
                    first=first + life.first,
                    last=first + life.last,
                )
                for life in plan.lifetimes
            ]
        else:
            arena = None
        first += len(segment.calls)
    return MemoryReport(
        weight_bytes=sum(constants.values()),
        arena_bytes=arena,
        live_bytes_formula=_sum_of_maxima(live),
        buffers=tuple(buffers),
    )


def _live_bytes(segment: Segment) -> list[Dim]:
    """Bytes that live during each call of a segment, its results included."""
    spans: dict[str, list[int]] = {}
    for number, call in enumerate(segment.calls):
        for name in call.buffers:
            spans.setdefault(root_of(segment, name), []).append(number)
    totals = [Dim.of(0)] * len(segment.calls)
    for specs, stays in ((segment.internal, False), (segment.outputs, True)):
        for spec in specs:
            uses = spans.get(spec.name)
            if not uses:
                continue
            size = product(spec.shape or ()) * spec.dtype.storage_bytes
            last = len(totals) - 1 if stays else uses[-1]
            for number in range(uses[0], last + 1):
                totals[number] = totals[number] + size
    return totals


def _maximal(formulas: list[Dim]) -> list[Dim]:
    """Those that no other covers; symbols are not negative."""
    kept: list[Dim] = []
    for formula in dict.fromkeys(formulas):
        if not any(_covers(other, formula) for other in kept):
            kept = [other for other in kept if not _covers(formula, other)]
            kept.append(formula)
    return kept


def _covers(larger: Dim, smaller: Dim) -> bool:
    """True when one formula is at least the other for all sizes."""
    return all(factor >= 0 for _, factor in (larger - smaller).terms)


def _sum_of_maxima(segments: list[list[Dim]]) -> str:
    plain = sum((kept[0] for kept in segments if len(kept) == 1), Dim.of(0))
    texts = [str(plain)] if plain.terms else []
    for kept in (kept for kept in segments if len(kept) > 1):
        shown = ", ".join(str(formula) for formula in kept[:_MAX_TERMS])
        more = f", {len(kept) - _MAX_TERMS} more" if len(kept) > _MAX_TERMS else ""
        texts.append(f"max({shown}{more})")
    return " + ".join(texts) or "0"
