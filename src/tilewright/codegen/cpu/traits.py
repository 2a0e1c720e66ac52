"""What a nest looks like to tactics: its reductions, strides, and axes that reuse operands.

Input -> Output: a prepared ``Nest`` -> facts about it.
Not here: schedules (codegen.cpu.tactics), which of them are legal (codegen.cpu.space).
"""

from __future__ import annotations

from tilewright.codegen.cpu.target import CpuTarget
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Axis, Call, Cast, Expr, Load, Reduce, walk
from tilewright.kernel.nest import Nest, evaluated

ONE = Dim.of(1)
GATHER_COST = 8.0
MAX_LANES = 64


def reduces_of(nest: Nest) -> list[Reduce]:
    roots = [root for store in nest.stage.stores for root in evaluated(store)]
    return [node for node in walk(*roots) if isinstance(node, Reduce)]


def sums_at_once(nest: Nest) -> int:
    """Reductions whose accumulators are live together: those of one store."""
    counts = [
        sum(isinstance(node, Reduce) for node in walk(*evaluated(store)))
        for store in nest.stage.stores
    ]
    return max(1, *counts)


def is_product(node: Expr) -> bool:
    """True for sums of products, whose operands a register tile loads once for many."""
    if not isinstance(node, Reduce):
        return False
    body = node.body
    while isinstance(body, Cast):
        body = body.arg
    return node.combiner == "sum" and any(
        isinstance(part, Call) and part.op == "mul" for part in walk(body)
    )


def num_points(axes: tuple[Axis, ...]) -> int:
    """Points of a reduction; unknown extents count as 16."""
    total = 1
    for axis in axes:
        total *= axis.extent.const if axis.extent.is_const else 16
    return max(1, total)


def step_cost(stride: Dim | None) -> float:
    """Cost of loading one vector whose lanes are that far apart."""
    if stride is None:
        return 2 * GATHER_COST
    if stride == ONE:
        return 1.0
    return GATHER_COST if stride.terms else 0.0


def widest_lanes(nest: Nest, target: CpuTarget) -> int:
    """Lanes by the widest type that is stored or loaded as a value."""
    roots = [root for store in nest.stage.stores for root in evaluated(store)]
    widths = [
        node.dtype.storage_bytes
        for node in walk(*roots)
        if isinstance(node, Load | Cast) and node.dtype.name != "int64"
    ] + [store.value.dtype.storage_bytes for store in nest.stage.stores]
    return max(1, min(MAX_LANES, target.vector_bytes // max(4, *widths)))


def hoists(nest: Nest, vector: Axis) -> bool:
    """True when some reduction does not depend on the vector axis (softmax, normalisations)."""
    return any(vector.name not in nest.depends(node) for node in reduces_of(nest))


def balanced(extent: Dim, most: int) -> int:
    """Copies that split a constant extent into as few tiles as possible, of nearly equal size."""
    if not extent.is_const:
        return most
    size = max(1, extent.const)
    return -(-size // -(-size // most))


def reusing_axes(nest: Nest, vector: Axis, *, vectors: bool) -> list[Axis]:
    """Axes along which some loaded vectors (or scalars) of reductions stay the same, best first."""
    inside = [
        nest.loads[id(n)]
        for n in walk(*reduces_of(nest))
        if isinstance(n, Load) and id(n) in nest.loads
    ]
    gains: list[tuple[int, int, Axis]] = []
    for place, axis in enumerate(nest.axes):
        if axis is vector or (axis.extent.is_const and axis.extent.const < 2):
            continue
        gain = 0
        for form in inside:
            stride, along = form.stride(axis.name), form.stride(vector.name)
            moves_lanes = along is None or bool(along.terms)
            if moves_lanes == vectors and stride is not None and not stride.terms:
                gain += 1
        if gain:
            gains.append((gain, place, axis))
    return [axis for _, _, axis in sorted(gains, key=lambda item: (-item[0], -item[1]))]
