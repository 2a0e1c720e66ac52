"""Lay images out with their channels side by side, where a contraction over channels reads them.

    x[n, c, h, w], sum over c, kh, kw   ->   x[n, h, w, c], sum over kh, kw, c
Input -> Output: a fused draft, edited in place; weights of convolutions join the constants again,
laid out alike.
Requires: values of narrow types (only then do contractions copy chunks of neighbours to tensor
cores); others stay.
Guarantees: inputs, outputs, what steps of the host read, and values with views keep their layout;
what is computed does not change, but the order of sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.codegen.cuda.elements import is_narrow
from tilewright.compiler.build_program import DraftProgram, DraftSegment
from tilewright.core.record import DecisionLog
from tilewright.kernel.ir import (
    AxisVar,
    Buffer,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    Store,
    load,
    reduce_axes,
    walk,
)
from tilewright.kernel.ir import transform as rewrite
from tilewright.lower.context import View

Array = npt.NDArray[Any]
_SUFFIX = "$channels_last"


def channels_last_program(
    program: DraftProgram, constants: dict[str, Array], log: DecisionLog
) -> None:
    """Chooses layouts in every segment, those of sub-programs too."""
    for segment in program.segments():
        _segment(segment, constants, log)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Values and weights that change their layout; weights by their new names."""

    values: frozenset[str]
    weights: Mapping[str, str]

    def name(self, buffer: str) -> str:
        return self.weights.get(buffer, buffer)

    def includes(self, buffer: str) -> bool:
        return buffer in self.values or buffer in self.weights


def _segment(step: DraftSegment, constants: dict[str, Array], log: DecisionLog) -> None:
    kernels = [item for item in step.items if isinstance(item, Kernel)]
    values = _values(step, kernels, constants)
    weights = _weights(kernels, values, constants)
    for name in weights:
        constants[name + _SUFFIX] = np.ascontiguousarray(np.moveaxis(constants[name], 1, -1))
    chosen = _Chosen(values, {name: name + _SUFFIX for name in weights})
    step.items = [
        _kernel(item, chosen) if isinstance(item, Kernel) else item for item in step.items
    ]
    if values:
        text = f"{len(values)} values and {len(weights)} weights have their channels last"
        log.add("layout", f"segment of {len(kernels)} kernels", text)


def _values(
    step: DraftSegment, kernels: list[Kernel], constants: Mapping[str, Array]
) -> frozenset[str]:
    """Inside values that convolutions read, and those of their rank that kernels tie to them."""
    viewed = {
        buffer.name
        for item in step.items
        if isinstance(item, View)
        for buffer in (item.source, item.target)
    }
    inside = {b.name for kernel in kernels for b in (*kernel.outputs, *kernel.temporaries)}
    inside -= viewed | set(step.keep)
    able = {
        b.name: b
        for kernel in kernels
        if kernel.steps is None
        for b in kernel.buffers
        if b.name in inside and len(b.shape) >= 3 and is_narrow(b.dtype.numpy)
    }
    pinned = {b.name for kernel in kernels if kernel.steps is not None for b in kernel.buffers}
    found = {
        name for kernel in kernels for name in _image_inputs(kernel, constants)
    } & able.keys() - pinned
    grown = True
    while grown:
        before = len(found)
        for kernel in kernels:
            names = {b.name for b in kernel.buffers if b.name in able} - pinned
            ranks = {len(able[name].shape) for name in names}
            if names & found and len(ranks) == 1:
                found |= names
        grown = len(found) > before
    return frozenset(found)


def _sums(kernel: Kernel) -> list[Reduce]:
    return [n for n in walk(*kernel.roots) if isinstance(n, Reduce) and n.combiner == "sum"]


