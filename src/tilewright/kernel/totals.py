"""Which parts of an expression may be computed at points where the whole is not wanted.

Input -> Output: an expression, shapes of buffers, extents of axes -> its largest parts whose loads
are inside of their buffers at every point.
Guarantees: never a part that may read outside. A ``select`` counts where its own condition keeps
the loads that it chooses inside, whatever guards the store that it belongs to.
Not here: how far an index may go (kernel.ranges).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.core.dtypes import INT64
from tilewright.core.shape import Dim
from tilewright.kernel.affine import Affine, affine
from tilewright.kernel.blocked import conjuncts
from tilewright.kernel.ir import Call, Expr, Load, Reduce, walk
from tilewright.kernel.ranges import beyond, reach

Shapes = Mapping[str, tuple[Dim, ...]]


@dataclass(frozen=True, slots=True)
class _Bound:
    """What a comparison says: ``form >= limit``, or ``form < limit`` where ``is_upper``."""

    form: Affine
    limit: Dim
    is_upper: bool


def total_parts(root: Expr, shapes: Shapes, extents: Mapping[str, Dim]) -> list[Expr]:
    """The largest sub-expressions whose loads are provably inside at every point.

    They may be computed where the root is not wanted, in lanes that a guard switches off.
    """
    partial = _Partial(shapes, extents).find(root)
    found: dict[int, Expr] = {}
    seen: set[int] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if id(node) not in partial:
            found[id(node)] = node
        elif not isinstance(node, Load | Reduce):
            stack.extend(node.children[:1] if _is_select(node) else node.children)
    return list(found.values())


class _Partial:
    """Finds the nodes that may read outside, operands before users."""

    def __init__(self, shapes: Shapes, extents: Mapping[str, Dim]) -> None:
        self._shapes = shapes
        self._extents = dict(extents)
        self._found: set[int] = set()

    def find(self, root: Expr) -> set[int]:
        nodes = walk(root)
        for node in nodes:
            if isinstance(node, Reduce):
                self._extents.update((axis.name, axis.extent) for axis in node.axes)
        for node in nodes:
            if self._is_partial(node):
                self._found.add(id(node))
        return self._found

    def _is_partial(self, node: Expr) -> bool:
        if isinstance(node, Call) and node.op == "checked_index":
            return True
        if isinstance(node, Load) and not self._is_inside(node, ()):
            return True
        if not _is_select(node):
            return any(id(child) in self._found for child in node.children)
        condition, then, otherwise = node.children
        if id(condition) in self._found:
            return True
        return not (self._keeps(then, _bounds(condition)) and self._keeps(otherwise, ()))

    def _keeps(self, branch: Expr, bounds: tuple[_Bound, ...]) -> bool:
        """Whether all loads of a branch are inside, given what its condition says."""
        stack, seen = [branch], {id(branch)}
        while stack:
            node = stack.pop()
            if id(node) not in self._found:
                continue  # inside by itself, with all that it is made of
            if isinstance(node, Call) and node.op == "checked_index":
                return False
            if isinstance(node, Load) and not self._is_inside(node, bounds):
                return False
            for child in node.children:
                if id(child) not in seen:
                    seen.add(id(child))
                    stack.append(child)
        return True

    def _is_inside(self, node: Load, bounds: tuple[_Bound, ...]) -> bool:
        return all(
            self._fits(affine(part), size, bounds)
            for part, size in zip(node.index, self._shapes[node.buffer], strict=True)
        )

    def _fits(self, form: Affine, size: Dim, bounds: tuple[_Bound, ...]) -> bool:
        low = not form.rest and reach(form, self._extents) == 0
        high = not form.rest and beyond(form, size, self._extents) == 0
        for bound in bounds if not (low and high) else ():
            shift = _difference(form, bound.form)
            if shift is None:
                continue
            if bound.is_upper:
                high = high or _is_at_least(size, bound.limit + shift)
            else:
                low = low or _is_at_least(bound.limit + shift, Dim.of(0))
        return low and high


def _is_select(node: Expr) -> bool:
    return isinstance(node, Call) and node.op == "select"


def _bounds(condition: Expr) -> tuple[_Bound, ...]:
    found = []
    for part in conjuncts(condition):
        if not isinstance(part, Call) or part.op not in ("lt", "ge"):
            continue
        if part.args[0].dtype is INT64:  # others compare values, not indices
            limit = affine(part.args[1])
            if limit.is_constant:
                found.append(_Bound(affine(part.args[0]), limit.offset, part.op == "lt"))
    return tuple(found)


def _difference(one: Affine, other: Affine) -> Dim | None:
    """``one - other`` where that is the same at every point."""
    if one.terms != other.terms or one.rest != other.rest:
        return None
    return one.offset - other.offset


def _is_at_least(one: Dim, other: Dim) -> bool:
    difference = one - other
    return difference.is_const and difference.const >= 0
