"""A stage prepared for scheduling: linear accesses and as few axes as possible.

Input -> Output: a ``Stage`` with its kernel's buffers -> ``Nest``.
    for n, h, w: out[n, h, w] = f(x[n, h, w])   ->   for nhw: out[nhw] = f(x[nhw])
Requires: a verified kernel; an axis name that two reductions bind is bound with the same axes.
Guarantees: two neighbouring axes are merged only if every access steps through them as through
one, and no expression uses either of them by itself.
Not here: choosing vector and unrolled axes (kernel.schedule).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from tilewright.core.shape import Dim
from tilewright.kernel.affine import Affine, access
from tilewright.kernel.ir import Axis, AxisVar, Expr, Kernel, Load, Reduce, Stage, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Nest:
    """One loop nest.

    Attributes:
        axes: the stage's axes after merging.
        stage: the original stage (its expressions use the original axis names).
        loads: id of each ``Load`` -> its linear access, in merged axes.
        stores: the linear access of each store.
        merged: original axis name -> merged axis name (identity where not merged).
        reduce_axes: id of each ``Reduce`` -> its axes after merging.
    """

    axes: tuple[Axis, ...]
    stage: Stage
    loads: Mapping[int, Affine]
    stores: tuple[Affine, ...]
    merged: Mapping[str, str]
    reduce_axes: Mapping[int, tuple[Axis, ...]]

    def depends(self, expr: Expr) -> frozenset[str]:
        """The merged axes that an expression's value depends on."""
        return frozenset(self.merged.get(axis, axis) for axis in expr.free_axes)


def evaluated(store: Store) -> list[Expr]:
    """The expressions of a store that are computed as values (its affine index is not)."""
    return [store.value, *([store.guard] if store.guard is not None else [])]


def prepare(kernel: Kernel, stage: Stage) -> Nest:
    """Linearises and merges (see the module's docstring)."""
    shapes = {buffer.name: buffer.shape for buffer in kernel.buffers}
    nodes = _value_nodes(stage, shapes)
    loads = {id(n): access(n.index, shapes[n.buffer]) for n in nodes if isinstance(n, Load)}
    stores = tuple(access(store.index, shapes[store.buffer]) for store in stage.stores)
    reduces = [n for n in nodes if isinstance(n, Reduce)]
    pinned = {n.name for n in nodes if isinstance(n, AxisVar)}
    forms: list[Affine] = [*loads.values(), *stores]
    merged: dict[str, str] = {}
    axes, forms = _merge(stage.axes, forms, pinned, merged)
    inner: dict[tuple[Axis, ...], tuple[Axis, ...]] = {}
    for own in dict.fromkeys(node.axes for node in reduces):
        inner[own], forms = _merge(own, forms, pinned, merged)
    return Nest(
        axes=axes,
        stage=stage,
        loads=dict(zip(loads, forms, strict=False)),
        stores=tuple(forms[len(loads) :]),
        merged=merged,
        reduce_axes={id(node): inner[node.axes] for node in reduces},
    )


def _value_nodes(stage: Stage, shapes: Mapping[str, tuple[Dim, ...]]) -> list[Expr]:
    """Distinct nodes that are computed: operands of loads count only where they are not affine."""
    seen: dict[int, Expr] = {}

    def visit(expr: Expr) -> None:
        stack = [expr]
        while stack:
            node = stack.pop()
            if id(node) in seen:
                continue
            seen[id(node)] = node
            if isinstance(node, Load):
                form = access(node.index, shapes[node.buffer])
                stack.extend(part for part, _ in form.rest)
            else:
                stack.extend(node.children)

    for store in stage.stores:
        for root in evaluated(store):
            visit(root)
        for part, _ in access(store.index, shapes[store.buffer]).rest:
            visit(part)
    return list(seen.values())


def _merge(
    axes: tuple[Axis, ...], forms: list[Affine], pinned: Set[str], merged: dict[str, str]
) -> tuple[tuple[Axis, ...], list[Affine]]:
    """Merges neighbours from the innermost outwards."""
    result = list(axes)
    position = len(result) - 1
    while position > 0:
        outer, inner = result[position - 1], result[position]
        if _is_single(inner, pinned) and not outer.ordered:
            forms = [_renamed(form, inner.name) for form in forms]
            _redirect(merged, inner.name, outer.name)
            del result[position]
        elif _mergeable(outer, inner, forms, pinned):
            forms = [_renamed(form, outer.name) for form in forms]
            _redirect(merged, outer.name, inner.name)
            result[position - 1 : position + 1] = [
                replace(inner, extent=outer.extent * inner.extent)
            ]
        position -= 1
    return tuple(result), forms


def _redirect(merged: dict[str, str], old: str, new: str) -> None:
    """``old`` and everything that was merged into it are now ``new``."""
    for name in (old, *(name for name, target in merged.items() if target == old)):
        merged[name] = new


def _is_single(axis: Axis, pinned: Set[str]) -> bool:
    return axis.extent == Dim.of(1) and not axis.ordered and axis.name not in pinned


def _mergeable(outer: Axis, inner: Axis, forms: list[Affine], pinned: Set[str]) -> bool:
    if outer.ordered or inner.ordered or outer.name in pinned or inner.name in pinned:
        return False
    if outer.extent == Dim.of(1):
        return True
    for form in forms:
        high, low = form.stride(outer.name), form.stride(inner.name)
        if high is None or low is None or high != low * inner.extent:
            return False
    return True


def _renamed(form: Affine, dropped: str) -> Affine:
    terms = {name: factor for name, factor in form.terms.items() if name != dropped}
    return replace(form, terms=terms)
