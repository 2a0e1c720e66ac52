"""What the plans of a segment have in common, whatever the sizes.

Input -> Output: a ``Segment``, addresses of kernels and constants -> a ``SegmentLayout``: the
argument table and the rows of the native driver with holes, and which slots of a ``DimProgram``
fill them.
Guarantees: a plan evaluates every size once, in one pass, and writes arrays.
Row format of the driver (8 words): kind, function or target row, arguments, iterations, grain,
step slot, steps, 0. A SKIP row has the slot of its condition for arguments and the expected value
for iterations; a FAIL row has its status there.
Not here: sizes, memory (segment).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.dim_program import DimProgram
from tilewright.core.errors import InternalError
from tilewright.core.shape import Dim
from tilewright.runtime.arena import Timeline
from tilewright.runtime.checks import check_dims
from tilewright.runtime.program import (
    Check,
    Guard,
    KernelCall,
    Segment,
    StageCall,
    TensorSpec,
)

HEADER_SLOTS = 3  # status address, call number, step: see codegen.cpu.layout
STEP_SLOT = 2
ROW_WORDS = 8
TARGET, ARGS, ITERATIONS, GRAIN, STEP, STEPS = range(1, 7)
CALL, LOOP, END, SKIP, FAIL = range(5)
# A stage is split over threads when each part costs at least this many operations (1 us).
MIN_PARALLEL_COST = 100_000
_MOST = np.iinfo(np.int64).max

Words = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


def as_numbers(values: Sequence[int]) -> Array:
    """Values of a run as an array: of words, or of objects where one has more than 64 bits."""
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array(values, dtype=object)


class Holes:
    """Places in an array of words that numbers of a run go to.

    Args:
        pairs: (place, which number goes there).
    """

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.places, self._numbers = np.array(pairs, dtype=np.intp).reshape(-1, 2).T

    def fill(self, words: Words, numbers: Array) -> None:
        """Writes a number of those that ``as_numbers`` made to each place.

        Raises:
            OverflowError: one has more than 64 bits.
        """
        words[self.places] = numbers[self._numbers]


class Stages:
    """How often the stages of a segment run, and how many of these times are worth a thread.

    Args:
        stages: the row of each, the slots of its iterations and of the cost of all of them.
    """

    def __init__(self, stages: Sequence[tuple[int, int, int]]) -> None:
        self._rows, *self._slots = np.array(stages, dtype=np.intp).reshape(-1, 3).T

    def fill(self, rows: Words, numbers: Array) -> None:
        """Writes iterations and grains.

        Args:
            rows: flat.
            numbers: those that ``as_numbers`` made.

        Raises:
            OverflowError: there are more than 2^63 iterations.
        """
        given, costs = (numbers[slots] for slots in self._slots)
        iterations = np.maximum(given, 0).astype(np.int64)
        costs = np.clip(costs, 1, _MOST).astype(np.int64)  # a higher one means the same
        few = np.minimum(iterations, _MOST // MIN_PARALLEL_COST)
        worth = -(-few * MIN_PARALLEL_COST // costs)
        rows = rows.reshape(-1, ROW_WORDS)
        rows[self._rows, ITERATIONS] = iterations
        rows[self._rows, GRAIN] = np.minimum(np.maximum(iterations, 1), worth)


class SegmentLayout:
    """A segment with everything known but sizes.

    Args:
        segment: what is run.
        address: of a kernel's function; None of a segment that is laid out for its memory alone.
        constants: arrays by name; they stay where they are.
        failing: checks of which it is known that they fail; calls behind their guards fail.

    Attributes:
        dims: computes every size; slots below are its.
        inputs: what a run gives; ``external`` numbers them and the outputs.
        output_shapes: slots of each output's shape.
        certain: the buffers that every run uses.
        buffers: the buffers in the arena, with their first and last call.
        num_bytes: slots of the sizes of ``buffers``.
        timeline: of ``buffers``.
        table: the argument table, but for ``sizes`` (slots), ``arena`` (numbers of ``buffers``),
            ``patches`` (place, number of the array) and ``heads`` (places of the status address).
        rows: flat, but for ``row_sizes`` (slots), ``stages``, ``row_tied`` (places to which the
            address of the table is added) and ``shared`` (row of a later stage, of the first one).
    """

    def __init__(
        self,
        segment: Segment,
        address: Callable[[str, str], int] | None,
        constants: Mapping[str, Array] | None = None,
        failing: Sequence[Check] = (),
    ) -> None:
        self.segment = segment
        self.failing = failing
        self._address = address
        self._constants = constants or {}
        self.dims = DimProgram()
        self.inputs = [spec for spec in segment.inputs if spec.name not in self._constants]
        external = (spec.name for spec in (*self.inputs, *segment.outputs))
        self._external = {name: number for number, name in enumerate(external)}
        self.output_shapes = [self._slots(spec.shape or ()) for spec in segment.outputs]
        for check in segment.checks:
            self._slots(check_dims(check))
        self._lay_out_memory()
        self._build_table()
        self._build_rows()

    def with_failing(self, failing: Sequence[Check]) -> SegmentLayout:
        """The layout for sizes with which these checks fail."""
        return SegmentLayout(self.segment, self._address, self._constants, failing)

    def arena_bytes(self, sizes: Mapping[str, int]) -> int:
        """Size of the arena of a run of these sizes."""
        values = self.dims.evaluate(sizes)
        return self.timeline.place([max(0, values[slot]) for slot in self.num_bytes])[1]

    def output_bytes(self, sizes: Mapping[str, int]) -> list[int]:
        """Size of each output of a run of these sizes."""
        values, specs = self.dims.evaluate(sizes), self.segment.outputs
        shapes = [[max(0, values[slot]) for slot in own] for own in self.output_shapes]
        return [
            math.prod(shape) * spec.dtype.numpy.itemsize
            for shape, spec in zip(shapes, specs, strict=True)
        ]

    def _slots(self, dims: Sequence[Dim]) -> list[int]:
        return [self.dims.slot(dim) for dim in dims]

    def _root(self, name: str) -> str:
        while name in self.segment.aliases:
            name = self.segment.aliases[name]
        return name

    # --- memory ----------------------------------------------------------------------------------

    def _lay_out_memory(self) -> None:
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        certain: set[str] = set()
        for number, call in enumerate(self.segment.calls):
            for name in map(self._root, _buffers(call)):
                first.setdefault(name, number)
                last[name] = number
                if not call.guards:
                    certain.add(name)
        for check in self.failing:
            for guard in check.guards:
                last[self._root(guard.condition)] = len(self.segment.calls) - 1
        used = [spec for spec in self.segment.internal if spec.name in first]
        self.certain = [spec for spec in used if spec.name in certain]
        self.certain_sizes = sorted(
            {s for spec in self.certain for s in self._slots(spec.shape or ())}
        )
        self.buffers = [(spec.name, first[spec.name], last[spec.name]) for spec in used]
        self.num_bytes = [self._num_bytes(spec, spec.name in certain) for spec in used]
        self.timeline = Timeline(self.buffers)
        self._numbers = {spec.name: number for number, spec in enumerate(used)}

    def _num_bytes(self, spec: TensorSpec, is_certain: bool) -> int:
        """The slot of a buffer's size; a negative one of a buffer that may not be used is 0."""
        total = self.dims.constant(spec.dtype.storage_bytes)
        for slot in self._slots(spec.shape or ()):
            size = slot if is_certain else self.dims.apply("max", slot, self.dims.constant(0))
            total = self.dims.apply("mul", total, size)
        return total

    # --- the argument table ----------------------------------------------------------------------

    def _build_table(self) -> None:
        words: list[int] = []
        sizes: list[tuple[int, int]] = []
        self._arena: list[tuple[int, int]] = []
        self.patches: list[tuple[int, int]] = []
        self.heads: list[int] = []
        for number, call in enumerate(self.segment.calls):
            self.heads.append(len(words))
            words += [0, number, 0]
            for name in call.buffers:
                self._add_address(words, name)
            for slot in self._slots(call.dims):
                sizes.append((len(words), slot))
                words.append(0)
            for guard in call.guards:
                self._add_address(words, guard.condition)
        self._tails: list[int] = []
        for check in self.failing:
            self._tails.append(len(words))
            for guard in check.guards:
                self._add_address(words, guard.condition)
        self.table = np.array(words, dtype=np.int64)
        self.sizes, self.arena = Holes(sizes), Holes(self._arena)

    def _add_address(self, words: list[int], name: str) -> None:
        root, place = self._root(name), len(words)
        words.append(0)
        if root in self._numbers:
            self._arena.append((place, self._numbers[root]))
        elif root in self._constants:
            words[place] = self._constants[root].ctypes.data
        else:
            self.patches.append((place, self._external[root]))

    # --- rows ------------------------------------------------------------------------------------

    def _build_rows(self) -> None:
        self._rows: list[list[int]] = []
        self._row_sizes: list[tuple[int, int]] = []
        self._stages: list[tuple[int, int, int]] = []
        self._tied: list[int] = []
        self._shared: list[tuple[int, int]] = []
        for call, head in zip(self.segment.calls, self.heads, strict=True):
            if self._address is not None:  # else nothing is to be run, perhaps of another device
                self._add_call(call, 8 * head)
        # A side without calls that could fail in their place fails here.
        for code, (check, tail) in enumerate(zip(self.failing, self._tails, strict=True), start=1):
            self._add_jumps(check.guards, 8 * tail, len(self._rows) + len(check.guards) + 1)
            self._add_row([FAIL, 0, 0, -code, 0, 0, 0, 0])
        self.rows = np.array(self._rows, dtype=np.int64).reshape(-1)
        self.row_sizes, self.stages = Holes(self._row_sizes), Stages(self._stages)
        self.row_tied = np.array(self._tied, dtype=np.intp)
        self.shared = np.array(self._shared, dtype=np.intp).reshape(-1, 2)

    def _add_row(self, words: list[int], tied: Sequence[int] = ()) -> int:
        """Adds a row; to the words ``tied`` the address of the table is added."""
        number = len(self._rows)
        self._tied += [ROW_WORDS * number + word for word in tied]
        self._rows.append(words)
        return number

    def _add_jumps(self, guards: Sequence[Guard], conditions: int, behind: int) -> None:
        """Rows that jump unless all guards hold; ``conditions`` is where their addresses lie."""
        for number, guard in enumerate(guards):
            row = [SKIP, behind, conditions + 8 * number, int(guard.value), 0, 0, 0, 0]
            self._add_row(row, [ARGS])

    def _add_call(self, call: KernelCall, args: int) -> None:
        conditions = args + 8 * (HEADER_SLOTS + len(call.buffers) + len(call.dims))
        self._add_jumps(call.guards, conditions, len(self._rows) + num_rows(call))
        if call.steps is None:
            self._add_stages(call, args)
            return
        slot, begin = args + 8 * STEP_SLOT, len(self._rows)
        end = begin + len(call.stages) + 1
        self._add_loop([LOOP, end + 1, args, 0, 0, slot, 0, 0], call.steps)
        self._add_stages(call, args)
        self._add_loop([END, begin + 1, args, 0, 0, slot, 0, 0], call.steps)

    def _add_loop(self, words: list[int], steps: Dim) -> None:
        row = self._add_row(words, [ARGS, STEP])
        self._row_sizes.append((ROW_WORDS * row + STEPS, self.dims.slot(steps)))

    def _add_stages(self, call: KernelCall, args: int) -> None:
        for code, check in enumerate(self.failing, start=1):
            if set(check.guards) <= set(call.guards):
                for _ in call.stages:
                    self._add_row([FAIL, 0, args, -code, 0, 0, 0, 0], [ARGS])
                return
        first = len(self._rows)
        for stage in call.stages:
            if not isinstance(stage, StageCall):
                raise InternalError("the segment was compiled for a GPU")
            function = 0 if self._address is None else self._address(call.kernel, stage.symbol)
            row = self._add_row([CALL, function, args, 0, 0, 0, 0, 0], [ARGS])
            slots = self.dims.slot(stage.iterations), self.dims.slot(stage.cost)
            self._stages.append((row, *slots))
            if row > first:
                self._shared.append((row, first))


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
