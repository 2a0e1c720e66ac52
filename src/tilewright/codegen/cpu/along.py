"""Reductions with lanes along them, where memory is contiguous.

Input -> Output: a ``Reduce`` and its variants -> their values, remembered: one number for each, or
one vector whose lanes are reductions of their own.
Guarantees: as of ``reductions``.
Not here: reductions whose lanes are different results anyway (reductions).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.codegen.cpu.across import fold_lanes
from tilewright.codegen.cpu.convert import emit_constant, register_type
from tilewright.codegen.cpu.emit import Value, constant, index
from tilewright.codegen.cpu.frame import Tail, Variant
from tilewright.codegen.cpu.long_sums import Totals, cut_of
from tilewright.codegen.cpu.scalar import combine
from tilewright.core.dtypes import BOOL
from tilewright.core.errors import InternalError
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Axis, Load, Reduce, identity_of, walk

if TYPE_CHECKING:
    from tilewright.codegen.cpu.reductions import Reducer

ONE = Dim.of(1)
_STEPS = 128  # vectors along the reduction that one accumulator takes


class Along:
    """The part of a reducer that runs lanes along reductions."""

    def __init__(self, reducer: Reducer) -> None:
        self.reducer = reducer
        self.ev = reducer.ev

    def serves(self, expr: Reduce) -> bool:
        """True where no vector axis runs through a reduction, and it runs along memory."""
        is_free = self.ev.frame.vector is None and self.ev.reduce_lanes > 1
        return is_free and self._is_contiguous(expr)

    def serves_lanes(self, expr: Reduce) -> bool:
        """True where lanes would gather, while each lane's own reduction runs along memory."""
        vector = self.ev.frame.vector
        if vector is None or not self.ev.is_vector(expr) or self.ev.frame.guard is not None:
            return False
        if expr.dtype is BOOL:  # lanes of bits, which memory does not hold one by one
            return False
        strides = [
            self.ev.nest.loads[id(node)].stride(vector)
            for node in walk(expr.body)
            if isinstance(node, Load) and id(node) in self.ev.nest.loads
        ]
        if all(stride is not None and (stride == ONE or not stride.terms) for stride in strides):
            return False
        return self._is_contiguous(expr)

    def reduce(self, expr: Reduce, variants: Sequence[Variant]) -> None:
        """One number for each variant; lanes are combined at the end."""
        join = combine(self.ev.b, expr.combiner, expr.dtype)
        scalar = register_type(expr.dtype, 1)
        lanes = self.ev.reduce_lanes
        totals = self._totals(expr, variants, lanes, self.ev.kept.memory(expr, variants))
        for one, total in zip(variants, totals, strict=True):
            folded = self.ev.b.reduce(total, join)
            if folded.type is not scalar:
                raise InternalError("a folded vector is not a scalar")
            self.ev.remember(self.reducer.key(expr, one), folded)

    def reduce_each_lane(self, expr: Reduce, variant: Variant) -> None:
        """One vector for a variant: the reductions of its lanes, transposed in registers."""
        ev, frame = self.ev, self.ev.frame
        vector, lanes, tails = frame.vector or "", frame.lanes, frame.tails
        join = combine(ev.b, expr.combiner, expr.dtype)
        place = frame.unrolled[vector][0]
        saved = frame.position[vector], frame.unrolled[vector], frame.copies[vector]
        start = ev.at(vector, variant)
        frame.vector, frame.lanes, frame.tails = None, 1, {}

        def totals(first: Value, count: int) -> list[Value]:
            frame.position[vector], frame.copies[vector] = first, count
            frame.unrolled[vector] = (len(variant), 1)
            variants = [(*variant, lane) for lane in range(count)]
            most = min(ev.reduce_lanes, lanes)
            return self._totals(expr, variants, most)

        if tails.get(variant[place]) is None:
            with ev.scope():
                value = fold_lanes(ev.b, totals(start, lanes), join)
        else:
            kind = register_type(expr.dtype, lanes)
            cell = ev.b.alloca(kind)
            ev.b.store(constant(kind, 0), cell)
            extent = next(axis.extent for axis in ev.nest.axes if axis.name == vector)
            left = ev.b.sub(ev.dim(extent), start)
            left = ev.b.select(ev.b.icmp("slt", left, index(lanes)), left, index(lanes))
            with ev.b.loop(0, left) as lane, ev.scope():
                one = ev.b.reduce(totals(ev.b.add(start, lane), 1)[0], join)
                ev.b.store(one, ev.b.gep(cell, lane, kind.element_bytes))
            value = ev.b.load(kind, cell)
        frame.vector, frame.lanes, frame.tails = vector, lanes, tails
        frame.position[vector], frame.unrolled[vector], frame.copies[vector] = saved
        ev.remember(self.reducer.key(expr, variant), value)

    def _is_contiguous(self, expr: Reduce) -> bool:
        """True when all loads step by one element (or none) along the innermost axis."""
        axis = self.ev.nest.reduce_axes[id(expr)][-1]
        if axis.extent.is_const and axis.extent.const < max(4, self.ev.reduce_lanes // 2):
            return False
        for node in walk(expr.body):
            if isinstance(node, Reduce) and axis.name in self.ev.nest.depends(node):
                return False
        steps = 0
        for node in walk(expr.body):
            if isinstance(node, Load) and id(node) in self.ev.nest.loads:
                stride = self.ev.nest.loads[id(node)].stride(axis.name)
                if stride is None or (stride.terms and stride != ONE):
                    return False
                steps += 1 if stride.terms else 0
        return steps > 0

    def _totals(
        self,
        expr: Reduce,
        variants: Sequence[Variant],
        lanes: int,
        kept: Sequence[Value] | None = None,
    ) -> list[Value]:
        """A vector for each variant, whose lanes hold parts of the reduction."""
        axes = self.ev.nest.reduce_axes[id(expr)]
        inner = axes[-1]
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
        self.reducer.loops(
            axes[:-1],
            lambda: self._steps(expr, inner, variants, cells, lanes, start, kept),
            expr.body,
            variants,
        )
        join = combine(self.ev.b, expr.combiner, expr.dtype)
        loaded = [[self.ev.b.load(kind, cell) for cell in row] for row in cells]
        return [functools.reduce(join, row) for row in loaded]

    def _steps(
        self,
        expr: Reduce,
        inner: Axis,
        variants: Sequence[Variant],
        cells: Sequence[Sequence[Value]],
        lanes: int,
        neutral: Value,
        kept: Sequence[Value] | None,
    ) -> None:
        frame, join = self.ev.frame, combine(self.ev.b, expr.combiner, expr.dtype)
        copies = len(cells[0])
        extent = self.ev.dim(inner.extent)
        place = len(variants[0])
        frame.unrolled[inner.name] = (place, lanes)
        frame.copies[inner.name] = copies
        frame.vector, frame.lanes = inner.name, lanes
        group = lanes * copies
        whole = self.ev.b.mul(self.ev.b.sdiv(extent, index(group)), index(group))
        kind = register_type(expr.dtype, lanes)

        def keep(counter: Value, copy: int) -> None:
            for one, memory in zip(variants, kept or (), strict=bool(kept)):
                value = self.ev.b.splat(self.ev.value(expr.body, (*one, copy)), lanes)
                at = self.ev.b.add(counter, index(copy * lanes))
                self.ev.b.store(value, self.ev.b.gep(memory, at, kind.element_bytes))

        def groups(first: Value, last: Value) -> None:
            with self.ev.b.loop(first, last, group) as counter, self.ev.scope():
                frame.position[inner.name] = counter
                for copy in range(copies):
                    for one, row in zip(variants, cells, strict=True):
                        self.reducer.add(expr, (*one, copy), row[copy], lanes)
                    keep(counter, copy)

        if cut_of(expr, (inner,), group * _STEPS) is None:
            groups(index(0), whole)
        else:
            totals = Totals(self.ev, expr, lanes, [cell for row in cells for cell in row])
            with self.ev.b.loop(0, whole, group * _STEPS) as first:
                end = self.ev.b.add(first, index(group * _STEPS))
                last = self.ev.b.select(self.ev.b.icmp("slt", end, whole), end, whole)
                groups(first, last)
                totals.take()
            totals.give()
        with self.ev.b.loop(whole, extent, lanes) as counter, self.ev.scope():
            frame.position[inner.name] = counter
            mask = self.ev.lane_mask(self.ev.b.sub(extent, counter), 0, lanes)
            frame.tails = {0: Tail(mask)}
            for one, row in zip(variants, cells, strict=True):
                total = self.ev.b.load(kind, row[0])
                value = self.ev.b.splat(self.ev.value(expr.body, (*one, 0)), lanes)
                chosen = self.ev.b.select(mask, value, neutral)
                self.ev.b.store(join(total, chosen), row[0])
            keep(counter, 0)
            frame.tails = {}
        frame.vector, frame.lanes = None, 1
        del frame.position[inner.name]
        del frame.unrolled[inner.name]
        del frame.copies[inner.name]
