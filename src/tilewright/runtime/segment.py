"""A segment made ready for one set of sizes: offsets, argument blocks and the rows of the native
driver.

Input -> Output: a ``SegmentLayout``, sizes of its symbols -> ``SegmentPlan``; a plan leases
``Context``s.
Guarantees: a context (arena, argument table) is used by one run at a time; the bytes needed are
checked before they are allocated.
Not here: what does not depend on sizes, the format of rows (segment_layout).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.core.errors import InternalError, OutOfMemory, OutOfRange
from tilewright.runtime.arena import ALIGNMENT, Lifetime
from tilewright.runtime.checks import error_of, failing, shape_of
from tilewright.runtime.cpu.arena_pool import ArenaPool, Block
from tilewright.runtime.program import KernelCall
from tilewright.runtime.segment_layout import (
    GRAIN,
    ITERATIONS,
    ROW_WORDS,
    SegmentLayout,
    Words,
    as_numbers,
)


@dataclass(slots=True)
class Context:
    """What one run writes to: the arena, the argument table, the rows and the status words.

    The argument table has addresses in a block at ``base``. Between runs others may use the block,
    and the context has none, unless its plan keeps memory.
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
        offsets: where each buffer in the arena lies.
        arena_bytes: size of the arena of one context.
        inputs: what ``bind`` expects before the outputs; the addresses of constants are fixed.
        output_shapes: shape of each output.
    """

    def __init__(
        self, layout: SegmentLayout, sizes: Mapping[str, int], arenas: ArenaPool | None = None
    ) -> None:
        self._sizes = sizes
        self._arenas = ArenaPool() if arenas is None else arenas
        values = layout.dims.evaluate(sizes)
        failed = failing(layout.segment.checks, sizes, lambda dim: values[layout.dims.slot(dim)])
        if failed:
            layout = layout.with_failing(failed)
            values = layout.dims.evaluate(sizes)
        self._layout = layout
        self.segment, self.inputs = layout.segment, layout.inputs
        self.output_shapes = [tuple(values[slot] for slot in own) for own in layout.output_shapes]
        self._refuse_negative(values)
        self._num_bytes = [values[slot] for slot in layout.num_bytes]
        places, self.arena_bytes = layout.timeline.place(self._num_bytes)
        self.offsets = {
            name: place for (name, _, _), place in zip(layout.buffers, places, strict=True)
        }
        self._table, self._rows = layout.table.copy(), layout.rows.copy()
        try:
            numbers = as_numbers(values)
            layout.sizes.fill(self._table, numbers)
            layout.arena.fill(self._table, as_numbers(places))
            layout.row_sizes.fill(self._rows, numbers)
            layout.stages.fill(self._rows, numbers)
        except OverflowError as error:
            raise OutOfMemory(
                "a size of the run exceeds 64 bits", remedy="use smaller inputs or a smaller batch"
            ) from error
        self._keep_parts()
        self._idle: list[Context] = []
        self._keeps_memory = False

    def _refuse_negative(self, values: list[int]) -> None:
        """No size of an output, or of a buffer that is certainly used, is below zero."""
        sizes = [size for shape in self.output_shapes for size in shape]
        sizes += [values[slot] for slot in self._layout.certain_sizes]
        if min(sizes, default=0) < 0:
            for spec in (*self.segment.outputs, *self._layout.certain):
                shape_of(spec, self._sizes)

    def _keep_parts(self) -> None:
        """What the threads that shared the first stage hold in their caches stays there."""
        later, first = self._layout.shared.T
        rows = self._rows.reshape(-1, ROW_WORDS)
        split = rows[first, GRAIN] < rows[first, ITERATIONS]
        rows[later[split], GRAIN] = 1

    @property
    def lifetimes(self) -> list[Lifetime]:
        """Of the buffers in the arena; ``offsets`` says where they lie."""
        buffers = zip(self._layout.buffers, self._num_bytes, strict=True)
        return [Lifetime(name, size, first, last) for (name, first, last), size in buffers]

    @property
    def depends_on_sizes(self) -> bool:
        """Whether the segment has plans for other sizes."""
        return bool(self._layout.dims.names)

    def keep_memory(self) -> None:
        """Lets contexts keep their memory between runs, as nothing else would use it."""
        self._keeps_memory = True

    def lease(self) -> Context:
        """A context for one run; give it back with ``release``."""
        try:
            context = self._idle.pop()
        except IndexError:
            return self._make_context(self._arenas.take(max(self.arena_bytes, ALIGNMENT), 0))
        if context.block is not None:
            return context
        needed = max(self.arena_bytes, ALIGNMENT)
        context.block = block = self._arenas.take(needed, context.base)
        if block.address != context.base:
            context.table[self._layout.arena.places] += block.address - context.base
            context.base = block.address
        return context

    def release(self, context: Context) -> None:
        """Makes a context, and its memory, available to later runs."""
        if context.block is None:
            raise InternalError("a context is released twice")
        if not self._keeps_memory:
            self._arenas.give(context.block)
            context.block = None
        self._idle.append(context)

    def _make_context(self, block: Block) -> Context:
        layout, status = self._layout, np.zeros(2, dtype=np.int64)
        table, rows = self._table.copy(), self._rows.copy()
        status_address = status.ctypes.data
        table[layout.arena.places] += block.address
        table[layout.heads] = status_address
        rows[layout.row_tied] += table.ctypes.data
        return Context(
            block=block,
            base=block.address,
            table=table,
            rows=rows.reshape(-1, ROW_WORDS),
            status=status,
            rows_address=rows.ctypes.data,
            status_address=status_address,
        )

    def error(self, status: int) -> Exception:
        """What went wrong in a run that left this status."""
        if status < 0:
            error = error_of(self._layout.failing[-status - 1], self._sizes)
            return error or InternalError("a check fails and does not")
        return out_of_range(self.segment.calls[status - 1])

    def bind(self, context: Context, addresses: list[int]) -> None:
        """Writes the addresses of ``inputs`` and the outputs into the table."""
        table = context.table
        for slot, number in self._layout.patches:
            table[slot] = addresses[number]


def out_of_range(call: KernelCall) -> OutOfRange:
    """What a call reports that met an index out of range."""
    return OutOfRange(
        "an index lies outside of the tensor it points into",
        node=" + ".join(call.sources),
        remedy="check the index inputs against the sizes of the data",
    )
