"""Reductions to loops, all variants of a register tile in one.

Input -> Output: a ``Reduce`` and a variant -> its value, remembered for every variant that it
distinguishes.
Guarantees: products are fused into sums; lanes run along the reduction where no vector axis does
and memory is contiguous; long sums add up in blocks, so that their error hardly grows with their
length.
Not here: other expressions (evaluate).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tilewright.codegen.cpu.convert import emit_constant, register_type
from tilewright.codegen.cpu.dots import Dot, accumulate, dot_of
from tilewright.codegen.cpu.emit import Value, index
from tilewright.codegen.cpu.frame import Variant
from tilewright.codegen.cpu.scalar import emit_op
from tilewright.core.errors import InternalError
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Axis, Call, Expr, Load, Reduce, identity_of, walk

if TYPE_CHECKING:
    from tilewright.codegen.cpu.evaluate import Evaluator

ONE = Dim.of(1)
_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}
_BLOCK = 512  # elements that one accumulator of a plain sum takes
_PARTS = 4  # accumulators of a plain sum
_STEPS = 128  # vectors along the reduction that one accumulator takes


class Reducer:
    """Evaluates the reductions of one evaluator."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.ev = evaluator

    def reduce(self, expr: Reduce, variant: Variant) -> None:
        """Computes a reduction for every variant that it distinguishes."""
        depends = self.ev.nest.depends(expr)
        variants = [variant]
        if self.ev.frame.guard is None and not self.ev.frame.branches:
            variants = self._all_variants(depends, variant)
        axes = self.ev.nest.reduce_axes[id(expr)]
        vector = self.ev.is_vector(expr)
        if self.ev.frame.vector is None and self.ev.reduce_lanes > 1:
            inner = self._contiguous(expr, axes)
            if inner is not None:
                self._vector_reduce(expr, axes, inner, variants)
                return
        lanes = self.ev.frame.lanes if vector else 1
        kind = register_type(expr.dtype, lanes)
        start = emit_constant(identity_of(expr.combiner, expr.dtype), expr.dtype, kind.lanes)
        cells = [self.ev.b.alloca(kind) for _ in variants]
        for cell in cells:
            self.ev.b.store(start, cell)
        self.ev.hoist([expr.body], variants)
        dot = self._dot(expr) if vector else None

        def innermost() -> None:
            for one, cell in zip(variants, cells, strict=True):
                self._add(expr, one, cell, lanes)

        if dot is not None:
            self._dots(expr, dot, axes[:-1], variants, cells)
        elif _is_long_sum(expr, axes) and len(variants) <= 2:
            inner = axes[-1]
            self._loops(
                axes[:-1],
                lambda: self._blocks(expr, inner, variants, cells, lanes),
                expr.body,
                variants,
            )
        elif (cut := _cut(expr, axes)) is not None:
            self._in_blocks(expr, axes, cut, variants, cells, lanes)
        else:
            self._loops(axes, innermost, expr.body, variants)
        for one, cell in zip(variants, cells, strict=True):
            key = (id(expr), *self.ev.project(depends, one))
            self.ev.remember(key, self.ev.b.load(kind, cell))

    def _dot(self, expr: Reduce) -> Dot | None:
        """The dot product of bytes that a reduction is for whole vectors."""
        frame = self.ev.frame
        if frame.vector is None or frame.tails:
            return None
        return dot_of(self.ev.nest, expr, frame.vector)

    def _dots(
        self,
        expr: Reduce,
        dot: Dot,
        axes: tuple[Axis, ...],
        variants: Sequence[Variant],
        cells: Sequence[Value],
    ) -> None:
        """Adds dot products up; both operands are read from byte 0 of the innermost axis on."""
        b = self.ev.b
        kind = register_type(expr.dtype, self.ev.frame.lanes)

        def innermost() -> None:
            for one, cell in zip(variants, cells, strict=True):
                b.store(accumulate(self.ev, dot, b.load(kind, cell), one), cell)

        self.ev.frame.position[dot.axis] = index(0)
        self._loops(axes, innermost, expr.body, variants)
        del self.ev.frame.position[dot.axis]

    def _all_variants(self, depends: frozenset[str], like: Variant) -> list[Variant]:
        variants: list[Variant] = [like]
        for axis, (place, _) in self.ev.frame.unrolled.items():
            if axis in depends:
                copies = self.ev.frame.copies[axis]
                variants = [
                    (*one[:place], copy, *one[place + 1 :])
                    for one in variants
                    for copy in range(copies)
                ]
        return variants

    def _loops(
        self,
        axes: tuple[Axis, ...],
        body: Callable[[], None],
        expr: Expr,
        variants: Sequence[Variant],
    ) -> None:
        if not axes:
            with self.ev.scope():
                body()
            return
        axis, rest = axes[0], axes[1:]
        if not rest and axis.extent.is_const:
            self._steps(axis, (index(0), self.ev.dim(axis.extent)), axis.extent.const, body)
            return
        with self.ev.b.loop(0, self.ev.dim(axis.extent)) as counter, self.ev.scope():
            self.ev.frame.position[axis.name] = counter
            if rest:
                self.ev.hoist([expr], variants)
            self._loops(rest, body, expr, variants)
            del self.ev.frame.position[axis.name]

    def _steps(
        self, axis: Axis, bounds: tuple[Value, Value], count: int, body: Callable[[], None]
    ) -> None:
        """The innermost loop, several steps in a round if they divide the number of steps."""
        depth = next(d for d in (self.ev.depth, 2, 1) if d <= self.ev.depth and count % d == 0)
        with self.ev.b.loop(*bounds, depth) as counter:
            for step in range(depth):
                with self.ev.scope():
                    self.ev.frame.position[axis.name] = self.ev.b.add(counter, index(step))
                    body()
        del self.ev.frame.position[axis.name]

    def _add(self, expr: Reduce, variant: Variant, cell: Value, lanes: int) -> None:
        total = self.ev.b.load(register_type(expr.dtype, lanes), cell)
        self.ev.b.store(self._accumulate(expr, total, expr.body, variant, lanes), cell)

    def _in_blocks(
        self,
        expr: Reduce,
        axes: tuple[Axis, ...],
        cut: tuple[int, int],
        variants: Sequence[Variant],
        cells: Sequence[Value],
        lanes: int,
    ) -> None:
        """A long sum of products: the cells take a block, totals in memory take the cells."""
        ev, b = self.ev, self.ev.b
        place, size = cut
        axis, rest = axes[place], axes[place + 1 :]
        totals = _Totals(ev, expr, lanes, cells)

        def innermost() -> None:
            for one, cell in zip(variants, cells, strict=True):
                self._add(expr, one, cell, lanes)

        def blocks() -> None:
            extent = ev.dim(axis.extent)
            with b.loop(0, extent, size) as first, ev.scope():
                end = b.add(first, index(size))
                last = b.select(b.icmp("slt", end, extent), end, extent)
                if rest or not axis.extent.is_const:
                    with b.loop(first, last) as counter, ev.scope():
                        ev.frame.position[axis.name] = counter
                        ev.hoist([expr.body], variants)
                        self._loops(rest, innermost, expr.body, variants)
                        del ev.frame.position[axis.name]
                else:
                    # Blocks, and what is left behind the last whole one, are multiples of this.
                    count = math.gcd(axis.extent.const, size)
                    self._steps(axis, (first, last), count, innermost)
                totals.take()

        self._loops(axes[:place], blocks, expr.body, variants)
        totals.give()

    def _blocks(
        self,
        expr: Reduce,
        inner: Axis,
        variants: Sequence[Variant],
        cells: Sequence[Value],
        lanes: int,
    ) -> None:
        """Adds one run of the innermost axis to the totals, block by block."""
        extent = self.ev.dim(inner.extent)
        if inner.extent.is_const and inner.extent.const <= _BLOCK:
            self._block(expr, inner, (index(0), extent), variants, cells, lanes)
            return
        b = self.ev.b
        with b.loop(0, extent, _BLOCK) as first, self.ev.scope():
            end = b.add(first, index(_BLOCK))
            last = b.select(b.icmp("slt", end, extent), end, extent)
            self._block(expr, inner, (first, last), variants, cells, lanes)

    def _block(
        self,
        expr: Reduce,
        inner: Axis,
        bounds: tuple[Value, Value],
        variants: Sequence[Variant],
        cells: Sequence[Value],
        lanes: int,
    ) -> None:
        ev, b = self.ev, self.ev.b
        kind = register_type(expr.dtype, lanes)
        zero = emit_constant(0, expr.dtype, lanes)
        parts = [[b.alloca(kind) for _ in range(_PARTS)] for _ in variants]
        for row in parts:
            for part in row:
                b.store(zero, part)
        first, last = bounds
        span = b.sub(last, first)
        whole = b.add(first, b.mul(b.sdiv(span, index(_PARTS)), index(_PARTS)))
        ev.frame.unrolled[inner.name] = (len(variants[0]), 1)
        ev.frame.copies[inner.name] = _PARTS
        for low, high, step in ((first, whole, _PARTS), (whole, last, 1)):
            with b.loop(low, high, step) as counter, ev.scope():
                ev.frame.position[inner.name] = counter
                for copy in range(step):
                    for one, row in zip(variants, parts, strict=True):
                        self._add(expr, (*one, copy), row[copy], lanes)
        del ev.frame.position[inner.name]
        del ev.frame.unrolled[inner.name]
        del ev.frame.copies[inner.name]
        for row, cell in zip(parts, cells, strict=True):
            values = [b.load(kind, part) for part in row]
            while len(values) > 1:
                values = [
                    emit_op(b, "add", [x, y], expr.dtype)
                    for x, y in zip(values[::2], values[1::2], strict=True)
                ]
            b.store(emit_op(b, "add", [b.load(kind, cell), values[0]], expr.dtype), cell)

    def _accumulate(
        self, expr: Reduce, total: Value, body: Expr, variant: Variant, lanes: int
    ) -> Value:
        if (
            expr.combiner == "sum"
            and expr.dtype.is_float
            and isinstance(body, Call)
            and body.op == "mul"
            and self.ev.b.target.has_fma
        ):
            left, right = (self.ev.b.splat(self.ev.value(arg, variant), lanes) for arg in body.args)
            return self.ev.b.fma(left, right, total)
        value = self.ev.b.splat(self.ev.value(body, variant), lanes)
        return emit_op(self.ev.b, _COMBINE[expr.combiner], [total, value], expr.dtype)

    def _contiguous(self, expr: Reduce, axes: tuple[Axis, ...]) -> Axis | None:
        """The innermost axis if all loads step by one element (or none) along it."""
        axis = axes[-1]
        if axis.extent.is_const and axis.extent.const < max(4, self.ev.reduce_lanes // 2):
            return None
        for node in walk(expr.body):
            if isinstance(node, Reduce) and axis.name in self.ev.nest.depends(node):
                return None
        steps = 0
        for node in walk(expr.body):
            if isinstance(node, Load) and id(node) in self.ev.nest.loads:
                stride = self.ev.nest.loads[id(node)].stride(axis.name)
                if stride is None or (stride.terms and stride != ONE):
                    return None
                steps += 1 if stride.terms else 0
        return axis if steps else None

    def _vector_reduce(
        self, expr: Reduce, axes: tuple[Axis, ...], inner: Axis, variants: Sequence[Variant]
    ) -> None:
        """Lanes run along the reduction; they are combined at the end."""
        depends = self.ev.nest.depends(expr)
        lanes = self.ev.reduce_lanes
        if inner.extent.is_const:
            while lanes > 4 and inner.extent.const < lanes:
                lanes //= 2
        copies = max(1, 4 // len(variants))
        kind = register_type(expr.dtype, lanes)
        start = emit_constant(identity_of(expr.combiner, expr.dtype), expr.dtype, kind.lanes)
        cells = [[self.ev.b.alloca(kind) for _ in range(copies)] for _ in variants]
        for row in cells:
            for cell in row:
                self.ev.b.store(start, cell)
        self.ev.hoist([expr.body], variants)
        self._loops(
            axes[:-1],
            lambda: self._vector_steps(expr, inner, variants, cells, lanes, start),
            expr.body,
            variants,
        )
        op = _COMBINE[expr.combiner]
        scalar = register_type(expr.dtype, 1)
        for one, row in zip(variants, cells, strict=True):
            total = self.ev.b.load(kind, row[0])
            for cell in row[1:]:
                total = emit_op(self.ev.b, op, [total, self.ev.b.load(kind, cell)], expr.dtype)
            folded = self.ev.b.reduce(
                total, lambda x, y: emit_op(self.ev.b, op, [x, y], expr.dtype)
            )
            if folded.type is not scalar:
                raise InternalError("a folded vector is not a scalar")
            self.ev.remember((id(expr), *self.ev.project(depends, one)), folded)

    def _vector_steps(
        self,
        expr: Reduce,
        inner: Axis,
        variants: Sequence[Variant],
        cells: Sequence[Sequence[Value]],
        lanes: int,
        neutral: Value,
    ) -> None:
        frame = self.ev.frame
        copies = len(cells[0])
        extent = self.ev.dim(inner.extent)
        place = len(variants[0])
        frame.unrolled[inner.name] = (place, lanes)
        frame.copies[inner.name] = copies
        frame.vector, frame.lanes = inner.name, lanes
        group = lanes * copies
        whole = self.ev.b.mul(self.ev.b.sdiv(extent, index(group)), index(group))
        kind = register_type(expr.dtype, lanes)

        def groups(first: Value, last: Value) -> None:
            with self.ev.b.loop(first, last, group) as counter, self.ev.scope():
                frame.position[inner.name] = counter
                for copy in range(copies):
                    for one, row in zip(variants, cells, strict=True):
                        self._add(expr, (*one, copy), row[copy], lanes)

        if _cut(expr, (inner,), group * _STEPS) is None:
            groups(index(0), whole)
        else:
            totals = _Totals(self.ev, expr, lanes, [cell for row in cells for cell in row])
            with self.ev.b.loop(0, whole, group * _STEPS) as first:
                end = self.ev.b.add(first, index(group * _STEPS))
                last = self.ev.b.select(self.ev.b.icmp("slt", end, whole), end, whole)
                groups(first, last)
                totals.take()
            totals.give()
        with self.ev.b.loop(whole, extent, lanes) as counter, self.ev.scope():
            frame.position[inner.name] = counter
            mask = self.ev.lane_mask(self.ev.b.sub(extent, counter), 0, lanes)
            frame.tails = {0: mask}
            for one, row in zip(variants, cells, strict=True):
                total = self.ev.b.load(kind, row[0])
                value = self.ev.b.splat(self.ev.value(expr.body, (*one, 0)), lanes)
                kept = self.ev.b.select(mask, value, neutral)
                op = _COMBINE[expr.combiner]
                self.ev.b.store(emit_op(self.ev.b, op, [total, kept], expr.dtype), row[0])
            frame.tails = {}
        frame.vector, frame.lanes = None, 1
        del frame.position[inner.name]
        del frame.unrolled[inner.name]
        del frame.copies[inner.name]


class _Totals:
    """Sums of blocks, kept in memory: the loop inside needs the registers for its cells."""

    def __init__(self, ev: Evaluator, expr: Reduce, lanes: int, cells: Sequence[Value]) -> None:
        self.b, self.dtype, self.cells = ev.b, expr.dtype, cells
        self.kind = register_type(expr.dtype, lanes)
        self.zero = emit_constant(0, expr.dtype, lanes)
        self.totals = [self.b.alloca(self.kind) for _ in cells]
        for total in self.totals:
            self.b.store(self.zero, total, volatile=True)

    def take(self) -> None:
        """Adds the cells to the totals and empties them."""
        for total, cell in zip(self.totals, self.cells, strict=True):
            parts = [self.b.load(self.kind, total, volatile=True), self.b.load(self.kind, cell)]
            self.b.store(emit_op(self.b, "add", parts, self.dtype), total, volatile=True)
            self.b.store(self.zero, cell)

    def give(self) -> None:
        """Adds the totals to the cells, which hold what no block has taken."""
        for total, cell in zip(self.totals, self.cells, strict=True):
            parts = [self.b.load(self.kind, total, volatile=True), self.b.load(self.kind, cell)]
            self.b.store(emit_op(self.b, "add", parts, self.dtype), cell)


def _cut(expr: Reduce, axes: tuple[Axis, ...], block: int = _BLOCK) -> tuple[int, int] | None:
    """Which axis of a long float sum to cut into blocks, and how much of it makes a block."""
    if expr.combiner != "sum" or not expr.dtype.is_float:
        return None
    known = all(axis.extent.is_const for axis in axes)
    if known and math.prod(axis.extent.const for axis in axes) <= 2 * block:
        return None
    inside = 1
    for place in range(len(axes) - 1, -1, -1):
        extent = axes[place].extent
        if not extent.is_const or inside * extent.const > block:
            return place, max(1, block // inside)
        inside *= max(1, extent.const)
    return None


def _is_long_sum(expr: Reduce, axes: tuple[Axis, ...]) -> bool:
    """A float sum of many terms that are no products (those are tiled, and bounded by layers)."""
    if expr.combiner != "sum" or not expr.dtype.is_float:
        return False
    if isinstance(expr.body, Call) and expr.body.op == "mul":
        return False
    points = 1
    for axis in axes:
        points *= axis.extent.const if axis.extent.is_const else _BLOCK
    return points >= 4 * _PARTS
