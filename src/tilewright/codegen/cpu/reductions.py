"""Reductions to loops, all variants of a register tile in one.

Input -> Output: a ``Reduce`` and a variant -> its value, remembered for every variant that it
distinguishes.
Guarantees: products are fused into sums; lanes run along the reduction where memory is
contiguous along it only; long sums add up in blocks, so that their error hardly grows with their
length.
Not here: other expressions (evaluate), lanes along reductions (along).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tilewright.codegen.cpu.additions import Begun, begun_sums
from tilewright.codegen.cpu.along import Along
from tilewright.codegen.cpu.convert import emit_constant, register_type
from tilewright.codegen.cpu.dots import Dot, accumulate, dot_of
from tilewright.codegen.cpu.emit import Value, index
from tilewright.codegen.cpu.frame import Variant
from tilewright.codegen.cpu.half_vectors import Halves, half_empty
from tilewright.codegen.cpu.last_steps import LastSteps
from tilewright.codegen.cpu.long_sums import BLOCK, Totals, cut_of
from tilewright.codegen.cpu.scalar import emit_op
from tilewright.codegen.cpu.taps import Sums, Taps
from tilewright.codegen.cpu.windows import slanted, window_step
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Axis, Expr, Load, Reduce, identity_of, products, walk

if TYPE_CHECKING:
    from tilewright.codegen.cpu.evaluate import Evaluator

ONE = Dim.of(1)
_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}
_PARTS = 4  # accumulators of a plain sum


class Reducer:
    """Evaluates the reductions of one evaluator."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.ev = evaluator
        self.along = Along(self)
        self.last_steps = LastSteps(self)
        self.beginnings = begun_sums(evaluator.nest)

    def begun(self, whole: Expr, variant: Variant) -> Value | None:
        """``sum + known``, where the sum may begin with what is known; None elsewhere."""
        found, ev = self.beginnings.get(id(whole)), self.ev
        if found is None or ev.reads_stored(found.start):
            return None
        is_dot = ev.is_vector(found.total) and self._dot(found.total) is not None
        if not (is_dot or found.total.dtype.is_float):
            return None
        if ev.recall(self.key(found.total, variant)) is not None:
            return None
        self.reduce(found.total, variant, found)
        return ev.recall(self.key(whole, variant))

    def reduce(self, expr: Reduce, variant: Variant, begun: Begun | None = None) -> None:
        """Computes a reduction for every variant that it distinguishes.

        Args:
            begun: what the sum begins with; the value of both together is then what is remembered.
        """
        depends = self.ev.nest.depends(expr)
        vector = self.ev.is_vector(expr)
        dot = self._dot(expr) if vector else None
        if dot is None and self.along.serves_lanes(expr):
            self.along.reduce_each_lane(expr, variant)
            return
        variants = [variant]
        if self.ev.frame.guard is None and not self.ev.frame.branches:
            variants = self._all_variants(depends, variant)
        axes = self.ev.nest.reduce_axes[id(expr)]
        if self.along.serves(expr):
            self.along.reduce(expr, variants)
            return
        lanes = self.ev.frame.lanes if vector else 1
        kind = register_type(expr.dtype, lanes)
        whole = expr if begun is None else begun.whole
        keys = [self.key(whole, one) for one in variants]
        start = emit_constant(identity_of(expr.combiner, expr.dtype), expr.dtype, kind.lanes)
        cells = [self.ev.b.alloca(kind) for _ in variants]
        for one, cell in zip(variants, cells, strict=True):
            if begun is not None:
                start = self.ev.b.splat(self.ev.value(begun.start, one), lanes)
            self.ev.b.store(start, cell)
        self.ev.hoist([expr.body], variants)

        if dot is not None:
            self._dots(expr, dot, axes[:-1], variants, cells)
        elif not self._in_parts(expr, axes, variants, cells, lanes):
            if vector and self.last_steps.serves(expr, axes, variants):
                self.last_steps.reduce(expr, axes, variants, cells, keys)
                return
            step = partial(self._point, expr, variants, cells, lanes)
            self.loops(axes, step, expr.body, variants)
        for key, cell in zip(keys, cells, strict=True):
            self.ev.remember(key, self.ev.b.load(kind, cell))

    def _in_parts(
        self,
        expr: Reduce,
        axes: tuple[Axis, ...],
        variants: Sequence[Variant],
        cells: Sequence[Value],
        lanes: int,
    ) -> bool:
        """Adds up what is not taken step by step; False of all else."""
        if _is_long_sum(expr, axes) and len(variants) <= 2:
            inner = axes[-1]
            self.loops(
                axes[:-1],
                lambda: self._blocks(expr, inner, variants, cells, lanes),
                expr.body,
                variants,
            )
        elif (cut := cut_of(expr, axes)) is not None:
            self._in_blocks(expr, axes, cut, variants, cells, lanes)
        elif (apart := self._apart(expr)) is not None:
            self.loops(
                axes[:-1],
                lambda: self._windows(expr, apart, variants, cells, lanes),
                expr.body,
                variants,
                depth=1,
            )
        elif half := half_empty(self.ev.frame, expr, axes, variants):
            halves = Halves(self, expr, variants, cells, half)
            halves.begin()
            step = partial(self._point, expr, variants, cells, lanes)
            self.loops(axes, step, expr.body, variants, steps=halves.steps)
            halves.end()
        else:
            return False
        return True

    def _point(
        self, expr: Reduce, variants: Sequence[Variant], cells: Sequence[Value], lanes: int
    ) -> None:
        """One point of a reduction, for all variants; asks for what the next panel has there."""
        for one, cell in zip(variants, cells, strict=True):
            self.add(expr, one, cell, lanes)
        self._ask_ahead(expr, variants)

    def _apart(self, expr: Reduce) -> int | None:
        """Taps between the windows of neighbouring copies, if the schedule slants them."""
        ev = self.ev
        if ev.slant is None or ev.slant not in ev.frame.unrolled or ev.frame.vector is None:
            return None
        return window_step(ev.nest, expr, ev.slant, ev.frame.vector)

    def _windows(
        self,
        expr: Reduce,
        apart: int,
        variants: Sequence[Variant],
        cells: Sequence[Value],
        lanes: int,
    ) -> None:
        """All taps of a line, some in one round; a round goes along the line."""
        ev, taps = self.ev, self.ev.nest.reduce_axes[id(expr)][-1]
        place, _ = ev.frame.unrolled[ev.slant or ""]
        pixels = [one[place] for one in variants]
        for first in range(0, taps.extent.const, ev.depth):
            steps = range(first, min(first + ev.depth, taps.extent.const))
            for number, tap in slanted(pixels, steps, apart):
                with ev.scope():
                    ev.frame.position[taps.name] = index(tap)
                    self.add(expr, variants[number], cells[number], lanes)
        del ev.frame.position[taps.name]

    def _ask_ahead(self, expr: Reduce, variants: Sequence[Variant]) -> None:
        ev, asked = self.ev, set[object]()
        for node in walk(expr.body) if ev.ahead else ():
            if isinstance(node, Load) and id(node) in ev.ahead:
                for one in variants:
                    key = (id(node), *ev.project(ev.nest.depends(node), one))
                    if key not in asked:
                        asked.add(key)
                        ev.ask_ahead(node, one)

    def _ask_lines(self, body: Expr, inner: Axis, variants: Sequence[Variant]) -> None:
        """Asks for what the next tile reads where the steps along an axis are about to be taken."""
        ev = self.ev
        for node in walk(body) if ev.lines else ():
            if isinstance(node, Load) and id(node) in ev.lines:
                with ev.scope():
                    ev.frame.position[inner.name] = index(0)
                    ev.ask_lines(node, (0,) * len(variants[0]))
                    del ev.frame.position[inner.name]

    def key(self, expr: Expr, variant: Variant) -> tuple[object, ...]:
        return (id(expr), *self.ev.project(self.ev.nest.depends(expr), variant))

    def _dot(self, expr: Reduce) -> Dot | None:
        """The dot product that a reduction is for whole vectors."""
        frame = self.ev.frame
        if frame.vector is None or frame.tails:
            return None
        return dot_of(self.ev.nest, expr, frame.vector, frame.lanes, self.ev.b.target)

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

        def add(sums: Sums) -> None:
            for one, cell in sums:
                b.store(accumulate(self.ev, dot, b.load(kind, cell), one), cell)
            self._ask_ahead(expr, [one for one, _ in sums])

        self.ev.frame.position[dot.axis] = index(0)
        sums = list(zip(variants, cells, strict=True))
        Taps(self, expr, dot, add).write(axes, dot.inside, sums)
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

    def loops(
        self,
        axes: tuple[Axis, ...],
        body: Callable[[], None],
        expr: Expr,
        variants: Sequence[Variant],
        depth: int | None = None,
        steps: Callable[[Axis], None] | None = None,
    ) -> None:
        """Loops over axes; ``steps`` writes an innermost one of known size by itself."""
        if not axes:
            with self.ev.scope():
                body()
            return
        axis, rest = axes[0], axes[1:]
        if not rest and axis.extent.is_const:
            if steps is not None:
                steps(axis)
                return
            bounds = index(0), self.ev.dim(axis.extent)
            self.steps(axis, bounds, axis.extent.const, body, depth)
            return
        with self.ev.b.loop(0, self.ev.dim(axis.extent)) as counter, self.ev.scope():
            self.ev.frame.position[axis.name] = counter
            if rest:
                self.ev.hoist([expr], variants)
            if len(rest) == 1:
                self._ask_lines(expr, rest[0], variants)
            self.loops(rest, body, expr, variants, depth, steps)
            del self.ev.frame.position[axis.name]

    def steps(
        self,
        axis: Axis,
        bounds: tuple[Value, Value],
        count: int,
        body: Callable[[], None],
        most: int | None = None,
    ) -> None:
        """The innermost loop, several steps in a round if they divide the number of steps."""
        most = most or self.ev.depth
        depth = next(d for d in (most, 2, 1) if d <= most and count % d == 0)
        with self.ev.b.loop(*bounds, depth) as counter:
            for step in range(depth):
                with self.ev.scope():
                    self.ev.frame.position[axis.name] = self.ev.b.add(counter, index(step))
                    body()
        del self.ev.frame.position[axis.name]

    def add(self, expr: Reduce, variant: Variant, cell: Value, lanes: int) -> None:
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
        totals = Totals(ev, expr, lanes, cells)

        def innermost() -> None:
            self._point(expr, variants, cells, lanes)

        def blocks() -> None:
            extent = ev.dim(axis.extent)
            with b.loop(0, extent, size) as first, ev.scope():
                end = b.add(first, index(size))
                last = b.select(b.icmp("slt", end, extent), end, extent)
                if rest or not axis.extent.is_const:
                    with b.loop(first, last) as counter, ev.scope():
                        ev.frame.position[axis.name] = counter
                        ev.hoist([expr.body], variants)
                        self.loops(rest, innermost, expr.body, variants)
                        del ev.frame.position[axis.name]
                else:
                    # Blocks, and what is left behind the last whole one, are multiples of this.
                    count = math.gcd(axis.extent.const, size)
                    self.steps(axis, (first, last), count, innermost)
                totals.take()

        self.loops(axes[:place], blocks, expr.body, variants)
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
        if inner.extent.is_const and inner.extent.const <= BLOCK:
            self._block(expr, inner, (index(0), extent), variants, cells, lanes)
            return
        b = self.ev.b
        with b.loop(0, extent, BLOCK) as first, self.ev.scope():
            end = b.add(first, index(BLOCK))
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
                        self.add(expr, (*one, copy), row[copy], lanes)
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
        if expr.combiner == "sum" and expr.dtype.is_float and self.ev.b.target.has_fma:
            factors = [product.args for product in products(body)]
            for pair in factors:
                left, right = (self.ev.b.splat(self.ev.value(arg, variant), lanes) for arg in pair)
                total = self.ev.b.fma(left, right, total)
            if factors:
                return total
        value = self.ev.b.splat(self.ev.value(body, variant), lanes)
        return emit_op(self.ev.b, _COMBINE[expr.combiner], [total, value], expr.dtype)


def _is_long_sum(expr: Reduce, axes: tuple[Axis, ...]) -> bool:
    """A float sum of many terms that are no products (those are tiled, and bounded by layers)."""
    if expr.combiner != "sum" or not expr.dtype.is_float:
        return False
    if products(expr.body):
        return False
    points = 1
    for axis in axes:
        points *= axis.extent.const if axis.extent.is_const else BLOCK
    return points >= 4 * _PARTS
