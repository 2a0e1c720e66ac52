"""Kernels over blocked layouts: one dim of a buffer split, its inner part last, with borders.

Input -> Output: a ``Kernel`` and the layout of some of its buffers -> the same computation on
them.
    out[n, c, h, w] = f(x[n, c, h, w])  ->  out[n, co, h, w, ci] = f(x[n, co, h, w, ci])
    where c = 16*co + ci
Requires: every access to a blocked buffer is ``splittable``.
Guarantees: values are unchanged; a guard is dropped only where the border provably holds what it
would give; a size that is no multiple of the block is padded, and the padding holds zeros.
Not here: which buffers are blocked (lower.layout).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.core.dtypes import INT64
from tilewright.core.shape import Dim
from tilewright.kernel.affine import Affine, affine
from tilewright.kernel.ir import (
    Axis,
    AxisVar,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    Store,
    axis_var,
    call,
    constant,
    dim_value,
    identity_of,
    load,
    rebuild,
    reduce_axes,
    walk,
)
from tilewright.kernel.ranges import beyond, reach

_COMPARISONS = ("lt", "ge", "le", "gt")


@dataclass(frozen=True, slots=True)
class Layout:
    """How a buffer is stored.

    Attributes:
        dim: the dim that is split.
        block: size of the inner part, which becomes the last dim; 1 splits nothing.
        border: dim -> (elements before, after).
        fill: what the border holds.
    """

    dim: int
    block: int
    border: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    fill: float = 0

    def shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """The shape in memory."""
        sizes = [
            size + sum(self.border.get(position, (0, 0))) for position, size in enumerate(shape)
        ]
        sizes[self.dim] = sizes[self.dim].ceildiv(self.block)
        return (*sizes, Dim.of(self.block))


def divided(form: Affine, block: int, inner: Mapping[str, int]) -> tuple[Expr, Expr] | None:
    """Quotient and remainder of an index by the block, where they are affine.

    Args:
        inner: extents of axes (the sum of one of the block's size with anything divisible needs no
            division).
    """
    if form.rest:
        return None
    quotient = Affine()
    remainder: Expr = constant(0, INT64)
    found = False
    for axis, factor in form.terms.items():
        if inner.get(axis) == block and factor == Dim.of(1) and not found:
            remainder, found = axis_var(axis), True
            continue
        if (factor % block) != Dim.of(0):
            return None
        quotient = quotient + Affine({axis: factor // block})
    if (form.offset % block) != Dim.of(0):
        return None
    quotient = quotient + Affine(offset=form.offset // block)
    return expression(quotient), remainder


def expression(form: Affine) -> Expr:
    """An affine form as an expression."""
    total: Expr = dim_value(form.offset)
    for axis, factor in form.terms.items():
        total = axis_var(axis) * dim_value(factor) + total
    for part, factor in form.rest:
        total = part * dim_value(factor) + total
    return total


def splittable(expr: Expr, extents: Mapping[str, Dim], block: int, size: Dim) -> str | None:
    """The axis to split so that an index into a dim of ``size`` divides by the block, or None."""
    form = affine(expr)
    if form.rest or (form.offset % block) != Dim.of(0):
        return None
    single = [axis for axis, factor in form.terms.items() if factor == Dim.of(1)]
    others = [factor for factor in form.terms.values() if factor != Dim.of(1)]
    if len(single) != 1 or any((factor % block) != Dim.of(0) for factor in others):
        return None
    extent = extents.get(single[0])
    if extent is None or not extent.is_const:
        return None
    alone = extent == size and len(form.terms) == 1 and not form.offset.terms
    return single[0] if alone or extent.const % block == 0 else None


class Blocker:
    """Rewrites the kernels of a segment for given layouts."""

    def __init__(
        self, layouts: Mapping[str, Layout], shapes: Mapping[str, tuple[Dim, ...]]
    ) -> None:
        self.layouts = layouts
        self.shapes = shapes
        self._inner: dict[str, int] = {}
        self._padded: dict[str, Dim] = {}
        self._done: dict[int, Expr] = {}  # within one stage
        self._extents: dict[str, Dim] = {}

    def kernel(self, kernel: Kernel, split: Mapping[str, int] | None = None) -> Kernel:
        """The kernel over the stored shapes; ``split`` are further axes to split, by blocks."""
        if not split and not any(buffer.name in self.layouts for buffer in kernel.buffers):
            return kernel
        stages = tuple(self._stage(stage, split) for stage in kernel.stages)
        borders = [
            stage
            for buffer in kernel.outputs
            if buffer.name in self.layouts
            for stage in self._border_stages(buffer)
        ]
        return replace(
            kernel,
            inputs=tuple(map(self._buffer, kernel.inputs)),
            outputs=tuple(map(self._buffer, kernel.outputs)),
            stages=(*stages, *borders),
        )

    def _buffer(self, buffer: Buffer) -> Buffer:
        layout = self.layouts.get(buffer.name)
        return buffer if layout is None else replace(buffer, shape=layout.shape(buffer.shape))

    # --- stages ----------------------------------------------------------------------------------

    def _stage(self, stage: Stage, split: Mapping[str, int] | None) -> Stage:
        blocks = axes_to_split(stage, self.layouts, self.shapes, split)
        self._inner, self._extents = {}, {axis.name: axis.extent for axis in stage.axes}
        self._padded = {}
        self._done = {}
        names: dict[str, Expr] = {}
        axes: list[Axis] = []
        last: list[Axis] = []
        for axis in stage.axes:
            block = blocks.get(axis.name)
            if block is None:
                axes.append(axis)
                continue
            outer, inner = self._halves(axis, block)
            axes.append(outer)
            last.append(inner)
            names[axis.name] = outer.var * block + inner.var
        return Stage((*axes, *last), tuple(self._store(s, names, blocks) for s in stage.stores))

    def _store(self, store: Store, names: Mapping[str, Expr], blocks: Mapping[str, int]) -> Store:
        index = tuple(self._expr(part, names, blocks) for part in store.index)
        value = self._expr(store.value, names, blocks)
        guard = None if store.guard is None else self._expr(store.guard, names, blocks)
        own, others = self._parts(store.buffer, store.index)
        if (inside := self._inside(own, names)) is not None:  # the padding is there, for zeros
            value = call("blend", inside, value, constant(0, value.dtype))
        if (inside := self._inside(others, names)) is not None:
            guard = inside if guard is None else guard & inside
        return Store(store.buffer, self._index(store.buffer, index), value, guard)

    def _inside(self, index: Sequence[Expr], names: Mapping[str, Expr]) -> Expr | None:
        """The condition under which no padded axis is past its size, if the index has one."""
        total: Expr | None = None
        used = {node.name for node in walk(*index) if isinstance(node, AxisVar)}
        for axis in sorted(used & self._padded.keys()):
            part = call("lt", names[axis], dim_value(self._padded[axis]))
            total = part if total is None else total & part
        return total

    def _halves(self, axis: Axis, block: int) -> tuple[Axis, Axis]:
        outer = Axis(f"{axis.name}o", axis.extent.ceildiv(block))
        inner = Axis(f"{axis.name}i", Dim.of(block))
        if axis.extent.const % block:
            self._padded[axis.name] = axis.extent
        self._inner[inner.name] = block
        self._extents[outer.name] = outer.extent
        self._extents[inner.name] = inner.extent
        return outer, inner

    def _expr(self, root: Expr, names: Mapping[str, Expr], blocks: Mapping[str, int]) -> Expr:
        """Replaces split axes and re-indexes loads, bottom-up."""
        done = self._done
        around = dict(names)
        nodes = [node for node in walk(root) if id(node) not in done]
        for node in nodes:
            if isinstance(node, Reduce):
                for axis in node.axes:
                    self._extents[axis.name] = axis.extent
                    if axis.name in blocks and axis.name not in around:
                        outer, inner = self._halves(axis, blocks[axis.name])
                        around[axis.name] = outer.var * blocks[axis.name] + inner.var
        for node in nodes:
            done[id(node)] = self._node(node, done, around, blocks)
        return done[id(root)]

    def _node(
        self,
        node: Expr,
        done: Mapping[int, Expr],
        names: Mapping[str, Expr],
        blocks: Mapping[str, int],
    ) -> Expr:
        children = [done[id(child)] for child in node.children]
        match node:
            case AxisVar():
                return names.get(node.name, node)
            case Load():
                return self._load(node, children, names)
            case Reduce():
                body = self._masked(node, children[0], names)
                return reduce_axes(node.combiner, self._reduce_axes(node, blocks), body)
            case Call() if node.op in _COMPARISONS:
                return self._comparison(node.op, children)
            case Call() if node.op == "select":
                return self._guarded(children)
        return rebuild(node, children)

    def _load(self, node: Load, children: Sequence[Expr], names: Mapping[str, Expr]) -> Expr:
        found = load(node.buffer, node.dtype, self._index(node.buffer, tuple(children)))
        _, others = self._parts(node.buffer, node.index)
        inside = self._inside(others, names)
        return found if inside is None else call("select", inside, found, constant(0, node.dtype))

    def _parts(self, buffer: str, index: Sequence[Expr]) -> tuple[list[Expr], list[Expr]]:
        """The index into a split dim by one axis of its size, padded as the buffer is, if there is
        one; the other indices, whose dims are not padded."""
        layout, others = self.layouts.get(buffer), list(index)
        if layout is None or layout.block == 1:
            return [], others
        form, size = affine(index[layout.dim]), self.shapes[buffer][layout.dim]
        is_own = any(
            form == Affine({axis: Dim.of(1)}) and self._padded.get(axis, size) == size
            for axis in form.terms
        )
        if not is_own:
            return [], others
        return [others.pop(layout.dim)], others

    def _masked(self, node: Reduce, body: Expr, names: Mapping[str, Expr]) -> Expr:
        """The body, neutral where an axis is past its size."""
        inside: Expr | None = None
        for axis in node.axes:
            if axis.name in self._padded:
                part = call("lt", names[axis.name], dim_value(axis.extent))
                inside = part if inside is None else inside & part
        if inside is None or (node.combiner == "sum" and self._vanishes(body)):
            return body
        neutral = constant(identity_of(node.combiner, body.dtype), body.dtype)
        return call("select", inside, body, neutral)

    def _vanishes(self, body: Expr) -> bool:
        """True for a product of loads that are zero in the padding; of integers, one suffices."""
        if not (isinstance(body, Call) and body.op == "mul"):
            return False
        zeros = [self._zero_in_padding(factor) for factor in body.args]
        return any(zeros) if body.dtype.is_integer else all(zeros)

    def _zero_in_padding(self, factor: Expr) -> bool:
        while isinstance(factor, Cast):
            factor = factor.arg
        if isinstance(factor, Call) and factor.op == "select":
            otherwise = factor.args[2]
            return isinstance(otherwise, Const) and otherwise.value == 0
        return isinstance(factor, Load) and factor.buffer in self.layouts

    def _reduce_axes(self, node: Reduce, blocks: Mapping[str, int]) -> tuple[Axis, ...]:
        outer: list[Axis] = []
        last: list[Axis] = []
        for axis in node.axes:
            if axis.name not in blocks:
                outer.append(axis)
                continue
            first, second = self._halves(axis, blocks[axis.name])
            outer.append(first)
            last.append(second)
        return (*outer, *last)

    def _index(self, buffer: str, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        layout = self.layouts.get(buffer)
        if layout is None:
            return index
        moved = [
            part + layout.border.get(position, (0, 0))[0] for position, part in enumerate(index)
        ]
        if layout.block == 1:
            return (*moved, constant(0, INT64))
        parts = divided(affine(index[layout.dim]), layout.block, self._inner)
        if parts is None:
            block = constant(layout.block, INT64)
            parts = call("div", index[layout.dim], block), call("fmod", index[layout.dim], block)
        moved[layout.dim] = parts[0]
        return (*moved, parts[1])

    # --- guards ----------------------------------------------------------------------------------

    def _comparison(self, op: str, sides: Sequence[Expr]) -> Expr:
        """``16*q + i < 16*k`` is ``q < k`` (and the like for >=), which lanes share."""
        left, right = (affine(side) for side in sides)
        if op in ("lt", "ge") and sides[0].dtype is INT64 and right.is_constant:
            for block in sorted({self._inner[axis] for axis in left.terms if axis in self._inner}):
                parts = divided(left, block, self._inner)
                if parts is not None and (right.offset % block) == Dim.of(0):
                    return call(op, parts[0], dim_value(right.offset // block))
        return call(op, *sides)

    def _guarded(self, children: Sequence[Expr]) -> Expr:
        condition, then, otherwise = children
        inner = then
        while isinstance(inner, Cast):
            inner = inner.arg
        if not isinstance(inner, Load) or inner.buffer not in self.shapes:
            return call("select", condition, then, otherwise)
        layout = self.layouts.get(inner.buffer)
        border: Mapping[int, tuple[int, int]] = {}
        if layout is not None and isinstance(otherwise, Const) and otherwise.value == layout.fill:
            border = layout.border
        kept = [part for part in conjuncts(condition) if not self._covered(part, inner, border)]
        if not kept:
            return then
        total = kept[0]
        for part in kept[1:]:
            total = total & part
        return call("select", total, then, otherwise)

    def _covered(
        self, condition: Expr, access: Load, border: Mapping[int, tuple[int, int]]
    ) -> bool:
        """True when the condition holds always, or the border gives what it guards with."""
        if not isinstance(condition, Call) or condition.op not in ("lt", "ge"):
            return False
        shape = self.shapes[access.buffer]
        layout = self.layouts.get(access.buffer)
        for position, size in enumerate(shape):
            if layout is not None and position == layout.dim:
                continue
            before, after = border.get(position, (0, 0))
            own = affine(access.index[position])
            if layout is not None:
                shift = layout.border.get(position, (0, 0))[0]
                own = own + Affine(offset=Dim.of(-shift))
            if own != affine(condition.args[0]):
                continue
            limit = affine(condition.args[1])
            if condition.op == "ge" and limit == Affine():
                return reach(own, self._extents) <= before
            if condition.op == "lt" and limit == Affine(offset=size):
                return beyond(own, size, self._extents) <= after
        return False

    # --- borders ---------------------------------------------------------------------------------

    def _border_stages(self, buffer: Buffer) -> list[Stage]:
        layout = self.layouts[buffer.name]
        sizes = layout.shape(buffer.shape)
        fill = constant(layout.fill, buffer.dtype)
        stages: list[Stage] = []
        for position, (before, after) in layout.border.items():
            ends = {before: [Dim.of(0)], after: [sizes[position] - after]}
            if before == after:  # one loop for both
                ends[before].insert(0, Dim.of(0))
            for count, starts in ends.items():
                if not count:
                    continue
                axes = tuple(
                    Axis(f"i{k}", Dim.of(count) if k == position else size)
                    for k, size in enumerate(sizes)
                )
                index = [axis.var for axis in axes]
                stores = []
                for start in starts:
                    index[position] = axes[position].var + dim_value(start)
                    stores.append(Store(buffer.name, tuple(index), fill))
                stages.append(Stage(axes, tuple(stores)))
        return stages


def conjuncts(condition: Expr) -> list[Expr]:
    """The parts of a conjunction."""
    if isinstance(condition, Call) and condition.op == "and":
        return [part for arg in condition.args for part in conjuncts(arg)]
    return [condition]


def axes_to_split(
    stage: Stage,
    layouts: Mapping[str, Layout],
    shapes: Mapping[str, tuple[Dim, ...]],
    split: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Axes of a stage and its reductions that index split dims, with their blocks."""
    extents = axis_extents(stage)
    blocks = {name: block for name, block in (split or {}).items() if name in extents}
    for buffer, index in accesses(stage):
        layout = layouts.get(buffer)
        if layout is not None and layout.block > 1:
            size = shapes[buffer][layout.dim]
            axis = splittable(index[layout.dim], extents, layout.block, size)
            if axis is not None:
                blocks[axis] = layout.block
    return blocks


def axis_extents(stage: Stage) -> dict[str, Dim]:
    """Extents of all axes, reduction axes included."""
    extents = {axis.name: axis.extent for axis in stage.axes}
    for node in walk(*(store.value for store in stage.stores)):
        if isinstance(node, Reduce):
            extents.update((axis.name, axis.extent) for axis in node.axes)
    return extents


def axes_of(*exprs: Expr) -> set[str]:
    """Names of the axes that occur in expressions."""
    return {node.name for node in walk(*exprs) if isinstance(node, AxisVar)}


def accesses(stage: Stage) -> list[tuple[str, tuple[Expr, ...]]]:
    """Buffer and index of every store and load."""
    found = [(store.buffer, store.index) for store in stage.stores]
    found += [(node.buffer, node.index) for node in walk(*stage.roots) if isinstance(node, Load)]
    return found
