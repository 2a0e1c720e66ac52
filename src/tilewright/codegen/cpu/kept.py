"""Terms of a reduction that its stage needs again, kept in memory.

Input -> Output: a reduction -> memory for its terms; an expression -> what was kept of it.
    exp(x[i, j] - m) * (1 / sum(r: exp(x[i, r] - m))):  the sum keeps its terms, the product reads
    them
Requires: the reduction runs along one axis of known size, of which the vector axis has as much.
Guarantees: only what costs more than memory is kept, and no more than the second cache holds.
Not here: the loops (along).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.codegen.cpu.convert import register_type
from tilewright.codegen.cpu.emit import Value
from tilewright.codegen.cpu.frame import Variant
from tilewright.kernel.ir import Call, Expr, Reduce, substitute, walk

if TYPE_CHECKING:
    from tilewright.codegen.cpu.evaluate import Evaluator

_COSTLY = frozenset(("exp", "expm1", "log", "log1p", "pow", "tanh", "erf", "sigmoid", "gelu"))
_MOST_BYTES = 1 << 17
_SPARE = 64  # elements: whole vectors are stored and loaded


class Kept:
    """What the reductions of one evaluator keep."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.ev = evaluator
        self._axes: dict[int, str] = {}

    def memory(self, expr: Reduce, variants: Sequence[Variant]) -> list[Value] | None:
        """Where each variant's terms are to be stored, or None where nobody needs them again."""
        found = self._again(expr)
        if found is None:
            return None
        again, axis, size = found
        total = len(variants) * (size + _SPARE)
        if total * expr.dtype.storage_bytes > _MOST_BYTES:
            return None
        self._axes[id(again)] = axis
        kind = register_type(expr.dtype, 1)
        places = [self.ev.b.alloca(kind, size + _SPARE, 64) for _ in variants]
        for one, place in zip(variants, places, strict=True):
            self.ev.remember(self._key(again, one), place)
        return places

    def find(self, expr: Expr, variant: Variant) -> Value | None:
        """The kept value of an expression, or None."""
        ev, axis = self.ev, self._axes.get(id(expr))
        if axis is None or axis != ev.frame.vector:
            return None
        place = ev.recall(self._key(expr, variant))
        if place is None:
            return None
        kind = register_type(expr.dtype, ev.frame.lanes)
        start = ev.b.gep(place, ev.at(axis, variant), expr.dtype.storage_bytes)
        return ev.b.load(kind, start)

    def _key(self, again: Expr, variant: Variant) -> tuple[object, ...]:
        depends = self.ev.nest.depends(again) - {self._axes[id(again)]}
        return ("kept", id(again), *self.ev.project(depends, variant))

    def _again(self, expr: Reduce) -> tuple[Expr, str, int] | None:
        """The same term at an index of another axis, that axis, and its size."""
        nest = self.ev.nest
        axes = nest.reduce_axes[id(expr)]
        if len(expr.axes) != 1 or len(axes) != 1 or not axes[0].extent.is_const:
            return None
        if not any(isinstance(n, Call) and n.op in _COSTLY for n in walk(expr.body)):
            return None
        values = {id(node) for store in nest.stage.stores for node in walk(store.value)}
        for axis in nest.axes:
            if axis.extent == axes[0].extent and axis.name not in nest.depends(expr):
                again = substitute(expr.body, {expr.axes[0].name: axis.var})
                if id(again) in values:
                    return again, axis.name, axes[0].extent.const
        return None
