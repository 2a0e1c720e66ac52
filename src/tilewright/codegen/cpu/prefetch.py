"""Weights and pixels that are asked for before they are used.

Input -> Output: a nest, its schedule, the digits of its iterations -> how far ahead of itself each
load of a panel of weights asks; the lines of the next tile of pixels.
Why: a panel that only a few tiles use is waited for while the first of them reads it; asked for
during the tiles before, it comes in time. The pixels of a tile lie in as many places as there are
blocks of channels, a few lines in each, too few for a processor to see what comes next.
Guarantees: only panels that fit the second cache beside the present one are asked for, and only
where all panels in a row do not; pixels only of images that exceed it.
Not here: the instruction (reductions).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.codegen.cpu.target import CpuTarget
from tilewright.codegen.cpu.traits import ONE, is_product, num_points, reduces_of
from tilewright.core.shape import Dim, product
from tilewright.kernel.dot import is_dot, kind_of
from tilewright.kernel.ir import Axis, Load, Reduce, walk
from tilewright.kernel.nest import Nest
from tilewright.kernel.schedule import Schedule

_TILED = ("contraction", "dot_product")
_MOST_TILES = 16
_ALIAS_BYTES = 1 << 16  # lines so far apart push each other out: products take twice as long
_CACHE_BYTES = 1 << 18  # a part of the second cache
_SMALL_BYTES = 1 << 16  # weights of which a network has many, and which others push out
_IMAGE_BYTES = 1 << 20  # the second cache
_LINE_BYTES = 64
_FEW_REGISTERS = 16


def asked_ahead(
    nest: Nest, schedule: Schedule, digits: Sequence[tuple[str, Dim]]
) -> dict[int, int]:
    """Bytes from each load's address to the same place of the next panel, by id of the load."""
    if schedule.tactic not in _TILED or schedule.vector is None:
        return {}
    found: dict[int, int] = {}
    for reduce in filter(is_product, reduces_of(nest)):
        for node in walk(reduce.body):
            if isinstance(node, Load) and id(node) in nest.loads:
                distance = _distance(node, reduce, nest, schedule, digits)
                if distance is not None:
                    found[id(node)] = distance
    return found


def _distance(
    node: Load,
    reduce: Reduce,
    nest: Nest,
    schedule: Schedule,
    digits: Sequence[tuple[str, Dim]],
) -> int | None:
    form, vector = nest.loads[id(node)], schedule.vector or ""
    moving = [
        place for place, (name, count) in enumerate(digits) if form.terms.get(name) and count != ONE
    ]
    if (
        form.rest
        or form.stride(vector) != _lane_step(reduce)
        or not moving
        or _is_data(node, nest, schedule)
    ):
        return None
    name, _ = digits[moving[-1]]
    panels = product(size for _, size in digits[_first_of_run(moving, digits) : moving[-1] + 1])
    tiles = product(size for _, size in digits[moving[-1] + 1 :])
    step = form.terms[name] * schedule.copies(name)
    if name == vector:
        step = step * (schedule.lanes * schedule.chunk)
    if not (tiles.is_const and step.is_const and panels.is_const):
        return None
    columns = schedule.lanes * schedule.copies(vector)
    columns *= 1 if name == vector else schedule.copies(name)
    item = node.dtype.storage_bytes
    panel = num_points(nest.reduce_axes[id(reduce)]) * columns * item
    if tiles.const > _MOST_TILES or panel > _CACHE_BYTES:
        return None
    distance = step.const * item
    if schedule.tactic == "dot_product" and (tiles == ONE or distance % _ALIAS_BYTES == 0):
        return None  # read once, in order; or see above
    return distance if distance * panels.const > _SMALL_BYTES else None


def lines_ahead(nest: Nest, schedule: Schedule, target: CpuTarget) -> dict[int, range]:
    """Bytes from a load's address at the first pixel and step of a tile to the lines of the next
    tile, by id of the load.

    With many registers tiles have twice as many pixels, and nothing is gained.
    """
    is_small = target.num_vectors <= _FEW_REGISTERS
    if schedule.tactic != "contraction" or schedule.vector is None or not is_small:
        return {}
    found: dict[int, range] = {}
    for reduce in filter(is_product, reduces_of(nest)):
        for node in walk(reduce.body):
            if isinstance(node, Load) and id(node) in nest.loads:
                size = _tile_bytes(node, nest.reduce_axes[id(reduce)], nest, schedule)
                if size:
                    found[id(node)] = range(size, 2 * size, _LINE_BYTES)
    return found


def _tile_bytes(node: Load, inner: Sequence[Axis], nest: Nest, schedule: Schedule) -> int:
    """Bytes of all pixels of a tile in one block of channels; 0 where they are no such tile."""
    form, item = nest.loads[id(node)], node.dtype.storage_bytes
    rows = [name for name, n in schedule.unroll.items() if n > 1 and form.terms.get(name)]
    is_block = len(inner) > 1 and form.stride(inner[-1].name) == ONE
    if form.rest or form.terms.get(schedule.vector or "") or len(rows) != 1 or not is_block:
        return 0
    step = form.terms[rows[0]]
    if not step.is_const or not 0 < step.const * item <= _LINE_BYTES:
        return 0
    extents = {axis.name: axis.extent for axis in (*nest.axes, *inner)}
    size = product(extents[name] for name in form.terms if name in extents)
    is_large = not size.is_const or size.const * item > _IMAGE_BYTES
    return step.const * item * schedule.copies(rows[0]) if is_large else 0


def _lane_step(reduce: Reduce) -> Dim:
    """How far apart lanes of a panel lie: the factors of a dot product lie beside each other."""
    kind = kind_of(reduce)
    return Dim.of(kind.unit) if kind is not None and is_dot(reduce) else ONE


def _is_data(node: Load, nest: Nest, schedule: Schedule) -> bool:
    """True for what each row of a tile reads elsewhere: windows of an image, no panel."""
    form = nest.loads[id(node)]
    rows = [
        axis for axis, count in schedule.unroll.items() if axis != schedule.vector and count > 1
    ]
    return bool(rows) and all(form.terms.get(axis) for axis in rows)


def _first_of_run(moving: Sequence[int], digits: Sequence[tuple[str, Dim]]) -> int:
    """The slowest digit such that from it to the last moving one every panel is another."""
    first = moving[-1]
    while first and (first - 1 in moving or digits[first - 1][1] == ONE):
        first -= 1
    return first
