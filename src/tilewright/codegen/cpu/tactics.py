"""Schedules for nests on a CPU: special tactics first, one that fits every nest last.

Input -> Output: a ``Nest`` and a target -> the first tactic's schedule, with the reasons of those
refused.
    sequential      nests with ordered axes: one thread runs each outer iteration, scalar code
    dot_product     sums of products of bytes or bfloat16, several at a time: the tile of a
                    contraction
    contraction     sums of products that reuse operands: register tile of rows x vectors
    row_reduction   reductions along contiguous memory: vectors run along the reduction, several
                    of them at once where their results lie close together
    elementwise     everything with an axis of contiguous stores: vectors run along that axis
    scalar          anything
Guarantees: a refusal states its reason; ``scalar`` never refuses.
Not here: measured choice among schedules (tune).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from tilewright.codegen.cpu.dots import dot_of
from tilewright.codegen.cpu.half_vectors import is_vector_and_half
from tilewright.codegen.cpu.target import CpuTarget
from tilewright.codegen.cpu.traits import (
    GATHER_COST,
    ONE,
    balanced,
    hoists,
    is_product,
    num_points,
    reduces_of,
    reusing_axes,
    step_cost,
    sums_at_once,
    widest_lanes,
)
from tilewright.codegen.cpu.windows import window_tile
from tilewright.core.dtypes import BOOL
from tilewright.core.errors import InternalError
from tilewright.core.shape import Dim
from tilewright.kernel.dot import BYTES, is_dot, kind_of
from tilewright.kernel.ir import Axis, Load, Reduce, walk
from tilewright.kernel.nest import Nest
from tilewright.kernel.schedule import Schedule

_MAX_ROWS = 14
_MAX_WIDENING_ROWS = 26  # of one vector, which takes instructions of its own to become floats
_ROWS_IN_FLIGHT = 4
_MANY_REGISTERS = 32
_LINE_BYTES, _L1_SETS, _L1_WAYS = 64, 64, 8  # 32 KB; larger ones have more ways
_DEPTH = 4
_MANY_TAPS = 7
_STREAMS = 4  # rows of memory read side by side where nothing that is loaded serves twice
_SHORT_ROW = 256
_USUAL_SIZE = 40  # of a symbolic axis
_MANY_TIMES = 4
_FEW_BLOCKS = 5
_FEW_TILES = 32  # of rows, each of which reads all weights again
_FITTING_BYTES, _EXCEEDING_BYTES = 640 << 10, 4 << 20  # most of a usual second cache, and several
_MANY_IDLE = 1.25
_NEAR = 4  # elements between results that one vector may hold
_GROUPS = 16  # vectors of results in one parallel iteration


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a tactic does not fit a nest."""

    reason: str


Tactic = Callable[[Nest, CpuTarget], Schedule | Refusal]


def choose(
    nest: Nest, target: CpuTarget, disabled: Collection[str] = ()
) -> tuple[Schedule, tuple[tuple[str, str], ...]]:
    """The first fitting schedule and the refused tactics with their reasons."""
    refused: list[tuple[str, str]] = []
    for tactic in TACTICS:
        off = tactic.__name__ in disabled
        result = Refusal("disabled by an option") if off else tactic(nest, target)
        if isinstance(result, Schedule):
            return result, tuple(refused)
        refused.append((tactic.__name__, result.reason))
    raise InternalError("the scalar tactic refused a nest")


def sequential(nest: Nest, target: CpuTarget) -> Schedule | Refusal:
    """Ordered axes forbid vectors and unrolling."""
    if not any(axis.ordered for axis in nest.axes):
        return Refusal("no ordered axis")
    return Schedule(tactic="sequential", reduce_lanes=widest_lanes(nest, target))


