"""A segment made ready for one set of sizes: offsets, argument blocks and the rows of the native
driver.

Input -> Output: a ``Segment``, sizes of its symbols, loaded kernels -> ``SegmentPlan``; a plan
leases ``Context``s.
Guarantees: a context (arena, argument table) is used by one run at a time; the bytes needed are
checked before they are allocated.
Row format of the driver (8 words): kind, function or target row, arguments, iterations, grain,
step slot, steps, 0. A SKIP row has the slot of its condition for arguments and the expected value
for iterations; a FAIL row has its status there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.errors import InternalError, OutOfMemory, OutOfRange
from tilewright.core.shape import Dim
from tilewright.runtime.arena import ALIGNMENT, Lifetime, plan
from tilewright.runtime.checks import check_dims, error_of, failing, shape_of, stored_bytes
from tilewright.runtime.cpu.arena_pool import ArenaPool, Block
from tilewright.runtime.program import Guard, KernelCall, Segment, StageCall

HEADER_SLOTS = 3  # status address, call number, step: see codegen.cpu.layout
STEP_SLOT = 2
ROW_WORDS = 8
CALL, LOOP, END, SKIP, FAIL = range(5)
# A stage is split over threads when each part costs at least this many operations (1 us).
MIN_PARALLEL_COST = 100_000

Words = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


@dataclass(slots=True)
class Context:
    """What one run writes to: the arena, the argument table, the rows and the status words.

    The argument table has addresses in a block at ``base``. Between runs others may use the block,
    and the context has none.
    """

    block: Block | None
    base: int
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
        arenas: ArenaPool | None = None,
    ) -> None:
        self.segment = segment
        self._arenas = ArenaPool() if arenas is None else arenas
        self._constants = constants or {}
        self._sizes = sizes
        self._values: dict[int, int] = {}
        self._address = address
        self._failing = failing(segment.checks, sizes)
        self.output_shapes = [shape_of(spec, sizes) for spec in segment.outputs]
        self.inputs = [spec for spec in segment.inputs if spec.name not in self._constants]
        external = (spec.name for spec in (*self.inputs, *segment.outputs))
        self._external = {name: number for number, name in enumerate(external)}
        self.lifetimes = self._lifetimes()
        self.offsets, self.arena_bytes = plan(self.lifetimes)
        self._patches: list[tuple[int, int]] = []
        self._template, self._bases = self._build_table()
        self._idle: list[Context] = []

    def _value(self, dim: Dim) -> int:
        """The value of a dim; an engine says the same few thousands of times."""
        found = self._values.get(id(dim))
        if found is None:
            found = self._values[id(dim)] = dim.evaluate(self._sizes)
        return found

    def _root(self, name: str) -> str:
        while name in self.segment.aliases:
            name = self.segment.aliases[name]
        return name

    def _lifetimes(self) -> list[Lifetime]:
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        certain: set[str] = set()
        for number, call in enumerate(self.segment.calls):
            for name in map(self._root, _buffers(call)):
                first.setdefault(name, number)
                last[name] = number
                if not call.guards:
                    certain.add(name)
        for check in self._failing:
            for guard in check.guards:
                last[self._root(guard.condition)] = len(self.segment.calls) - 1
        return [
            Lifetime(
                spec.name,
                stored_bytes(spec, self._sizes, is_certain=spec.name in certain),
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
                self._add_address(words, name)
            words += map(self._value, call.dims)
            for guard in call.guards:
                self._add_address(words, guard.condition)
        for check in self._failing:
            bases.append(len(words))
            for guard in check.guards:
                self._add_address(words, guard.condition)
        return _words(words), bases

    def _add_address(self, words: list[int], name: str) -> None:
        root = self._root(name)
        if root in self.offsets:
            self._arena_slots.append(len(words))
            words.append(self.offsets[root])
        elif root in self._constants:
            words.append(self._constants[root].ctypes.data)
        else:
            self._patches.append((len(words), self._external[root]))
            words.append(0)

    def lease(self) -> Context:
        """A context for one run; give it back with ``release``."""
        needed = max(self.arena_bytes, ALIGNMENT)
        try:
            context = self._idle.pop()
        except IndexError:
            return self._make_context(self._arenas.take(needed, 0))
        context.block = block = self._arenas.take(needed, context.base)
        if block.address != context.base:
            context.table[self._arena_slots] += block.address - context.base
            context.base = block.address
        return context

    def release(self, context: Context) -> None:
        """Makes a context, and its memory, available to later runs."""
        if context.block is None:
            raise InternalError("a context is released twice")
        self._arenas.give(context.block)
        context.block = None
        self._idle.append(context)

    def _make_context(self, block: Block) -> Context:
        status = np.zeros(2, dtype=np.int64)
        table = self._template.copy()
        table[self._arena_slots] += block.address
        status_address = status.ctypes.data
        for base in self._bases[: len(self.segment.calls)]:
            table[base] = status_address
        rows = self._rows(table.ctypes.data)
        return Context(
            block=block,
            base=block.address,
            table=table,
            rows=rows,
            status=status,
            rows_address=rows.ctypes.data,
            status_address=status_address,
        )

    def _rows(self, table: int) -> Words:
        rows: list[list[int]] = []
        for call, base in zip(self.segment.calls, self._bases, strict=False):
            args = table + 8 * base
            conditions = args + 8 * (HEADER_SLOTS + len(call.buffers) + len(call.dims))
            rows += _jumps(call.guards, conditions, len(rows) + num_rows(call))
            steps = 1 if call.steps is None else self._value(call.steps)
            body = [self._call_row(call, number, args) for number in range(len(call.stages))]
            if call.steps is None:
                rows += body
                continue
            slot = args + 8 * STEP_SLOT
            begin, end = len(rows), len(rows) + len(body) + 1
            rows.append([LOOP, end + 1, args, 0, 0, slot, steps, 0])
            rows += body
            rows.append([END, begin + 1, args, 0, 0, slot, steps, 0])
        # A side without calls that could fail in their place fails here.
        bases = self._bases[len(self.segment.calls) :]
        for code, (check, base) in enumerate(zip(self._failing, bases, strict=True)):
            rows += _jumps(check.guards, table + 8 * base, len(rows) + len(check.guards) + 1)
            rows.append([FAIL, 0, 0, -code - 1, 0, 0, 0, 0])
        return _words([word for row in rows for word in row]).reshape(-1, ROW_WORDS)

    def _call_row(self, call: KernelCall, number: int, args: int) -> list[int]:
        for code, check in enumerate(self._failing, start=1):
            if set(check.guards) <= set(call.guards):
                return [FAIL, 0, args, -code, 0, 0, 0, 0]
        first, stage = call.stages[0], call.stages[number]
        if not isinstance(first, StageCall) or not isinstance(stage, StageCall):
            raise InternalError("the segment was compiled for a GPU")
        iterations, grain = self._grain(stage)
        whole, least = self._grain(first)
        if number and least < whole:
            # What the threads that shared the first stage hold in their caches stays there.
            grain = 1
        return [CALL, self._address(call.kernel, stage.symbol), args, iterations, grain, 0, 0, 0]

    def _grain(self, stage: StageCall) -> tuple[int, int]:
        """The iterations of a stage, and how many of them are worth a thread."""
        iterations = max(0, self._value(stage.iterations))
        cost = max(1, self._value(stage.cost))
        return iterations, min(max(1, iterations), -(-iterations * MIN_PARALLEL_COST // cost))

    def error(self, status: int) -> Exception:
        """What went wrong in a run that left this status."""
        if status < 0:
            error = error_of(self._failing[-status - 1], self._sizes)
            return error or InternalError("a check fails and does not")
        return out_of_range(self.segment.calls[status - 1])

    def bind(self, context: Context, addresses: list[int]) -> None:
        """Writes the addresses of ``inputs`` and the outputs into the table."""
        table = context.table
        for slot, number in self._patches:
            table[slot] = addresses[number]


def out_of_range(call: KernelCall) -> OutOfRange:
    """What a call reports that met an index out of range."""
    return OutOfRange(
        "an index lies outside of the tensor it points into",
        node=" + ".join(call.sources),
        remedy="check the index inputs against the sizes of the data",
    )


def _words(values: list[int]) -> Words:
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError as error:
        raise OutOfMemory(
            "a size of the run exceeds 64 bits", remedy="use smaller inputs or a smaller batch"
        ) from error


def _jumps(guards: Sequence[Guard], conditions: int, behind: int) -> list[list[int]]:
    """Rows that jump unless all guards hold; ``conditions`` is where their addresses lie."""
    return [
        [SKIP, behind, conditions + 8 * number, int(guard.value), 0, 0, 0, 0]
        for number, guard in enumerate(guards)
    ]


def num_rows(call: KernelCall) -> int:
    """How many rows of the driver a call has, those of its guards and its loop included."""
    return len(call.guards) + len(call.stages) + (0 if call.steps is None else 2)


def _buffers(call: KernelCall) -> tuple[str, ...]:
    return (*call.buffers, *(guard.condition for guard in call.guards))


def segment_symbols(segment: Segment) -> tuple[str, ...]:
    """Names of all sizes that a plan of the segment depends on, sorted."""
    dims: list[Dim] = []
    for spec in (*segment.inputs, *segment.outputs, *segment.internal):
        dims.extend(spec.shape or ())
    dims.extend(dim for check in segment.checks for dim in check_dims(check))
    for call in segment.all_calls:
        dims.extend(call.dims)
        dims.extend(dim for stage in call.stages for dim in stage.sizes)
        if call.steps is not None:
            dims.append(call.steps)
    names: set[str] = set()
    for dim in dims:
        names |= dim.symbols
    return tuple(sorted(names))