def _image_inputs(kernel: Kernel, constants: Mapping[str, Array]) -> set[str]:
    """Buffers that a sum reads along dim 1 together with a weight of the same rank."""
    found: set[str] = set()
    for node in _sums(kernel):
        loads = [n for n in walk(node.body) if isinstance(n, Load) and len(n.index) >= 3]
        inner = {axis.name for axis in node.axes}
        depths = {
            (len(part.index), part.index[1].free_axes & inner)
            for part in loads
            if part.buffer in constants
        }
        for part in loads:
            channel = part.index[1].free_axes & inner
            is_depth = bool(channel) and (len(part.index), channel) in depths
            if is_depth and part.buffer not in constants:
                found.add(part.buffer)
    return found


def _weights(
    kernels: list[Kernel], values: frozenset[str], constants: Mapping[str, Array]
) -> list[str]:
    """Constants whose dim 1 is summed along in kernels that read a changed value."""
    found: dict[str, bool] = {}
    for kernel in kernels:
        touched = any(buffer.name in values for buffer in kernel.buffers)
        for node in _sums(kernel):
            inner = {axis.name for axis in node.axes}
            for part in walk(node.body):
                if isinstance(part, Load) and part.buffer in constants and len(part.index) >= 3:
                    along = bool(part.index[1].free_axes & inner)
                    narrow = is_narrow(constants[part.buffer].dtype)
                    fits = touched and along and narrow and kernel.steps is None
                    found[part.buffer] = found.get(part.buffer, True) and fits
    return [name for name, fits in found.items() if fits and _only_in_sums(name, kernels)]


def _only_in_sums(name: str, kernels: list[Kernel]) -> bool:
    inside = sum(
        isinstance(n, Load) and n.buffer == name
        for kernel in kernels
        for node in _sums(kernel)
        for n in walk(node.body)
    )
    everywhere = sum(
        isinstance(n, Load) and n.buffer == name for k in kernels for n in walk(*k.roots)
    )
    return inside == everywhere


# --- rewriting ------------------------------------------------------------------------------------


def _moved(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    return (parts[0], *parts[2:], parts[1])


def _kernel(kernel: Kernel, chosen: _Chosen) -> Kernel:
    if not any(chosen.includes(buffer.name) for buffer in kernel.buffers):
        return kernel

    def buffers(some: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        return tuple(
            replace(own, name=chosen.name(own.name), shape=_moved(own.shape))
            if chosen.includes(own.name)
            else own
            for own in some
        )

    return replace(
        kernel,
        inputs=buffers(kernel.inputs),
        outputs=buffers(kernel.outputs),
        temporaries=buffers(kernel.temporaries),
        stages=tuple(_stage(stage, chosen) for stage in kernel.stages),
    )


def _stage(stage: Stage, chosen: _Chosen) -> Stage:
    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Load) and chosen.includes(node.buffer):
            return load(chosen.name(node.buffer), node.dtype, _moved(node.index))
        if isinstance(node, Reduce):
            return _channels_innermost(node, chosen)
        return None

    stores = tuple(
        _store(store.mapped(lambda e: rewrite(e, rule)), chosen) for store in stage.stores
    )
    axes = stage.axes
    if not any(axis.ordered for axis in axes):
        index = next((s.index for s in stores if s.buffer in chosen.values), ())
        order = [part.name for part in index if isinstance(part, AxisVar)]
        if len(order) == len(axes) and set(order) == {axis.name for axis in axes}:
            axes = tuple(sorted(axes, key=lambda axis: order.index(axis.name)))
    return Stage(axes, stores)


def _store(store: Store, chosen: _Chosen) -> Store:
    if store.buffer not in chosen.values:
        return store
    return replace(store, index=_moved(store.index))


def _channels_innermost(node: Reduce, chosen: _Chosen) -> Expr | None:
    """The reduction with the axis of channels, the last one of changed loads, as its last."""
    names = {chosen.name(name) for name in (*chosen.values, *chosen.weights)}
    for part in walk(node.body):
        if isinstance(part, Load) and part.buffer in names and isinstance(part.index[-1], AxisVar):
            last = [axis for axis in node.axes if axis.name == part.index[-1].name]
            others = [axis for axis in node.axes if axis not in last]
            if last and node.axes[-1] is not last[0]:
                return reduce_axes(node.combiner, (*others, *last), node.body)
    return None