def dot_product(nest: Nest, target: CpuTarget) -> Schedule | Refusal:
    """Rows x vectors of accumulators; bytes are multiplied four at a time, bfloat16 two."""
    reduces = reduces_of(nest)
    if not any(is_dot(node) for node in reduces):
        return Refusal("no sum of dot products")
    for vector in reversed(nest.axes):
        lanes = vector.extent.const if vector.extent.is_const else 0
        if lanes in _lanes_of_dots(target) and all(
            dot_of(nest, node, vector.name, lanes, target) is not None for node in reduces
        ):
            tile = _register_tile(nest, vector, lanes, target)
            return Schedule(
                tactic="dot_product",
                lanes=lanes,
                vector=vector.name,
                unroll=tile.unroll,
                outer=tile.outer,
                chunk=1,
                depth=1 if _overlaps(nest, reduces, tile) else 2,
            )
    return Refusal("the factors of a dot product do not lie beside each other")


def _overlaps(nest: Nest, reduces: list[Reduce], tile: _Tile) -> bool:
    """True where a step reads for one row what the next step reads for its neighbour.

    In one round both would be loaded once and kept, for which there are too few registers.
    """
    for node in (node for node in reduces if len(nest.reduce_axes[id(node)]) > 1):
        step = nest.reduce_axes[id(node)][-2].name
        loads = [nest.loads[id(n)] for n in walk(node.body) if id(n) in nest.loads]
        for form in loads:
            along = form.stride(step)
            rows = (form.stride(axis) for axis, count in tile.unroll.items() if count > 1)
            if along is not None and along.terms and along in rows:
                return True
    return False


def _lanes_of_dots(target: CpuTarget) -> tuple[int, ...]:
    return tuple(lanes for lanes in (16, 8, 4) if lanes <= target.lanes(32))


def contraction(nest: Nest, target: CpuTarget) -> Schedule | Refusal:
    """Rows x vectors of accumulators, so that each loaded operand is used several times."""
    reduces = reduces_of(nest)
    if not reduces:
        return Refusal("no reduction")
    if not any(is_product(node) for node in reduces):
        return Refusal("no sum of products")
    vector = _contraction_vector(nest, reduces, widest_lanes(nest, target))
    if vector is None:
        return Refusal("no parallel axis along contiguous memory")
    if hoists(nest, vector):
        return Refusal("a reduction serves a whole row of outputs")
    if _dot_is_better(nest, vector, target):
        return Refusal("operands are contiguous along the reduction")
    lanes = _fitting_lanes(widest_lanes(nest, target), vector.extent)
    if target.halves_vectors and lanes > 4 and _is_idle(lanes, vector.extent):
        lanes //= 2
    tile = _register_tile(nest, vector, lanes, target)
    return Schedule(
        tactic="contraction",
        lanes=lanes,
        vector=vector.name,
        unroll=tile.unroll,
        outer=tile.outer,
        chunk=1,
        reduce_lanes=widest_lanes(nest, target),
        depth=tile.depth or _depth(nest, tile, target),
        slant=tile.slant,
    )


def row_reduction(nest: Nest, target: CpuTarget) -> Schedule | Refusal:
    """Scalar outputs, vectors along the reductions."""
    reduces = reduces_of(nest)
    if not reduces:
        return Refusal("no reduction")
    vector = _best_vector_axis(nest)
    is_hoisted = vector is not None and hoists(nest, vector)
    if vector is not None and not is_hoisted and not _dot_is_better(nest, vector, target):
        return Refusal("the outputs are contiguous")
    inner = vector if is_hoisted else None
    lanes = widest_lanes(nest, target)
    if inner is not None:
        return Schedule(
            tactic="row_reduction",
            lanes=lanes,
            vector=inner.name,
            unroll=_several_rows(nest, inner) if _are_short(nest, reduces) else {},
            reduce_lanes=lanes,
        )
    beside = _results_side_by_side(nest, reduces)
    if beside is not None:
        return Schedule(
            tactic="row_reduction",
            lanes=_fitting_lanes(lanes, beside.extent),
            vector=beside.name,
            unroll={beside.name: 1},
            chunk=_GROUPS,
            reduce_lanes=lanes,
        )
    unroll: dict[str, int] = {}
    for axis in reversed(nest.axes):
        if len(unroll) < 2 and any(is_product(node) for node in reduces):
            unroll[axis.name] = balanced(axis.extent, 4)
    return Schedule(tactic="row_reduction", unroll=unroll, reduce_lanes=lanes)


