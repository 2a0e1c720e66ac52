"""The loop nest of one stage as code.

Input -> Output: a stage's nest and its schedule -> the body of ``void stage_K(ptr args, i64 lo,
i64 hi)``.
Guarantees: iterations ``lo..hi`` of one stage may run on any thread.
Not here: which stages there are, and the choice of schedules (generate, tactics).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product as cartesian

from tilewright.codegen.cpu.emit import I64, Builder, Value, index
from tilewright.codegen.cpu.evaluate import Evaluator
from tilewright.codegen.cpu.frame import Tail, Variant
from tilewright.codegen.cpu.layout import STEP_SLOT, ArgumentLayout
from tilewright.codegen.cpu.memory import store_element
from tilewright.codegen.cpu.prefetch import asked_ahead, lines_ahead
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Axis, Kernel, Store
from tilewright.kernel.nest import Nest, evaluated
from tilewright.kernel.schedule import Schedule
from tilewright.kernel.totals import total_parts

_FEW_ROWS = 4


class StageWriter:
    """Writes the loop nest of one stage."""

    def __init__(
        self,
        builder: Builder,
        kernel: Kernel,
        nest: Nest,
        schedule: Schedule,
        layout: ArgumentLayout,
    ) -> None:
        self.b = builder
        self.kernel = kernel
        self.nest = nest
        self.schedule = schedule
        self.types = {buffer.name: buffer.dtype for buffer in kernel.buffers}
        self.axes = {axis.name: axis for axis in nest.axes}
        ordered = [k for k, axis in enumerate(nest.axes) if axis.ordered]
        self.leading = nest.axes[: ordered[0]] if ordered else nest.axes
        self.trailing = nest.axes[ordered[0] :] if ordered else ()
        self.rows = [name for name in schedule.unroll if name != schedule.vector]
        shapes = {buffer.name: buffer.shape for buffer in kernel.buffers}
        extents = {axis.name: axis.extent for axis in nest.stage.axes}
        self.eval = Evaluator(
            builder,
            nest,
            layout,
            builder.params["args"],
            schedule,
            asked_ahead(nest, schedule, self.digits()),
            lines_ahead(nest, schedule, builder.target),
        )
        self.totals = [total_parts(store.value, shapes, extents) for store in nest.stage.stores]
        self.roots = [root for store in nest.stage.stores for root in evaluated(store)]
        # What a guard protects must not be computed before the guard is.
        self.early = [
            store.value if store.guard is None else store.guard for store in nest.stage.stores
        ]

    # --- the parallel iteration space ------------------------------------------------------------

    @property
    def group(self) -> int:
        """Elements of the vector axis that are computed together."""
        if self.schedule.vector is None:
            return 1
        return self.schedule.lanes * self.schedule.copies(self.schedule.vector)

    def digits(self) -> list[tuple[str, Dim]]:
        """Axis and count of each digit of an iteration number, the fastest last."""
        vector = self.schedule.vector
        outer = self.schedule.outer
        counts = {
            axis.name: axis.extent.ceildiv(self.schedule.copies(axis.name))
            for axis in self.leading
            if axis.name != vector
        }
        plain = [name for name in counts if name not in self.rows and name not in outer]
        result = [(name, counts[name]) for name in (*outer, *plain)]
        if vector is not None and self.schedule.chunk:
            step = self.group * self.schedule.chunk
            result.append((vector, self.axes[vector].extent.ceildiv(step)))
        inner = [name for name in self.rows if name not in outer]
        return result + [(name, counts[name]) for name in inner]

    def write(self) -> None:
        """Writes the function's body."""
        frame = self.eval.frame
        if self.kernel.steps is not None:
            frame.position[self.kernel.steps.name] = self.eval.slot(STEP_SLOT, I64)
        counts = [self._count(name, count) for name, count in self.digits()]
        self.eval.hoist(self.early, [()])
        lo, hi = self.b.params["lo"], self.b.params["hi"]
        inner = self._inner_digit(counts)
        if inner is not None:
            self._lines(lo, hi, counts, inner)
            return
        places = self._first_places(lo, counts) if self._counts_up(counts) else []
        with self.b.loop(lo, hi) as iteration, self.eval.scope():
            self._at(
                self._next_places(places, counts) if places else self._decode(iteration, counts)
            )

    def _lines(self, lo: Value, hi: Value, counts: Sequence[Value], inner: int) -> None:
        """Iterations whose other digits are equal, in a loop of their own."""
        size = self.b.intrinsic("smax", I64, [counts[inner], index(1)])
        last = self.b.udiv(self.b.add(hi, self.b.sub(size, index(1))), size)
        with self.b.loop(self.b.udiv(lo, size), last) as line:
            start = self.b.mul(line, size)
            begin = self.b.intrinsic("smax", I64, [self.b.sub(lo, start), index(0)])
            end = self.b.intrinsic("smin", I64, [self.b.sub(hi, start), size])
            digits = self._decode(line, counts[:inner])
            with self.b.loop(begin, end) as digit, self.eval.scope():
                self._at([*digits, digit, *(index(0) for _ in counts[inner + 1 :])])

    def _at(self, digits: Sequence[Value]) -> None:
        """What is computed at these digits."""
        starts: dict[str, Value] = {}
        for (name, _), digit in zip(self.digits(), digits, strict=True):
            if name == self.schedule.vector or name in self.rows:
                starts[name] = digit
            else:
                self.eval.frame.position[name] = digit
        self.eval.hoist(self.early, [()])
        self._row_blocks(starts, {}, {})

    def _count(self, name: str, count: Dim) -> Value:
        if count.is_const:
            return index(count.const)
        extent = self.eval.dim(self.axes[name].extent)
        step = self.schedule.unroll.get(name, 1) if name in self.rows else 1
        if name == self.schedule.vector:
            step = self.group * self.schedule.chunk
        return self.b.sdiv(self.b.add(extent, index(step - 1)), index(step))

    def _decode(self, iteration: Value, counts: Sequence[Value]) -> list[Value]:
        digits: list[Value] = []
        left = iteration
        for position in range(len(counts) - 1, -1, -1):
            count = counts[position]
            if position == 0:
                digits.append(left)
            elif count.const == 1:
                digits.append(index(0))
            else:
                digits.append(self.b.urem(left, count))
                left = self.b.udiv(left, count)
        return digits[::-1]

    def _counts_up(self, counts: Sequence[Value]) -> bool:
        """Whether digits are counted up, which keeps them, and no quotients, beside the sums.

        Counts that are not known are slow divisors. Where an iteration has no sums, it is so short
        that one would wait for the digits of another.
        """
        unknown = any(count.const is None for count in counts[1:])
        return unknown and bool(self.nest.reduce_axes)

    def _inner_digit(self, counts: Sequence[Value]) -> int | None:
        """The fastest digit that is a loop of its own, if any: where counts are not known, which
        are slow divisors, and iterations are short, for they have no sums."""
        if self.nest.reduce_axes or all(count.const is not None for count in counts[1:]):
            return None
        return max(number for number, count in enumerate(counts) if count.const != 1)

    def _first_places(self, first: Value, counts: Sequence[Value]) -> list[Value]:
        """Where the digits of the next iteration are kept; there may be none, and counts of 0."""
        places = [self.b.alloca(I64, align=8) for _ in counts]
        divisors = [self.b.intrinsic("smax", I64, [count, index(1)]) for count in counts]
        for place, digit in zip(places, self._decode(first, divisors), strict=True):
            self.b.store(digit, place)
        return places

    def _next_places(self, places: Sequence[Value], counts: Sequence[Value]) -> list[Value]:
        """The digits of an iteration; those of the one after it are kept in their place."""
        digits = [self.b.load(I64, place) for place in places]
        carry = index(1)
        for number in range(len(counts) - 1, -1, -1):
            following = self.b.add(digits[number], carry)
            if number:
                is_full = self.b.icmp("eq", following, counts[number])
                carry = self.b.zext(is_full, I64)
                following = self.b.select(is_full, index(0), following)
            self.b.store(following, places[number])
        return digits

    # --- rows ------------------------------------------------------------------------------------

    def _row_blocks(
        self, starts: dict[str, Value], begins: dict[str, Value], counts: dict[str, int]
    ) -> None:
        """Chooses how many rows of each unrolled axis are computed together, then writes them.

        A partial block of a known extent is one smaller block; of an unknown one, a few rows at a
        time, as long as there are as many, and single rows.
        """
        left = [name for name in self.rows if name not in counts]
        if not left:
            vector = self.schedule.vector
            unroll = dict(counts)
            if vector is not None:
                unroll[vector] = self.schedule.copies(vector)
            self._rows(begins, unroll, starts)
            return
        name = left[0]
        count, extent = self.schedule.unroll[name], self.axes[name].extent
        begin = self.b.mul(starts[name], index(count))
        whole = {**begins, name: begin}
        rest = extent.const % count if extent.is_const else -1
        if rest == 0:
            self._row_blocks(starts, whole, {**counts, name: count})
            return
        limit = self.eval.dim(extent)
        end = self.b.add(begin, index(count))
        full = self.b.icmp("sle", end, limit)
        if not (extent.is_const and extent.const < count):
            with self.b.when(full):
                self._row_blocks(starts, whole, {**counts, name: count})
        with self.b.when(self.b.not_(full)):
            if rest > 0:
                self._row_blocks(starts, whole, {**counts, name: rest})
            else:
                self._partial(name, begin, limit, starts, begins, counts)

    def _partial(
        self,
        name: str,
        begin: Value,
        limit: Value,
        starts: dict[str, Value],
        begins: dict[str, Value],
        counts: dict[str, int],
    ) -> None:
        """Rows ``begin .. limit`` of an axis of unknown extent, fewer than a block.

        One row alone waits for each of its sums; a few keep the multipliers busy. The last few
        begin early enough to be as many, where a row may be computed twice. Each size is a copy of
        the code, so two axes of unknown extent have only single rows.
        """
        unknown = [axis for axis in self.rows if not self.axes[axis].extent.is_const]
        if self.schedule.unroll[name] > _FEW_ROWS and unknown == [name]:
            left = self.b.sub(limit, begin)
            few = self.b.mul(self.b.sdiv(left, index(_FEW_ROWS)), index(_FEW_ROWS))
            last = self.b.sub(limit, index(_FEW_ROWS))
            middle = self.b.add(begin, few)
            if not any(self.eval.reads_stored(root) for root in self.roots):
                middle = self.b.select(self.b.icmp("sgt", few, index(0)), limit, begin)
            with self.b.loop(begin, middle, _FEW_ROWS) as row:
                row = self.b.intrinsic("smin", I64, [row, last])
                self._row_blocks(starts, {**begins, name: row}, {**counts, name: _FEW_ROWS})
            begin = middle
        with self.b.loop(begin, limit) as row:
            self._row_blocks(starts, {**begins, name: row}, {**counts, name: 1})

    def _rows(
        self, begins: dict[str, Value], unroll: dict[str, int], starts: dict[str, Value]
    ) -> None:
        """Everything for one block of rows."""
        frame = self.eval.frame
        order = [*self.rows, *([self.schedule.vector] if self.schedule.vector else [])]
        counts = [unroll.get(name, 1) for name in order]
        rows = list(cartesian(*(range(c) for c in counts[: len(self.rows)])))
        with self.eval.scope():
            for place, name in enumerate(self.rows):
                frame.position[name] = begins[name]
                frame.unrolled[name] = (place, 1)
                frame.copies[name] = counts[place]
            self.eval.hoist(self.early, rows)
            self._vectors(starts, counts[-1] if self.schedule.vector else 1, rows)
            for name in self.rows:
                del frame.position[name], frame.unrolled[name], frame.copies[name]

    # --- vectors ---------------------------------------------------------------------------------

    def _vectors(self, starts: dict[str, Value], copies: int, rows: Sequence[Variant]) -> None:
        vector = self.schedule.vector
        if vector is None:
            self._trailing(list(self.trailing), rows)
            return
        axis = self.axes[vector]
        extent = self.eval.dim(axis.extent)
        step = self.schedule.lanes * copies
        if self.schedule.chunk:
            first = self.b.mul(starts[vector], index(step * self.schedule.chunk))
            last = self.b.add(first, index(step * self.schedule.chunk))
            last = self.b.select(self.b.icmp("slt", last, extent), last, extent)
        else:
            first, last = index(0), extent
        whole = axis.extent.is_const and axis.extent.const % step == 0
        body = self._group(axis, copies, rows)
        if self.schedule.chunk == 1:
            self._one_group(axis, first, extent, step, whole, body)
            return
        span = self.b.sub(last, first)
        middle = self.b.add(first, self.b.mul(self.b.sdiv(span, index(step)), index(step)))
        if not (axis.extent.is_const and axis.extent.const < step):
            with self.b.loop(first, middle, step) as start:
                body(start, None)
        if not whole:
            with self.b.when(self.b.icmp("slt", middle, last)):
                body(middle, self.b.sub(last, middle))

    def _one_group(
        self,
        axis: Axis,
        first: Value,
        extent: Value,
        step: int,
        whole: bool,
        body: Callable[[Value, Value | None], None],
    ) -> None:
        left = self.b.sub(extent, first)
        if whole:
            body(first, None)
            return
        if axis.extent.is_const and axis.extent.const < step:
            body(first, left)
            return
        fits = self.b.icmp("sge", left, index(step))
        with self.b.when(fits):
            body(first, None)
        with self.b.when(self.b.not_(fits)):
            body(first, left)

    def _group(
        self, axis: Axis, copies: int, rows: Sequence[Variant]
    ) -> Callable[[Value, Value | None], None]:
        """Writes one group of vectors starting at an index, all lanes or only ``left`` of them."""
        frame, lanes = self.eval.frame, self.schedule.lanes

        def write(start: Value, left: Value | None) -> None:
            used = copies
            if left is not None and axis.extent.is_const:
                used = -(-(axis.extent.const % (lanes * copies)) // lanes)
            with self.eval.scope():
                frame.vector, frame.lanes = axis.name, lanes
                frame.position[axis.name] = start
                frame.unrolled[axis.name] = (len(self.rows), lanes)
                frame.copies[axis.name] = used
                if left is not None:
                    partial = range(used)
                    if axis.extent.is_const:
                        # Only the last vector of a known extent has idle lanes, if any.
                        partial = range(used - 1, used) if axis.extent.const % lanes else range(0)
                    for copy in partial:
                        mask = self.eval.lane_mask(left, copy * lanes, lanes)
                        known = axis.extent.const % lanes if axis.extent.is_const else None
                        frame.tails[copy] = Tail(mask, known)
                self._stores([(*row, copy) for row in rows for copy in range(used)])
                frame.tails = {}
                frame.vector, frame.lanes = None, 1
                del frame.position[axis.name], frame.unrolled[axis.name], frame.copies[axis.name]

        return write

    # --- points ----------------------------------------------------------------------------------

    def _trailing(self, axes: list[Axis], rows: Sequence[Variant]) -> None:
        """Loops over ordered axes and what stands inside of them."""
        if not axes:
            with self.eval.scope():
                self._stores(rows)
            return
        axis = axes[0]
        with self.b.loop(0, self.eval.dim(axis.extent)) as counter, self.eval.scope():
            self.eval.frame.position[axis.name] = counter
            self.eval.hoist(self.early, rows)
            self._trailing(axes[1:], rows)
            del self.eval.frame.position[axis.name]

    def _stores(self, variants: Sequence[Variant]) -> None:
        shared = not any(self.eval.reads_stored(root) for root in self.roots)
        for number, store in enumerate(self.nest.stage.stores):
            if shared:
                for variant in variants:
                    self._store(number, store, variant)
                continue
            with self.eval.scope():
                for variant in variants:
                    self._store(number, store, variant)

    def _store(self, number: int, store: Store, variant: Variant) -> None:
        ev = self.eval
        if store.guard is None:
            self._write(number, store, variant)
            return
        guard = ev.value(store.guard, variant)
        for part in self.totals[number]:
            ev.value(part, variant)  # shared by variants and stores; the guard decides on stores
        if ev.frame.vector is None:
            with self.b.when(guard), ev.scope():
                ev.frame.branches += 1
                self._write(number, store, variant)
                ev.frame.branches -= 1
            return
        ev.frame.guard = ev.splat(guard)
        with ev.scope():
            self._write(number, store, variant)
        ev.frame.guard = None

    def _write(self, number: int, store: Store, variant: Variant) -> None:
        ev = self.eval
        value = ev.splat(ev.value(store.value, variant))
        where, stride = ev.place(self.nest.stores[number], -1 - number, variant)
        store_element(
            self.b,
            ev.pointer(store.buffer),
            where,
            value,
            self.types[store.buffer],
            stride=stride if ev.frame.vector else 1,
            mask=ev.mask(variant) if ev.frame.vector else None,
            often_whole=ev.frame.guard is not None and not ev.frame.tails,
            active=ev.active(variant),
        )
