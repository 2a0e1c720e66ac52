"""The schedules that a nest may have: what a tuner chooses from.

Input -> Output: a ``Nest`` and a target -> legal schedules, the formula's first; a schedule -> the
reason against it.
    contraction     rows 1 .. as registers allow, along any axis that reuses vectors, or two of
                    them; columns of vectors or of another axis, outermost or not; steps in a round
    row_reduction   rows and columns of outputs that share operands; several rows in flight
    elementwise     vectors side by side, rows side by side, groups within a parallel iteration
Guarantees: every schedule of a space passes ``illegal``; the order depends on the nest and target
alone.
Not here: the formula's choice (codegen.cpu.tactics), predictions and timing (tune).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from tilewright.codegen.cpu.tactics import choose
from tilewright.codegen.cpu.target import CpuTarget
from tilewright.codegen.cpu.traits import MAX_LANES, balanced, reusing_axes, sums_at_once
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Axis
from tilewright.kernel.nest import Nest
from tilewright.kernel.schedule import Schedule

_MAX_ROWS, _MAX_COLUMNS = 14, 6
_OPERANDS = 2  # registers for what the accumulators of one vector are multiplied with
_CHUNKS = (1, 4, 16, 64, 256)
_FEW = (1, 2, 4)


def space(nest: Nest, target: CpuTarget, disabled: Collection[str] = ()) -> tuple[Schedule, ...]:
    """All legal schedules of a nest, each once; the first is the formula's."""
    first, _ = choose(nest, target, disabled)
    found = {first.text: first}
    variants = _VARIANTS.get(first.tactic)
    for schedule in () if variants is None else variants(nest, first, target.num_vectors):
        if schedule.text not in found and illegal(schedule, nest, target) is None:
            found[schedule.text] = schedule
    return tuple(found.values())


def illegal(schedule: Schedule, nest: Nest, target: CpuTarget) -> str | None:
    """The reason against a schedule, or None."""
    axes = {axis.name: axis for axis in nest.axes}
    named = [*schedule.unroll, *([schedule.vector] if schedule.vector else [])]
    if unknown := [name for name in named if name not in axes]:
        return f"there is no axis {unknown[0]}"
    ordered = [axis.name for axis in nest.axes if axis.ordered]
    if ordered and (schedule.vector or schedule.unroll):
        return f"the axis {ordered[0]} is ordered"
    if reason := _bad_lanes(schedule, target):
        return reason
    for name, count in schedule.unroll.items():
        extent = axes[name].extent
        if count < 1:
            return f"{count} copies of {name}"
        if name != schedule.vector and extent.is_const and count > max(1, extent.const):
            return f"{count} copies of {name}, which has {extent.const}"
    if not set(schedule.outer) <= set(schedule.unroll) - {schedule.vector}:
        return "an outer axis is not one of the rows"
    return _too_many_registers(schedule, nest, target)


def _bad_lanes(schedule: Schedule, target: CpuTarget) -> str | None:
    for lanes in (schedule.lanes, schedule.reduce_lanes):
        if lanes < 1 or lanes & (lanes - 1):
            return f"{lanes} lanes: not a power of two"
        if lanes > min(MAX_LANES, target.vector_bytes // 4):
            return f"{lanes} lanes do not fit a vector of {target.vector_bytes} bytes"
    if schedule.vector is None and schedule.lanes != 1:
        return "lanes without a vector axis"
    if schedule.depth < 1:
        return f"a depth of {schedule.depth}"
    return "a negative chunk" if schedule.chunk < 0 else None


def _too_many_registers(schedule: Schedule, nest: Nest, target: CpuTarget) -> str | None:
    """Accumulators and operands of one step of the reductions share the registers."""
    if schedule.tactic not in ("contraction", "dot_product"):
        return None
    copies = 1
    for count in schedule.unroll.values():
        copies *= count
    needed = copies * sums_at_once(nest) + _OPERANDS
    if needed > target.num_vectors:
        return f"{needed} registers are needed, there are {target.num_vectors}"
    return None


# --- variants of the formula's choice -------------------------------------------------------------


def _contractions(nest: Nest, first: Schedule, num_vectors: int) -> Iterator[Schedule]:
    for depth in _FEW:
        yield replace(first, depth=depth)
    vector = next(axis for axis in nest.axes if axis.name == first.vector)
    registers = (num_vectors - _OPERANDS) // sums_at_once(nest)
    over_vectors, over_scalars = (reusing_axes(nest, vector, vectors=v) for v in (True, False))
    several = not vector.extent.is_const or vector.extent.const > first.lanes
    columns: list[tuple[Axis | None, int]] = [(None, 1)]
    if several:
        columns += [(None, count) for count in range(2, _MAX_COLUMNS + 1)]
    for one in over_scalars[:2]:
        columns += [(one, count) for count in _sizes(one.extent, _MAX_COLUMNS) if count > 1]
    for axis, count in columns:
        copies = {vector.name: count if axis is None else 1}
        beside = {} if axis is None else {axis.name: count}
        rows = [one for one in over_vectors or over_scalars if one is not axis]
        for tile in _row_tiles(rows, registers // count):
            unroll = {**copies, **tile, **beside}
            yield replace(first, unroll=unroll, outer=())
            if axis is not None:
                yield replace(first, unroll=unroll, outer=(axis.name,))


def _row_tiles(rows: Sequence[Axis], most: int) -> Iterator[dict[str, int]]:
    """Tiles of rows along one axis, or along two: whole lines of the inner one."""
    yield {}
    for axis in rows[:2]:
        for count in _sizes(axis.extent, min(most, _MAX_ROWS)):
            yield {axis.name: count}
    if len(rows) > 1 and rows[0].extent.is_const and rows[0].extent.const * 2 <= most:
        inner = max(1, rows[0].extent.const)
        for count in _sizes(rows[1].extent, most // inner):
            if count > 1:
                yield {rows[1].name: count, rows[0].name: inner}


def _row_reductions(nest: Nest, first: Schedule, num_vectors: int) -> Iterator[Schedule]:
    if first.vector is not None:
        for axis in nest.axes:
            if axis.name != first.vector:
                for count in _FEW[1:]:
                    yield replace(first, unroll={axis.name: count})
        return
    names = list(first.unroll) or [axis.name for axis in nest.axes[-1:]]
    for rows in (1, 2, 4, 8):
        for columns in (1, 2, 4, 8) if len(names) > 1 else (1,):
            if rows * columns <= num_vectors // 2:
                yield replace(first, unroll=dict(zip(names, (rows, columns), strict=False)))


def _elementwise(nest: Nest, first: Schedule, _: int) -> Iterator[Schedule]:
    vector = first.vector or ""
    for copies in _FEW:
        for chunk in _CHUNKS:
            yield replace(first, unroll={vector: copies}, chunk=chunk)
    for axis in nest.axes:
        if axis.name != vector:
            for count in (2, 4, 8):
                yield replace(first, unroll={vector: 1, axis.name: count})


_VARIANTS = {
    "contraction": _contractions,
    "dot_product": _contractions,
    "row_reduction": _row_reductions,
    "elementwise": _elementwise,
}


def _sizes(extent: Dim, most: int) -> list[int]:
    """Different sizes of blocks that split an extent evenly, small ones first."""
    return sorted({balanced(extent, count) for count in range(1, max(1, most) + 1)})