def elementwise(nest: Nest, target: CpuTarget) -> Schedule | Refusal:
    """Vectors along the axis of contiguous stores."""
    vector = _best_vector_axis(nest)
    if vector is None:
        return Refusal("no parallel axis along contiguous memory")
    lanes = _fitting_lanes(widest_lanes(nest, target), vector.extent)
    heavy = any(True for _ in reduces_of(nest))
    waits = heavy or any(_waits(form.stride(vector.name)) for form in nest.loads.values())
    return Schedule(
        tactic="elementwise",
        lanes=lanes,
        vector=vector.name,
        unroll={vector.name: 1, **(_several_rows(nest, vector) if waits else {})},
        chunk=1 if heavy else 64,
        reduce_lanes=widest_lanes(nest, target),
    )


def scalar(nest: Nest, target: CpuTarget) -> Schedule | Refusal:
    """One element at a time."""
    return Schedule(tactic="scalar", reduce_lanes=widest_lanes(nest, target))


TACTICS: tuple[Tactic, ...] = (
    sequential,
    dot_product,
    contraction,
    row_reduction,
    elementwise,
    scalar,
)
# Tactics that may be disabled: nests with ordered axes need the first, the last fits every nest.
OPTIONAL = tuple(tactic.__name__ for tactic in TACTICS[1:-1])


# --- axes and tiles ------------------------------------------------------------------------------


def _fitting_lanes(lanes: int, extent: Dim) -> int:
    """Fewer lanes where a constant extent would leave more than half of them idle."""
    if extent.is_const:
        while lanes > 4 and extent.const <= lanes // 2:
            lanes //= 2
    return lanes


