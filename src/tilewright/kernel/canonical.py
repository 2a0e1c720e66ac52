"""One name for equal computations.

Input -> Output: a ``Kernel`` -> the same kernel with axes, buffers and symbols renamed in order of
appearance (i0.., r0.., t0; in0.., out0.., tmp0..; s0..), and the names that were replaced.
Guarantees: kernels that differ only in names and order of inputs get equal text and fingerprint;
equal reductions become one expression; outputs keep their order.
Not here: recognising equal mathematics in different form.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from tilewright.core.shape import Dim
from tilewright.kernel.ir import (
    Axis,
    AxisVar,
    Buffer,
    Const,
    DimValue,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    axis_var,
    dim_value,
    load,
    rebuild,
    reduce_axes,
    walk,
)
from tilewright.kernel.text import print_kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Canonical:
    """A renamed kernel and what its names stood for.

    Attributes:
        kernel: named ``kernel``, without sources.
        buffers: old buffer name -> new.
        symbols: old symbol -> new.
    """

    kernel: Kernel
    buffers: dict[str, str]
    symbols: dict[str, str]


def canonicalize(kernel: Kernel) -> Canonical:
    """Renames everything in order of appearance; inputs are reordered by first use."""
    kernel = _merge_reductions(kernel)
    buffers = _name_buffers(kernel)
    symbols = _name_symbols(kernel, buffers)
    dims = {old: Dim.symbol(new) for old, new in symbols.items()}
    steps, around = None, dict[str, str]()
    if kernel.steps is not None:
        steps = Axis("t0", kernel.steps.extent.substitute(dims), kernel.steps.ordered)
        around = {kernel.steps.name: "t0"}
    stages = tuple(_final_stage(stage, around, buffers, dims) for stage in kernel.stages)

    def renamed(some: Iterable[Buffer]) -> tuple[Buffer, ...]:
        return tuple(
            Buffer(buffers[old.name], old.dtype, tuple(dim.substitute(dims) for dim in old.shape))
            for old in some
        )

    order = list(buffers)
    result = Kernel(
        name="kernel",
        inputs=renamed(sorted(kernel.inputs, key=lambda buffer: order.index(buffer.name))),
        outputs=renamed(kernel.outputs),
        temporaries=renamed(
            sorted(kernel.temporaries, key=lambda buffer: order.index(buffer.name))
        ),
        stages=stages,
        steps=steps,
    )
    return Canonical(kernel=result, buffers=buffers, symbols=symbols)


def fingerprint(kernel: Kernel) -> str:
    """A SHA-256, in hex, of the canonical text."""
    return hashlib.sha256(print_kernel(canonicalize(kernel).kernel).encode()).hexdigest()


@dataclass(slots=True)
class _Renamer:
    """Rewrites expressions with new names; ``axes`` names a reduction's axes."""

    axes: Callable[[Reduce], tuple[str, ...]]
    buffers: Mapping[str, str] = field(default_factory=dict)
    dims: Mapping[str, Dim] = field(default_factory=dict)
    _done: dict[tuple[int, tuple[tuple[str, str], ...]], Expr] = field(default_factory=dict)

    def expr(self, root: Expr, names: Mapping[str, str]) -> Expr:
        """``names`` maps the axes that are bound around the expression."""
        done: dict[int, Expr] = {}
        for node in walk(root):
            done[id(node)] = self._node(node, names, done)
        return done[id(root)]

    def _node(self, node: Expr, names: Mapping[str, str], done: dict[int, Expr]) -> Expr:
        if isinstance(node, Reduce):
            return self._reduce(node, names)
        if isinstance(node, AxisVar):
            return axis_var(names.get(node.name, node.name))
        if isinstance(node, DimValue):
            return dim_value(node.dim.substitute(self.dims))
        if isinstance(node, Load):
            name = self.buffers.get(node.buffer, node.buffer)
            return load(name, node.dtype, [done[id(child)] for child in node.children])
        if isinstance(node, Const):
            return node
        return rebuild(node, [done[id(child)] for child in node.children])

    def _reduce(self, node: Reduce, names: Mapping[str, str]) -> Expr:
        around = tuple((name, names[name]) for name in sorted(node.free_axes) if name in names)
        key = (id(node), around)
        if key not in self._done:
            fresh = self.axes(node)
            inner = dict(names)
            inner.update((axis.name, new) for axis, new in zip(node.axes, fresh, strict=True))
            axes = tuple(
                Axis(new, axis.extent.substitute(self.dims), axis.ordered)
                for axis, new in zip(node.axes, fresh, strict=True)
            )
            self._done[key] = reduce_axes(node.combiner, axes, self.expr(node.body, inner))
        return self._done[key]

    def stage(self, stage: Stage, axes: tuple[Axis, ...], names: Mapping[str, str]) -> Stage:
        stores = (store.mapped(lambda part: self.expr(part, names)) for store in stage.stores)
        return Stage(
            axes,
            tuple(replace(s, buffer=self.buffers.get(s.buffer, s.buffer)) for s in stores),
        )


