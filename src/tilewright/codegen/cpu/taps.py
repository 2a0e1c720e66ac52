"""Loops over the taps of windows that leave out what lies in borders of zeros.

    for kh: for kw: if 0 <= h + kh < H: sums of all pixels w with 0 <= w + kw < W
Input -> Output: a dot product and the sums of a register tile -> its loops.
Guarantees: a term is left out exactly where one of the dot product's conditions fails.
Why: a seventh of the lines of a small image, and as many of its pixels, meet a border.
Not here: loops without conditions (reductions), which reductions have some (lower.empty_taps).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tilewright.codegen.cpu.dots import Dot
from tilewright.codegen.cpu.emit import Value, index
from tilewright.codegen.cpu.frame import Variant
from tilewright.kernel.ir import Axis, Expr, Reduce

if TYPE_CHECKING:
    from tilewright.codegen.cpu.reductions import Reducer

Sums = list[tuple[Variant, Value]]  # copies of a register tile and the cells of their sums


class Taps:
    """The loops of one dot product.

    ``add`` writes one step: it adds a dot product to each of the given sums.
    """

    def __init__(
        self, reducer: Reducer, expr: Reduce, dot: Dot, add: Callable[[Sums], None]
    ) -> None:
        self.reducer, self.ev = reducer, reducer.ev
        self.expr, self.dot, self.add = expr, dot, add

    def write(self, axes: tuple[Axis, ...], conditions: Sequence[Expr], sums: Sums) -> None:
        """Loops over axes; each condition is asked as soon as all of its axes are bound."""
        ev = self.ev
        now = [one for one in conditions if ev.nest.depends(one) <= set(ev.frame.position)]
        later = [one for one in conditions if one not in now]
        if now:
            self._where(now, sums, lambda some: self.write(axes, later, some))
            return
        if not axes:
            with ev.scope():
                self.add(sums)
            return
        axis, rest = axes[0], axes[1:]
        if any(self._tells_copies_apart(one, axis) for one in later):
            for tap in range(axis.extent.const):
                with ev.scope():
                    ev.frame.position[axis.name] = index(tap)
                    self.write(rest, later, sums)
            del ev.frame.position[axis.name]
        elif rest or later:
            with ev.b.loop(0, ev.dim(axis.extent)) as counter, ev.scope():
                ev.frame.position[axis.name] = counter
                if rest:
                    ev.hoist([self.expr.body], [one for one, _ in sums])
                self.write(rest, later, sums)
                del ev.frame.position[axis.name]
        else:
            variants = [one for one, _ in sums]
            self.reducer.loops(axes, lambda: self.add(sums), self.expr.body, variants)

    def _tells_copies_apart(self, condition: Expr, axis: Axis) -> bool:
        """True where, of a known tap, it is known now which copies lie inside."""
        others = self.ev.nest.depends(condition) - {axis.name}
        if not axis.extent.is_const or others == self.ev.nest.depends(condition):
            return False
        begins = [self.ev.frame.position.get(name) for name in others]
        return all(begin is not None and begin.const is not None for begin in begins)

    def _where(self, conditions: Sequence[Expr], sums: Sums, body: Callable[[Sums], None]) -> None:
        """The body for the sums whose conditions hold, those with equal conditions together."""
        ev, groups = self.ev, dict[tuple[str, ...], tuple[list[Value], Sums]]()
        for one, cell in sums:
            tests = [ev.value(condition, one) for condition in conditions]
            if any(test.const is not None and not test.const for test in tests):
                continue
            open_ = [test for test in tests if test.const is None]
            groups.setdefault(tuple(test.ref for test in open_), (open_, []))[1].append((one, cell))
        for tests, some in groups.values():
            if not tests:
                body(some)
                continue
            total = tests[0]
            for test in tests[1:]:
                total = ev.b.and_(total, test)
            with ev.b.when(total), ev.scope():
                body(some)
