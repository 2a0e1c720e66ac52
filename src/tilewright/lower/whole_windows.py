"""Windows that cover all of the data along a dim: sums over its positions instead of over taps.

Input -> Output: a kernel with sums of products over the taps of windows -> the same over positions
    sum(k < 5: select(0 <= o + k - 2 < 3, x[o + k - 2], 0) * w[k])
    ->  sum(i < 3: x[i] * w[i - o + 2])
Requires: wherever a window lies, it reaches from the first to the last element along the dim.
Why: low, wide images (lines of text) have mostly padding in the windows of 5x5 taps.
Guarantees: taps in the padding, which add 0, are neither computed nor guarded; a padded tap whose
weight is not finite counts as 0 too.
Not here: windows that cover less (borders of zeros, lower.borders).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.kernel.affine import ONE, Affine, affine
from tilewright.kernel.blocked import axis_extents, conjuncts, expression
from tilewright.kernel.ir import (
    Axis,
    Call,
    Const,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    load,
    reduce_axes,
    select,
    substitute,
    transform,
)
from tilewright.kernel.ranges import beyond, reach


@dataclass(frozen=True, slots=True)
class _Window:
    """Taps that read at ``tap + first``; each window covers ``0 .. size - 1``."""

    tap: Axis
    first: Affine
    size: Dim

    @property
    def place(self) -> Affine:
        """Where a tap reads."""
        return Affine({self.tap.name: ONE}) + self.first


def over_positions(kernel: Kernel, log: DecisionLog) -> Kernel:
    """The kernel with sums over positions along every dim that its windows cover."""
    stages = tuple(map(_stage, kernel.stages))
    if stages == kernel.stages:
        return kernel
    log.add("layout", "+".join(kernel.sources), "sums over positions, which each window covers")
    return replace(kernel, stages=stages)


def _stage(stage: Stage) -> Stage:
    extents = axis_extents(stage)

    def rule(node: Expr) -> Expr | None:
        return _over_positions(node, extents) if isinstance(node, Reduce) else None

    stores = (store.mapped(lambda root: transform(root, rule)) for store in stage.stores)
    return replace(stage, stores=tuple(stores))


def _over_positions(node: Reduce, extents: Mapping[str, Dim]) -> Expr:
    """A reduction, along positions where it can be."""
    window = next(_windows(node, extents), None)
    if window is None:
        return node
    axis = Axis(f"{window.tap.name}p", window.size)
    tap = axis.var - expression(window.first)
    body = substitute(_unguarded(node.body, window), {window.tap.name: tap})
    axes = tuple(axis if own is window.tap else own for own in node.axes)
    result = reduce_axes(node.combiner, axes, transform(body, _collected))
    further = {**extents, axis.name: axis.extent}
    return _over_positions(result, further) if isinstance(result, Reduce) else result


def _windows(node: Reduce, extents: Mapping[str, Dim]) -> Iterator[_Window]:
    """The taps of a sum that may be replaced."""
    if node.combiner != "sum" or not node.dtype.is_float:
        return
    for part in conjuncts(_guard(node.body)):
        if not (isinstance(part, Call) and part.op == "lt" and isinstance(part.args[1], Const)):
            continue
        form, size = affine(part.args[0]), Dim.of(int(part.args[1].value))
        for tap in node.axes:
            is_fewer = tap.extent.is_const and 0 < size.const < tap.extent.const
            if not is_fewer or form.rest or form.terms.get(tap.name) != ONE:
                continue
            first = form + Affine({tap.name: Dim.of(-1)})
            # Taps ``-first .. size - 1 - first`` read the data; all of them must exist.
            taps = first.scaled(Dim.of(-1))
            ends = taps + Affine(offset=size - 1)
            if not reach(taps, extents) and not beyond(ends, tap.extent, extents):
                yield _Window(tap, first, size)


def _guard(body: Expr) -> Expr:
    """Outside of which a product is 0; the product itself where there is no such condition."""
    if isinstance(body, Call) and body.op == "mul":
        for factor in body.args:
            if isinstance(factor, Call) and factor.op == "select":
                otherwise = factor.args[2]
                if isinstance(otherwise, Const) and otherwise.value == 0:
                    return factor.args[0]
    return body


def _unguarded(body: Expr, window: _Window) -> Expr:
    """Without conditions that hold for all positions."""
    limits = {"ge": Affine(), "lt": Affine(offset=window.size)}

    def holds(part: Expr) -> bool:
        if not (isinstance(part, Call) and part.op in limits):
            return False
        return affine(part.args[0]) == window.place and affine(part.args[1]) == limits[part.op]

    def rule(node: Expr) -> Expr | None:
        if not (isinstance(node, Call) and node.op == "select"):
            return None
        kept = [part for part in conjuncts(node.args[0]) if not holds(part)]
        if not kept:
            return node.args[1]
        condition = kept[0]
        for part in kept[1:]:
            condition = condition & part
        return select(condition, node.args[1], node.args[2])

    return transform(body, rule)


def _collected(node: Expr) -> Expr | None:
    """A load with each index as the sum of its axes."""
    if not isinstance(node, Load):
        return None
    forms = [affine(part) for part in node.index]
    return load(node.buffer, node.dtype, map(expression, forms))
