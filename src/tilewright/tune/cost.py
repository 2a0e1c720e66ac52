"""How long a schedule should take: a roofline of one core, to rank candidates before any is timed.

Input -> Output: a ``Nest``, a ``Schedule``, sizes, a target -> predicted microseconds of one run.
Method: the loops as the generator writes them.  Cycles of the arithmetic and load ports for each
register tile, partial tiles too; bytes from beyond each cache by the loops outside of what fits
into it.  The slower of the two counts, and a little of the other.
Guarantees: deterministic; predictions of a nest can be compared with each other, not with a clock.
Not here: which schedules are legal (codegen.cpu.space), timing (tune.rounds).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product as cartesian

from tilewright.codegen.cpu.target import CpuTarget
from tilewright.codegen.cpu.traits import ONE, reduces_of
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Axis, Call, Expr, Load, Reduce, walk
from tilewright.kernel.nest import Nest, evaluated
from tilewright.kernel.schedule import Schedule

# A recent x86 core, per cycle: multiply-adds, loads, and bytes from L2, L3 and memory.
_FMAS, _LOADS, _LATENCY = 2.0, 2.0, 4.0
_CACHES = ((32 << 10, 32.0), (1 << 20, 12.0), (32 << 20, 7.0))  # bytes held, bytes a cycle beyond
_LOOP_CYCLES, _TILE_CYCLES, _STORE_CYCLES, _CALL_CYCLES = 1.0, 20.0, 1.0, 100.0
_CYCLES_PER_US = 3500.0
_OTHER_ROOF = 0.1  # what the roof that does not bind still costs
_USUAL = 16  # of an extent that is not known


def predict_us(
    nest: Nest, schedule: Schedule, target: CpuTarget, sizes: Mapping[str, int] | None = None
) -> float:
    """Predicted microseconds of one nest on one core."""
    loops = _Loops(nest, schedule, target, sizes or {})
    compute, memory = loops.compute_cycles(), loops.memory_cycles()
    total = max(compute, memory) + _OTHER_ROOF * min(compute, memory) + _CALL_CYCLES
    return total / _CYCLES_PER_US


@dataclass(slots=True)
class _Loops:
    """The loops of one schedule."""

    nest: Nest
    schedule: Schedule
    target: CpuTarget
    sizes: Mapping[str, int]
    extents: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.extents = {axis.name: self._size(axis.extent) for axis in self.nest.axes}

    def _size(self, dim: Dim) -> int:
        return max(1, dim.evaluate(self.sizes)) if dim.symbols <= self.sizes.keys() else _USUAL

    def _points(self, axes: tuple[Axis, ...]) -> int:
        return math.prod(self._size(axis.extent) for axis in axes)

    # --- arithmetic ------------------------------------------------------------------------------

    def compute_cycles(self) -> float:
        """Cycles of all tiles, data in the nearest cache."""
        tiled = {name: self._blocks(name) for name in self.schedule.unroll}
        if self.schedule.vector is not None:
            tiled[self.schedule.vector] = self._blocks(self.schedule.vector)
        plain = math.prod(size for name, size in self.extents.items() if name not in tiled)
        total = 0.0
        for parts in cartesian(*tiled.values()):
            tile = {name: size for name, (size, _) in zip(tiled, parts, strict=True)}
            total += math.prod(count for _, count in parts) * self._tile_cycles(tile)
        return plain * total

    def _blocks(self, name: str) -> list[tuple[int, int]]:
        """(Copies, how many such blocks) of an axis: whole blocks, and what is left."""
        extent, copies = self.extents[name], self.schedule.copies(name)
        if name == self.schedule.vector:
            extent = -(-extent // self.schedule.lanes)
        blocks = [(copies, extent // copies), (extent % copies, 1 if extent % copies else 0)]
        return [(size, count) for size, count in blocks if count]

    def _tile_cycles(self, tile: Mapping[str, int]) -> float:
        cycles = _TILE_CYCLES
        seen: set[int] = set()
        for store in self.nest.stage.stores:
            cycles += _STORE_CYCLES * math.prod(tile.values())
            for root in evaluated(store):
                cycles += self._cycles(root, tile, seen)
        return cycles

    def _cycles(self, root: Expr, tile: Mapping[str, int], seen: set[int]) -> float:
        """Cycles of an expression for a tile; what was counted before is free."""
        total = 0.0
        inner = {id(n) for r in reduces_of(self.nest) for n in walk(r.body)}
        for node in walk(root):
            if id(node) in seen or id(node) in inner:
                continue
            seen.add(id(node))
            if isinstance(node, Reduce):
                total += self._reduce_cycles(node, tile)
            elif isinstance(node, Load):
                total += self._load_cycles(node, tile)
            elif isinstance(node, Call):
                total += self._copies(node.free_axes, tile) / _FMAS
        return total

    def _reduce_cycles(self, node: Reduce, tile: Mapping[str, int]) -> float:
        steps = float(self._points(self.nest.reduce_axes[id(node)]))
        if self.schedule.vector is None:
            steps = max(1.0, steps / self.schedule.reduce_lanes)
        copies = self._copies(node.free_axes, tile)
        operations = sum(isinstance(part, Call) for part in walk(node.body))
        loads = sum(
            self._load_cycles(part, tile) for part in walk(node.body) if isinstance(part, Load)
        )
        arithmetic = copies * max(1, operations) / _FMAS
        return steps * (max(arithmetic, loads, _LATENCY) + _LOOP_CYCLES / self.schedule.depth)

    def _load_cycles(self, node: Load, tile: Mapping[str, int]) -> float:
        form = self.nest.loads.get(id(node))
        copies = self._copies(node.free_axes, tile)
        vector = self.schedule.vector
        if form is None or vector is None:
            return copies / _LOADS
        stride = form.stride(vector)
        gathers = stride is None or (bool(stride.terms) and stride != ONE)
        return copies * (self.schedule.lanes if gathers else 1) / _LOADS

    def _copies(self, names: frozenset[str], tile: Mapping[str, int]) -> int:
        """Distinct values in a tile of what depends on these axes."""
        depends = {self.nest.merged.get(name, name) for name in names}
        return math.prod(size for name, size in tile.items() if name in depends)

    # --- memory ----------------------------------------------------------------------------------

    def memory_cycles(self) -> float:
        """Cycles of the slowest boundary between caches."""
        digits = list(self._digits())
        loads = list(self._operands())
        worst = 0.0
        for held, rate in _CACHES:
            inside = self._fitting(digits, loads, held)
            moved = sum(
                self._moved(axes, whole, digits[: len(digits) - inside]) for axes, whole in loads
            )
            worst = max(worst, moved / rate)
        return worst

    def _digits(self) -> Iterator[tuple[str, int]]:
        """Axis and count of each loop around a tile, slowest first, as the generator has them."""
        blocks = {name: sum(c for _, c in self._blocks(name)) for name in self.schedule.unroll}
        vector = self.schedule.vector
        for name in self.schedule.outer:
            yield name, blocks[name]
        for name, size in self.extents.items():
            if name != vector and name not in blocks:
                yield name, size
        if vector is not None:
            yield vector, sum(count for _, count in self._blocks(vector))
        for name, count in blocks.items():
            if name != vector and name not in self.schedule.outer:
                yield name, count

    def _operands(self) -> Iterator[tuple[frozenset[str], float]]:
        """The axes and bytes of every load, each linear access once."""
        seen: set[str] = set()
        for node in walk(*(root for s in self.nest.stage.stores for root in evaluated(s))):
            if not isinstance(node, Load) or id(node) not in self.nest.loads:
                continue
            form = self.nest.loads[id(node)]
            key = f"{node.buffer}{form}"
            if key in seen:
                continue
            seen.add(key)
            axes = frozenset(self.nest.merged.get(name, name) for name in node.free_axes)
            inner = {axis.name: axis for own in self.nest.reduce_axes.values() for axis in own}
            size = float(node.dtype.storage_bytes)
            for name in axes:
                if name in self.extents:
                    size *= self.extents[name]
                elif name in inner:
                    size *= self._size(inner[name].extent)
            yield axes, size

    def _fitting(
        self, digits: list[tuple[str, int]], loads: list[tuple[frozenset[str], float]], held: int
    ) -> int:
        """How many of the fastest loops touch no more than a cache holds."""
        for inside in range(len(digits), 0, -1):
            around = digits[: len(digits) - inside]
            touched = sum(
                whole / math.prod(count for name, count in around if name in axes)
                for axes, whole in loads
            )
            if touched <= held:
                return inside
        return 0

    @staticmethod
    def _moved(axes: frozenset[str], whole: float, around: list[tuple[str, int]]) -> float:
        """Bytes that cross: an operand moves again in each round of a loop that it ignores."""
        return whole * math.prod(count for name, count in around if name not in axes)
