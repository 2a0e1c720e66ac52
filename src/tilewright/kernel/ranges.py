"""How far an affine index may go, given the extents of its axes.

Input -> Output: an ``Affine`` and extents -> elements below 0, or past a size; ``FAR`` where that
is not proven.
Guarantees: never too small, also for symbolic extents.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.core.shape import Dim, Monomial
from tilewright.kernel.affine import Affine, affine
from tilewright.kernel.ir import Call, Expr, Load, Reduce, walk

FAR = 1 << 30


def reach(form: Affine, extents: Mapping[str, Dim]) -> int:
    """How far below 0 an index may go; ``FAR`` where it is not known."""
    lowest = form.offset
    for axis, factor in form.terms.items():
        if not factor.is_const:
            return FAR
        if factor.const < 0:
            extent = extents.get(axis)
            if extent is None:
                return FAR
            lowest = lowest + factor * (extent - 1)
    if form.rest or not lowest.is_const:
        return FAR
    return max(0, -lowest.const)


def beyond(form: Affine, size: Dim, extents: Mapping[str, Dim]) -> int:
    """How many elements past ``size - 1`` an index may go; ``FAR`` where it is not known."""
    highest = form.offset
    for axis, factor in form.terms.items():
        extent = extents.get(axis)
        if extent is None or not factor.is_const:
            return FAR
        if factor.const > 0:
            highest = highest + factor * (extent - 1)
    if form.rest:
        return FAR
    excess = highest - size + 1
    if not excess.is_const:
        excess = upper_bound(highest) - size + 1
    return max(0, excess.const) if excess.is_const else FAR


def upper_bound(dim: Dim) -> Dim:
    """A dim with ``k * floor(x/k)`` replaced by ``x``, which is not smaller."""
    total = Dim.of(0)
    for monomial, factor in dim.terms:
        total = total + (_unfloored(monomial, factor) or Dim(((monomial, factor),)))
    return total


def _unfloored(monomial: Monomial, factor: int) -> Dim | None:
    """``factor * floor(x/k)`` without the floor, where that is an integer form."""
    if len(monomial) != 1 or monomial[0].op != "floordiv" or factor <= 0:
        return None
    left, right = monomial[0].left, monomial[0].right
    if left is None or right is None or not right.is_const or right.const <= 0:
        return None
    return left * (factor // right.const) if factor % right.const == 0 else None


def total_parts(
    root: Expr, shapes: Mapping[str, tuple[Dim, ...]], extents: Mapping[str, Dim]
) -> list[Expr]:
    """The largest sub-expressions whose loads are provably inside at every point.

    They may be computed where the root is not wanted, in lanes that a guard switches off.
    """
    known = dict(extents)
    nodes = walk(root)
    for node in nodes:
        if isinstance(node, Reduce):
            known.update((axis.name, axis.extent) for axis in node.axes)
    partial: set[int] = set()
    for node in nodes:
        lazy = isinstance(node, Call) and node.op == "select"
        needed = node.children[:1] if lazy else node.children
        if isinstance(node, Call) and node.op == "checked_index":
            partial.add(id(node))
        elif isinstance(node, Load):
            if not _is_inside(node, shapes[node.buffer], known):
                partial.add(id(node))
        elif any(id(child) in partial for child in needed):
            partial.add(id(node))
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
            lazy = isinstance(node, Call) and node.op == "select"
            stack.extend(node.children[:1] if lazy else node.children)
    return list(found.values())


def _is_inside(node: Load, shape: tuple[Dim, ...], extents: Mapping[str, Dim]) -> bool:
    for part, size in zip(node.index, shape, strict=True):
        form = affine(part)
        if form.rest or reach(form, extents) or beyond(form, size, extents):
            return False
    return True