def _is_idle(lanes: int, extent: Dim) -> bool:
    """True when vectors of half as many lanes leave fewer lanes idle, by far."""
    if not extent.is_const:
        return False
    whole, half = (-(-extent.const // size) * size for size in (lanes, lanes // 2))
    if is_vector_and_half(extent, lanes // 2):
        half = extent.const
    return whole > _MANY_IDLE * half


def _access_cost(nest: Nest, axis: str) -> float | None:
    """Cost of one vector of all accesses along an axis; None if any store is not contiguous."""
    for form in nest.stores:
        if form.stride(axis) != ONE:
            return None
    return sum(step_cost(form.stride(axis)) for form in nest.loads.values())


def _best_vector_axis(nest: Nest) -> Axis | None:
    best: tuple[float, Axis] | None = None
    for axis in nest.axes:
        if axis.ordered or (axis.extent.is_const and axis.extent.const < 2):
            continue
        cost = _access_cost(nest, axis.name)
        if cost is not None and (best is None or cost < best[0]):
            best = (cost, axis)
    return best[1] if best else None


def _contraction_vector(nest: Nest, reduces: list[Reduce], lanes: int) -> Axis | None:
    """The axis along which the loads of the reductions cost least, idle lanes counted.

    Stores happen once a reduction, so that scattering them costs little when it is long.
    """
    inside = [
        nest.loads[id(n)] for n in walk(*reduces) if isinstance(n, Load) and id(n) in nest.loads
    ]
    points = max(num_points(nest.reduce_axes[id(node)]) for node in reduces)
    best: tuple[float, Axis] | None = None
    for axis in reversed(nest.axes):
        if axis.ordered or (axis.extent.is_const and axis.extent.const < 2):
            continue
        cost = sum(step_cost(form.stride(axis.name)) for form in inside)
        if not cost:
            continue
        if axis.extent.is_const:
            size = axis.extent.const
            width = min(lanes, max(4, 1 << (size - 1).bit_length()))
            cost *= -(-size // width) * width / size * lanes / width
        for form in nest.stores:
            if form.stride(axis.name) != ONE:
                cost += 4.0 * lanes / points
        if best is None or cost < best[0]:
            best = (cost, axis)
    return best[1] if best else None


def _dot_is_better(nest: Nest, vector: Axis, target: CpuTarget) -> bool:
    """True when loads gather along the vector axis but step contiguously along a reduction."""
    costs = [step_cost(form.stride(vector.name)) for form in nest.loads.values()]
    if max(costs, default=0.0) < GATHER_COST:
        return False
    inner = [axes[-1] for axes in nest.reduce_axes.values()]
    for axis in inner:
        if axis.extent.is_const and axis.extent.const < target.vector_bytes // 8:
            continue
        strides = [form.stride(axis.name) for form in nest.loads.values()]
        if all(stride is not None and (stride == ONE or not stride.terms) for stride in strides):
            return True
    return False


def _results_side_by_side(nest: Nest, reduces: list[Reduce]) -> Axis | None:
    """The axis of results that lie close together, each a short reduction along memory.

    A vector of them costs a few shuffles for each; singly, each costs as much as its sum, and what
    follows the sum is computed singly too.
    """
    if not _are_short(nest, reduces) or any(node.dtype is BOOL for node in reduces):
        return None
    for axis in reversed(nest.axes):
        if axis.ordered or (axis.extent.is_const and axis.extent.const < 4):
            continue
        near = all(_is_near(form.stride(axis.name)) for form in nest.stores)
        if near and all(axis.name in nest.depends(node) for node in reduces):
            return axis
    return None


def _is_near(stride: Dim | None) -> bool:
    return stride is not None and stride.is_const and 1 <= stride.const <= _NEAR


def _are_short(nest: Nest, reduces: list[Reduce]) -> bool:
    """True for rows whose sums take as long to add up across lanes as along the row."""
    return all(num_points(nest.reduce_axes[id(node)]) <= _SHORT_ROW for node in reduces)


def _waits(stride: Dim | None) -> bool:
    """True for loads of many lines of the cache, which neighbouring rows share."""
    return stride is None or (bool(stride.terms) and stride != ONE)


def _several_rows(nest: Nest, vector: Axis) -> dict[str, int]:
    """Copies of the innermost other axis: while one row waits for a sum, others go on."""
    others = [axis for axis in nest.axes if axis is not vector and not axis.ordered]
    return {axis.name: balanced(axis.extent, _ROWS_IN_FLIGHT) for axis in others[-1:]}


def _depth(nest: Nest, tile: _Tile, target: CpuTarget) -> int:
    """Steps of the innermost loop in one round.

    With few registers a tile has few sums to a step, and the loop itself is felt.  With many, taps
    along which the windows of neighbouring rows overlap go in one round: what one tap loads for a
    row, the next one needs for the row before, and finds in a register.
    """
    if target.num_vectors < _MANY_REGISTERS:
        return _DEPTH
    for reduce in reduces_of(nest):
        taps = nest.reduce_axes[id(reduce)][-1]
        loads = [nest.loads[id(n)] for n in walk(reduce.body) if id(n) in nest.loads]
        steps = [form.stride(taps.name) for form in loads]
        overlaps = any(
            step is not None and step.terms and form.stride(row) == step and count > 1
            for form, step in zip(loads, steps, strict=True)
            for row, count in tile.unroll.items()
        )
        if overlaps and taps.extent.is_const and 1 < taps.extent.const <= _MANY_TAPS:
            return taps.extent.const
    return 1


def _even_columns(extent: Dim, most: int, budget: int) -> int:
    """Copies of a column; an odd number of them is split evenly, so that threads get equal parts.

    More columns are more loads of vectors and fewer of scalars: with enough rows that is no loss.
    """
    if extent.is_const and extent.const % 2:
        for count in (3, 5):
            if extent.const % count == 0 and budget >= 4 * count:
                return count
    return balanced(extent, most)


@dataclass(frozen=True, slots=True)
class _Tile:
    """Copies of each axis, and the axes whose blocks go slowest (they hold the weights); the row
    along which windows overlap, with the taps in one round.
    """

    unroll: dict[str, int]
    outer: tuple[str, ...]
    slant: str | None = None
    depth: int = 0


def _widens(nest: Nest, vector: Axis, reduces: list[Reduce]) -> bool:
    """True where vectors of integers become floats, again in every tile of rows."""
    return any(
        isinstance(node, Load) and not node.dtype.is_float and _moves(nest, node, vector)
        for reduce in reduces
        if reduce.dtype.is_float
        for node in walk(reduce.body)
    )


def _moves(nest: Nest, load: Load, vector: Axis) -> bool:
    form = nest.loads.get(id(load))
    return form is not None and form.stride(vector.name) == ONE


def _prefers_rows(nest: Nest, vector: Axis, rows: Axis) -> bool:
    """True where one vector with many rows is better than two with half as many."""
    if rows.extent.is_const and rows.extent.const <= _MAX_ROWS:
        return False
    reduces = reduces_of(nest)
    return _widens(nest, vector, reduces) and not _collide(nest, rows, reduces)


def _collide(nest: Nest, rows: Axis, reduces: list[Reduce]) -> bool:
    """True where rows lie so far apart that their lines push each other out of the L1 cache."""
    for node in walk(*reduces):
        form = nest.loads.get(id(node)) if isinstance(node, Load) else None
        stride = form.stride(rows.name) if form is not None else None
        if stride is None or not stride.terms or not stride.is_const:
            continue
        num_bytes = stride.const * node.dtype.storage_bytes
        if num_bytes % _LINE_BYTES == 0:
            places = _L1_SETS // math.gcd(_L1_SETS, num_bytes // _LINE_BYTES) * _L1_WAYS
            if places < _MAX_WIDENING_ROWS:
                return True
    return False


def _register_tile(nest: Nest, vector: Axis, lanes: int, target: CpuTarget) -> _Tile:
    """Rows reuse loaded vectors, columns (vectors or another axis) reuse loaded scalars.

    Accumulators, one vector of each column and two scalars fit the registers.
    """
    budget = (28 if target.num_vectors >= _MANY_REGISTERS else 12) // sums_at_once(nest)
    over_vectors, over_scalars = (reusing_axes(nest, vector, vectors=v) for v in (True, False))
    rows = next(iter(over_vectors or over_scalars), None)
    unroll = {vector.name: 1}
    if target.num_vectors < _MANY_REGISTERS and not over_scalars:
        windows = window_tile(nest, over_vectors, vector.name)
        if windows is not None:
            return _Tile({**unroll, **windows.unroll}, (), windows.slant, windows.depth)
    outer: tuple[str, ...] = ()
    beside: str | None = None
    columns = 1
    small = rows is not None and rows.extent.is_const and rows.extent.const * 2 <= budget // 2
    most = _MAX_ROWS
    if not (vector.extent.is_const and vector.extent.const <= lanes):
        vectors = vector.extent.ceildiv(lanes)
        columns = unroll[vector.name] = min(_even_columns(vectors, 2, budget), max(1, budget))
        if is_vector_and_half(vector.extent, lanes):
            budget -= 2  # for the factors of two steps
        if over_vectors and _prefers_rows(nest, vector, over_vectors[0]):
            columns = unroll[vector.name] = 1
            most = _MAX_WIDENING_ROWS
    else:
        column = next(iter(over_scalars), None)
        if column is not None and column is not rows and budget >= 2:
            several = _columns_of_few_rows(nest, rows, target) if small and budget >= 8 else 2
            columns = _even_columns(column.extent, several, budget)
            beside = column.name
            outer = () if _splits_rows(nest, column, columns) else (column.name,)
            is_split = columns < _usual(column.extent) and column.name in outer
            if rows is not None and is_split and _passes_matrices(nest, rows, column, target):
                outer = (rows.name,)
    if rows is not None:
        most = most if over_vectors else _STREAMS
        unroll[rows.name] = balanced(rows.extent, min(most, max(1, budget // columns)))
    # Columns last: each broadcast scalar is used for all columns at once, then forgotten.
    if beside is not None:
        unroll[beside] = columns
    return _Tile(unroll, outer)


def _columns_of_few_rows(nest: Nest, rows: Axis | None, target: CpuTarget) -> int:
    """Columns beside at most 7 rows, so that sums, vectors and scalars fit the registers.

    A scalar of bytes takes a register: only the other factor of a dot product may be in memory.
    """
    if rows is None or not any(kind_of(node) is BYTES for node in reduces_of(nest)):
        return 4
    return max(2, min(4, (target.num_vectors - 1) // (rows.extent.const + 1)))


def _splits_rows(nest: Nest, column: Axis, columns: int) -> bool:
    """True where rows go slowest, so that threads share them, though columns read weights.

    What columns read has to fit the second cache.  Where what rows read exceeds it, each block of
    columns would read all rows from memory again; where that is little beside the results, these
    are better written column by column.  And with few blocks of columns each thread would read all
    rows, half of which the other thread has just written.
    """
    sizes = {axis.name: axis.extent for axis in nest.axes}
    for axes in nest.reduce_axes.values():
        sizes.update((axis.name, axis.extent) for axis in axes)
    totals = {True: 0, False: 0}
    for node in walk(*reduces_of(nest)):
        form = nest.loads.get(id(node)) if isinstance(node, Load) else None
        if form is not None:
            extents = [sizes[name] for name in form.terms if name in sizes]
            points = math.prod(map(_usual, extents))
            totals[column.name in form.terms] += points * node.dtype.storage_bytes
    results = 4 * math.prod(_usual(axis.extent) for axis in nest.axes)
    again = totals[False] * -(-_usual(column.extent) // columns)
    exceeds = totals[False] > _EXCEEDING_BYTES and again > _MANY_TIMES * results
    is_plain = len([axis for axis in nest.axes if axis.extent != ONE]) == 3  # one axis of rows
    has_few = is_plain and _usual(column.extent) <= _FEW_BLOCKS * columns
    return (exceeds or has_few) and totals[True] <= _FITTING_BYTES


def _passes_matrices(nest: Nest, rows: Axis, column: Axis, target: CpuTarget) -> bool:
    """True where each tile of rows goes through several matrices of weights, and rows go slowest.

    Strassen's seven products of an image: each row, half of which another thread has just written,
    is fetched once, not for each block of columns.  The weights stream from the third cache for
    each tile: tiles have to be tall, and few.
    """
    axes = [axis for axis in nest.axes if axis.extent != ONE]
    has_few = _usual(rows.extent) <= _FEW_TILES * _MAX_ROWS
    if target.num_vectors < _MANY_REGISTERS or len(axes) != 4 or not has_few:
        return False
    factors = [nest.loads[id(n)] for n in walk(*reduces_of(nest)) if id(n) in nest.loads]
    weights = [form for form in factors if rows.name not in form.terms]
    shared = [axis for axis in axes if all(axis.name in form.terms for form in factors)]
    if len(weights) != 1 or column.name not in weights[0].terms or len(shared) != 1:
        return False
    sizes = {axis.name: axis.extent for axis in (*axes, *sum(nest.reduce_axes.values(), ()))}
    extents = [_usual(sizes[name]) for name in weights[0].terms if name in sizes]
    return 4 * math.prod(extents) <= _EXCEEDING_BYTES


def rows_first(nest: Nest, schedule: Schedule) -> Schedule:
    """For one of several short steps: threads share the rows of many matrices, not the matrices.

    Winograd's three stages hand on every matrix: a thread then reads the rows that it has written.
    It reads all weights for each tile of rows, which have to stay in the second cache for that.
    """
    rows = [name for name in schedule.unroll if name != schedule.vector]
    if schedule.tactic != "contraction" or len(rows) != 1 or schedule.outer:
        return schedule
    others = {axis.name for axis in nest.axes if axis.extent != ONE} - {*rows, schedule.vector}
    factors = [nest.loads[id(n)] for n in walk(*reduces_of(nest)) if id(n) in nest.loads]
    are_many = bool(others) and all(others <= form.terms.keys() for form in factors)
    sizes = {axis.name: axis.extent for axis in (*nest.axes, *sum(nest.reduce_axes.values(), ()))}
    weights = [
        4 * math.prod(_usual(sizes[name]) for name in form.terms if name in sizes)
        for form in factors
        if rows[0] not in form.terms
    ]
    fits = sum(weights) <= _FITTING_BYTES // 2
    return replace(schedule, outer=tuple(rows)) if are_many and fits else schedule


def _usual(extent: Dim) -> int:
    return extent.const if extent.is_const else _USUAL_SIZE