def _merge_reductions(kernel: Kernel) -> Kernel:
    """Names reduction axes by their nesting height, so that equal reductions become one object."""
    stages = []
    for stage in kernel.stages:
        heights: dict[int, int] = {}
        for node in walk(*stage.roots):
            own = len(node.axes) if isinstance(node, Reduce) else 0
            heights[id(node)] = own + max((heights[id(part)] for part in node.children), default=0)

        def name(node: Reduce, heights: dict[int, int] = heights) -> tuple[str, ...]:
            top = heights[id(node)]
            return tuple(f"#{top - len(node.axes) + k}" for k in range(len(node.axes)))

        stages.append(_Renamer(name).stage(stage, stage.axes, {}))
    return replace(kernel, stages=tuple(stages))


def _name_buffers(kernel: Kernel) -> dict[str, str]:
    """Old name -> new, in order of appearance; outputs in their own order."""
    names = {buffer.name: f"out{k}" for k, buffer in enumerate(kernel.outputs)}
    kinds = {buffer.name: "in" for buffer in kernel.inputs}
    kinds |= {buffer.name: "tmp" for buffer in kernel.temporaries}
    loaded = [
        node.buffer
        for stage in kernel.stages
        for node in walk(*stage.roots)
        if isinstance(node, Load)
    ]
    stored = [store.buffer for stage in kernel.stages for store in stage.stores]
    counts = {"in": 0, "tmp": 0}
    for old in (*loaded, *stored, *kinds):
        if old not in names:
            names[old] = f"{kinds[old]}{counts[kinds[old]]}"
            counts[kinds[old]] += 1
    return names


def _name_symbols(kernel: Kernel, buffers: Mapping[str, str]) -> dict[str, str]:
    """Old symbol -> new; dims that are just a name come first, as sums have no order."""
    by_name = {buffer.name: buffer for buffer in kernel.buffers}
    dims: list[Dim] = [dim for name in buffers for dim in by_name[name].shape]
    dims.extend([kernel.steps.extent] if kernel.steps is not None else [])
    for stage in kernel.stages:
        dims.extend(axis.extent for axis in stage.axes)
        for node in walk(*stage.roots):
            if isinstance(node, Reduce):
                dims.extend(axis.extent for axis in node.axes)
            elif isinstance(node, DimValue):
                dims.append(node.dim)
    plain = [symbol for dim in dims if (symbol := dim.as_symbol()) is not None]
    every = [symbol for dim in dims for symbol in sorted(dim.symbols)]
    return {old: f"s{k}" for k, old in enumerate(dict.fromkeys((*plain, *every)))}


def _final_stage(
    stage: Stage, around: Mapping[str, str], buffers: Mapping[str, str], dims: Mapping[str, Dim]
) -> Stage:
    numbers: dict[int, int] = {}
    total = 0
    for node in walk(*stage.roots):
        if isinstance(node, Reduce):
            numbers[id(node)] = total
            total += len(node.axes)

    def name(node: Reduce) -> tuple[str, ...]:
        return tuple(f"r{numbers[id(node)] + k}" for k in range(len(node.axes)))

    names = {axis.name: f"i{k}" for k, axis in enumerate(stage.axes)} | dict(around)
    axes = tuple(
        Axis(names[axis.name], axis.extent.substitute(dims), axis.ordered) for axis in stage.axes
    )
    return _Renamer(name, buffers, dims).stage(stage, axes, names)
