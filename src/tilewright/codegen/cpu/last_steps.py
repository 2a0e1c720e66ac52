"""The last steps of a tile's sums: those of a few results at a time, each time before these are
stored.

Input -> Output: a ``Reduce``, its variants and what they have added up but for the last steps ->
their values when they are asked for.
    for k: c0 += .., c1 += ..;  store c0, c1  ->  for k but the last: ..;  c0 += ..;  store c0;  ..
Guarantees: values are unchanged, bit by bit; each is completed once, where it is first needed.
Requires: nothing else is summed up in the stage, so that no loop stands where a value is needed.
Why: a store of a whole vector takes a cycle in which nothing is multiplied, unless multiplications
stand around it: the end of a tile is nothing but stores, a tenth of a short sum's time.
Not here: the steps before (reductions).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tilewright.codegen.cpu.convert import register_type
from tilewright.codegen.cpu.emit import Value, index
from tilewright.codegen.cpu.frame import Variant
from tilewright.core.dtypes import FLOAT32
from tilewright.kernel.ir import Axis, Reduce, products, walk

if TYPE_CHECKING:
    from tilewright.codegen.cpu.reductions import Reducer

_Key = tuple[object, ...]
_STEPS = 2  # that are taken late; weights of more would be read again for each result
_TOGETHER = 2  # results; they share what they multiply
_LEAST_RESULTS = 16  # of a tile; the steps of fewer would wait for each other
_MOST_TERMS = 128  # of longer sums, stores take too little


class LastSteps:
    """The part of a reducer that completes sums where they are stored."""

    def __init__(self, reducer: Reducer) -> None:
        self.reducer = reducer
        self.ev = reducer.ev
        self._waiting: dict[_Key, Callable[[], None]] = {}
        stores = self.ev.nest.stage.stores
        sums = [n for n in walk(*self.ev.nest.stage.roots) if isinstance(n, Reduce)]
        whole = self.ev.b.target.vector_bytes == 64  # where stores were seen to take so long
        self._is_plain = len(stores) == 1 and stores[0].guard is None and len(sums) == 1 and whole

    def serves(self, expr: Reduce, axes: tuple[Axis, ...], variants: Sequence[Variant]) -> bool:
        """True for a tile of short sums of products, whose loops are two at most."""
        ev = self.ev
        if not self._is_plain or ev.frame.vector is None or ev.ahead or ev.lines:
            return False
        if ev.reads_stored(expr) or any(axis.ordered for axis in ev.nest.axes):
            return False
        if expr.combiner != "sum" or expr.dtype is not FLOAT32 or not products(expr.body):
            return False
        if len(variants) < _LEAST_RESULTS or not all(axis.extent.is_const for axis in axes):
            return False
        extents = [axis.extent.const for axis in axes]
        few_loops = all(extent == 1 for extent in extents[1:-1])
        return few_loops and extents[-1] >= 2 * _STEPS and math.prod(extents) <= _MOST_TERMS

    def reduce(
        self,
        expr: Reduce,
        axes: tuple[Axis, ...],
        variants: Sequence[Variant],
        cells: Sequence[Value],
        keys: Sequence[_Key],
    ) -> None:
        """Takes all steps but the last; ``complete`` takes these.

        Args:
            cells: what each variant has added up.
            keys: of the variants' values.
        """
        ev, reducer = self.ev, self.reducer
        lanes, first, last = ev.frame.lanes, axes[0], axes[-1]

        def step() -> None:
            for one, cell in zip(variants, cells, strict=True):
                reducer.add(expr, one, cell, lanes)

        if len(axes) > 1 and first.extent.const > 1:
            with ev.b.loop(0, first.extent.const - 1) as counter, ev.scope():
                ev.frame.position[first.name] = counter
                ev.hoist([expr.body], variants)
                reducer.loops(axes[1:], step, expr.body, variants)
                del ev.frame.position[first.name]
        with ev.scope():
            self._stand_at_end(axes[:-1])
            ev.hoist([expr.body], variants)
            most = last.extent.const - _STEPS
            reducer.steps(last, (index(0), index(most)), most, step)
            self._leave(axes[:-1])
        found = list(zip(variants, cells, keys, strict=True))
        for start in range(0, len(found), _TOGETHER):
            some = found[start : start + _TOGETHER]
            for _, _, key in some:
                self._waiting[key] = partial(self._complete, expr, axes, some)

    def complete(self, key: _Key) -> bool:
        """Takes the last steps of a value that waits for them; False if it does not."""
        waiting = self._waiting.get(key)
        if waiting is None:
            return False
        waiting()
        return True

    def _complete(
        self,
        expr: Reduce,
        axes: tuple[Axis, ...],
        some: Sequence[tuple[Variant, Value, _Key]],
    ) -> None:
        ev, lanes, last = self.ev, self.ev.frame.lanes, axes[-1]
        for _, _, key in some:
            del self._waiting[key]
        ev.b.keep_order()
        self._stand_at_end(axes[:-1])
        for place in range(last.extent.const - _STEPS, last.extent.const):
            with ev.scope():
                ev.frame.position[last.name] = index(place)
                for one, cell, _ in some:
                    self.reducer.add(expr, one, cell, lanes)
        self._leave(axes)
        for _, cell, key in some:
            ev.remember(key, ev.b.load(register_type(expr.dtype, lanes), cell))

    def _stand_at_end(self, axes: Sequence[Axis]) -> None:
        for axis in axes:
            self.ev.frame.position[axis.name] = index(axis.extent.const - 1)

    def _leave(self, axes: Sequence[Axis]) -> None:
        for axis in axes:
            del self.ev.frame.position[axis.name]
