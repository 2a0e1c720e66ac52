"""Sums of which a vector is half empty: its idle half takes every second term.

Input -> Output: a sum of products over an even number of steps -> the instructions of its rounds.
    12 channels are a vector of 8 and one of 4: (x0*w0, x0*w1) and (x1*w2, x1*w3)
    ->  (x0*w0), (x1*w2) and (x0|x1)*(w1|w3): three multiply-adds, not four; in the end the halves
    of the last are added up
Requires: one product for each term; what the idle half begins with is zero.
Not here: which loops go around (reductions).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tilewright.codegen.cpu.convert import emit_constant, register_type
from tilewright.codegen.cpu.emit import Value, index
from tilewright.codegen.cpu.frame import Frame, Scope, Variant
from tilewright.codegen.cpu.scalar import emit_op
from tilewright.core.dtypes import FLOAT32
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Axis, Reduce, products

if TYPE_CHECKING:
    from tilewright.codegen.cpu.reductions import Reducer


def is_vector_and_half(extent: Dim, lanes: int) -> bool:
    """True where the second of two vectors is half empty."""
    return extent.is_const and lanes > 2 and 2 * extent.const == 3 * lanes


def half_empty(
    frame: Frame, expr: Reduce, axes: Sequence[Axis], variants: Sequence[Variant]
) -> set[int]:
    """Numbers of the variants whose vectors are half empty; none where nothing is gained."""
    last = axes[-1].extent
    is_sum = expr.combiner == "sum" and expr.dtype is FLOAT32 and len(products(expr.body)) == 1
    if frame.vector is None or not is_sum or not last.is_const or last.const % 2:
        return set()
    place, _ = frame.unrolled[frame.vector]
    half = {
        number
        for number, one in enumerate(variants)
        if (tail := frame.tails.get(one[place])) is not None
        and tail.lanes is not None
        and 2 * tail.lanes == frame.lanes
    }
    return half if 1 < len(half) < len(variants) else set()


class Halves:
    """Writes the rounds of one sum."""

    def __init__(
        self,
        reducer: Reducer,
        expr: Reduce,
        variants: Sequence[Variant],
        cells: Sequence[Value],
        half: set[int],
    ) -> None:
        self.reducer = reducer
        self.ev = reducer.ev
        self.expr = expr
        self.sums = list(zip(variants, cells, strict=True))
        self.half = half
        self.lanes = self.ev.frame.lanes
        self.kind = register_type(expr.dtype, self.lanes)

    def begin(self) -> None:
        """Empties the idle halves."""
        b = self.ev.b
        for number in self.half:
            _, cell = self.sums[number]
            zero = emit_constant(0, FLOAT32, self.lanes)
            b.store(self._joined(b.load(self.kind, cell), zero), cell)

    def steps(self, axis: Axis) -> None:
        """All steps of the innermost axis, two by two."""
        ev = self.ev
        with ev.b.loop(index(0), index(axis.extent.const), 2) as counter:
            steps = [(Scope(), ev.b.add(counter, index(step))) for step in range(2)]
            for number, (one, cell) in enumerate(self.sums):
                self._pair(axis, number in self.half, one, cell, steps)
        del ev.frame.position[axis.name]

    def _pair(
        self,
        axis: Axis,
        is_half: bool,
        variant: Variant,
        cell: Value,
        steps: Sequence[tuple[Scope, Value]],
    ) -> None:
        ev, b = self.ev, self.ev.b
        factors: list[list[Value]] = []
        for scope, place in steps:
            with self._within(scope):
                ev.frame.position[axis.name] = place
                if is_half:
                    pair = products(self.expr.body)[0].args
                    factors.append([b.splat(ev.value(arg, variant), self.lanes) for arg in pair])
                else:
                    self.reducer.add(self.expr, variant, cell, self.lanes)
        if is_half:
            left, right = (self._joined(*both) for both in zip(*factors, strict=True))
            b.store(b.fma(left, right, b.load(self.kind, cell)), cell)

    @contextmanager
    def _within(self, scope: Scope) -> Iterator[None]:
        self.ev.frame.scopes.append(scope)
        yield
        self.ev.frame.scopes.pop()

    def _joined(self, first: Value, second: Value) -> Value:
        """The first half of both, one behind the other."""
        half = range(self.lanes // 2)
        return self.ev.b.shuffle(first, second, [*half, *(self.lanes + lane for lane in half)])

    def end(self) -> None:
        """Adds the halves up."""
        b = self.ev.b
        for number in self.half:
            _, cell = self.sums[number]
            whole = b.load(self.kind, cell)
            places = [*range(self.lanes // 2, self.lanes), *[-1] * (self.lanes // 2)]
            back = b.shuffle(whole, None, places)
            b.store(emit_op(b, "add", [whole, back], FLOAT32), cell)
