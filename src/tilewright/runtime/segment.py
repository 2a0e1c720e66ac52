"""A segment made ready for one set of sizes: offsets, argument blocks and the rows of the native
driver.

Input -> Output: a ``Segment``, sizes of its symbols, loaded kernels -> ``SegmentPlan``; a plan
leases ``Context``s.
Guarantees: a context (arena, argument table) is used by one run at a time; the bytes needed are
checked before they are allocated.
Row format of the driver (8 words): kind, function or target row, arguments, iterations, grain,
step slot, steps, 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.errors import OutOfMemory
from tilewright.core.shape import Dim
from tilewright.runtime.arena import ALIGNMENT, Lifetime, plan
from tilewright.runtime.cpu.allocator import allocate
from tilewright.runtime.extents import check_extents, shape_of
from tilewright.runtime.program import KernelCall, Segment

HEADER_SLOTS = 3  # status address, call number, step: see codegen.cpu.layout
STEP_SLOT = 2
ROW_WORDS = 8
CALL, LOOP, END = 0, 1, 2
# A stage is split over threads when each part costs at least this many operations (4-5 us).
MIN_PARALLEL_COST = 500_000

Words = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


@dataclass(slots=True)
class Context:
    """The memory of one run: the arena, the argument table, the rows and the status words."""

    arena: Array
    table: Words
    rows: Words
    status: Words
    rows_address: int
    status_address: int


class SegmentPlan:
    """A segment for fixed sizes.

    Attributes:
        lifetimes: of the buffers in the arena; ``offsets`` says where they lie.
        arena_bytes: size of the arena of one context.
        inputs: what ``bind`` expects before the outputs; the addresses of constants are fixed.
        output_shapes: shape of each output.
    """

    def __init__(
        self,
        segment: Segment,
        sizes: Mapping[str, int],
        address: Callable[[str, str], int],
        constants: Mapping[str, Array] | None = None,
    ) -> None:
        self.segment = segment
        self._constants = constants or {}
        self._sizes = sizes
        self._address = address
        check_extents(segment.extents, sizes)
        self.output_shapes = [shape_of(spec, sizes) for spec in segment.outputs]
        self.inputs = [spec for spec in segment.inputs if spec.name not in self._constants]
        external = (spec.name for spec in (*self.inputs, *segment.outputs))
        self._external = {name: number for number, name in enumerate(external)}
        self.lifetimes = self._lifetimes()
        self.offsets, self.arena_bytes = plan(self.lifetimes)
        self._patches: list[tuple[int, int]] = []
        self._template, self._bases = self._build_table()
        self._idle: list[Context] = []

    def _root(self, name: str) -> str:
        while name in self.segment.aliases:
            name = self.segment.aliases[name]
        return name

    def _lifetimes(self) -> list[Lifetime]:
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for number, call in enumerate(self.segment.calls):
            for name in map(self._root, call.buffers):
                first.setdefault(name, number)
                last[name] = number
        return [
            Lifetime(
                spec.name,
                math.prod(shape_of(spec, self._sizes)) * spec.dtype.storage_bytes,
                first[spec.name],
                last[spec.name],
            )
            for spec in self.segment.internal
            if spec.name in first
        ]

    def _build_table(self) -> tuple[Words, list[int]]:
        """The argument table with arena-relative offsets; positions of addresses are patched."""
        words: list[int] = []
        bases: list[int] = []
        self._arena_slots: list[int] = []
        for number, call in enumerate(self.segment.calls):
            bases.append(len(words))
            words += [0, number, 0]
            for name in call.buffers:
                root = self._root(name)
                if root in self.offsets:
                    self._arena_slots.append(len(words))
                    words.append(self.offsets[root])
                elif root in self._constants:
                    words.append(self._constants[root].ctypes.data)
                else:
                    self._patches.append((len(words), self._external[root]))
                    words.append(0)
            words += [dim.evaluate(self._sizes) for dim in call.dims]
        return _words(words), bases

    def lease(self) -> Context:
        """A context for one run; give it back with ``release``."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._make_context()

    def release(self, context: Context) -> None:
        """Makes a context available to later runs."""
        self._idle.append(context)

    def _make_context(self) -> Context:
        arena = allocate(max(self.arena_bytes, ALIGNMENT), "the memory plan of a run")
        status = np.zeros(2, dtype=np.int64)
        table = self._template.copy()
        table[self._arena_slots] += arena.ctypes.data
        status_address = status.ctypes.data
        for base in self._bases:
            table[base] = status_address
        rows = self._rows(table.ctypes.data)
        return Context(
            arena=arena,
            table=table,
            rows=rows,
            status=status,
            rows_address=rows.ctypes.data,
            status_address=status_address,
        )

    def _rows(self, table: int) -> Words:
        rows: list[list[int]] = []
        for call, base in zip(self.segment.calls, self._bases, strict=True):
            args = table + 8 * base
            steps = 1 if call.steps is None else call.steps.evaluate(self._sizes)
            body = [self._call_row(call, number, args) for number in range(len(call.stages))]
            if call.steps is None:
                rows += body
                continue
            slot = args + 8 * STEP_SLOT
            begin, end = len(rows), len(rows) + len(body) + 1
            rows.append([LOOP, end + 1, args, 0, 0, slot, steps, 0])
            rows += body
            rows.append([END, begin + 1, args, 0, 0, slot, steps, 0])
        return _words([word for row in rows for word in row]).reshape(-1, ROW_WORDS)

    def _call_row(self, call: KernelCall, number: int, args: int) -> list[int]:
        stage = call.stages[number]
        iterations = max(0, stage.iterations.evaluate(self._sizes))
        cost = max(1, stage.cost.evaluate(self._sizes))
        grain = min(max(1, iterations), -(-iterations * MIN_PARALLEL_COST // cost))
        return [CALL, self._address(call.kernel, stage.symbol), args, iterations, grain, 0, 0, 0]

    def bind(self, context: Context, addresses: list[int]) -> None:
        """Writes the addresses of ``inputs`` and the outputs into the table."""
        table = context.table
        for slot, number in self._patches:
            table[slot] = addresses[number]


def _words(values: list[int]) -> Words:
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError as error:
        raise OutOfMemory(
            "a size of the run exceeds 64 bits", remedy="use smaller inputs or a smaller batch"
        ) from error


def num_rows(call: KernelCall) -> int:
    """How many rows of the driver a call has, its loop's two included."""
    return len(call.stages) + (0 if call.steps is None else 2)


def segment_symbols(segment: Segment) -> tuple[str, ...]:
    """Names of all sizes that a plan of the segment depends on, sorted."""
    dims: list[Dim] = []
    for spec in (*segment.inputs, *segment.outputs, *segment.internal):
        dims.extend(spec.shape or ())
    dims.extend(extent.dim for extent in segment.extents)
    for call in segment.calls:
        dims.extend(call.dims)
        dims.extend(stage.iterations for stage in call.stages)
        dims.extend(stage.cost for stage in call.stages)
        if call.steps is not None:
            dims.append(call.steps)
    names: set[str] = set()
    for dim in dims:
        names |= dim.symbols
    return tuple(sorted(names))
