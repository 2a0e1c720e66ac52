"""Keep values inside of segments as float16: half the bytes, and tensor cores for contractions.

    y = relu(x) : float32   ->   y = float16(relu(float32(x)))
Input -> Output: a fused draft, edited in place; weights of rank 2 and more join the constants again
as float16.
Guarantees: inputs, outputs and what steps of the host read keep their types, as do loops over steps
and weights beyond the range of float16; arithmetic and sums stay float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compiler.build_program import DraftProgram, DraftSegment
from tilewright.core.dtypes import FLOAT16, FLOAT32
from tilewright.core.record import DecisionLog
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Cast,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    Store,
    cast,
    load,
    walk,
)
from tilewright.kernel.ir import transform as rewrite
from tilewright.lower.context import Item, View

Array = npt.NDArray[Any]
_LARGEST = 65504.0
_SUFFIX = "$float16"


def narrow_program(program: DraftProgram, constants: dict[str, Array], log: DecisionLog) -> None:
    """Narrows every segment, those of sub-programs too."""
    for segment in program.segments():
        _narrow_segment(segment, constants, log)


def _narrow_segment(step: DraftSegment, constants: dict[str, Array], log: DecisionLog) -> None:
    _narrow_inputs(step, constants)
    values = _values(step)
    weights = _weights(step, constants, log)
    for name in weights:
        constants[name + _SUFFIX] = constants[name].astype(np.float16)
    renamed = {name: name + _SUFFIX for name in weights}
    step.items = [_item(item, values, renamed) for item in step.items]
    if values or weights:
        subject = f"segment of {len(step.items)} kernels and views"
        chosen = f"{len(values)} values and {len(weights)} weights are float16, sums are float32"
        log.add("precision", subject, chosen)


def _narrow_inputs(step: DraftSegment, constants: Mapping[str, Array]) -> None:
    """Puts a copy before the kernels of what a contraction reads from outside, to be narrowed."""
    kernels = [item for item in step.items if isinstance(item, Kernel) and not _pins(item)]
    made = step.written()
    outside = {
        buffer.name: buffer
        for kernel in kernels
        if any(isinstance(n, Reduce) and n.combiner == "sum" for n in walk(*kernel.roots))
        for buffer in kernel.inputs
        if buffer.name not in constants and buffer.name not in made
        if buffer.dtype is FLOAT32 and len(buffer.shape) > 1
    }
    copies = {name: replace(own, name=f"{name}$copy") for name, own in outside.items()}
    step.items = [_reading(i, copies) if isinstance(i, Kernel) else i for i in step.items]
    step.items[:0] = [_copy(own, copies[name]) for name, own in outside.items()]


def _copy(source: Buffer, target: Buffer) -> Kernel:
    axes = tuple(Axis(f"i{k}", dim) for k, dim in enumerate(source.shape))
    index = tuple(axis.var for axis in axes)
    stage = Stage(axes, (Store(target.name, index, source[index]),))
    return Kernel(
        name="narrow", inputs=(source,), outputs=(target,), stages=(stage,), sources=(source.name,)
    )


def _reading(kernel: Kernel, copies: Mapping[str, Buffer]) -> Kernel:
    """The kernel, of copies."""
    if _pins(kernel) or not any(buffer.name in copies for buffer in kernel.inputs):
        return kernel

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer in copies:
            return load(copies[node.buffer].name, node.dtype, node.index)
        return None

    def renamed(store: Store) -> Store:
        return store.mapped(lambda root: rewrite(root, rule))

    return replace(
        kernel,
        inputs=tuple(copies.get(buffer.name, buffer) for buffer in kernel.inputs),
        stages=tuple(
            replace(stage, stores=tuple(map(renamed, stage.stores))) for stage in kernel.stages
        ),
    )


def _values(step: DraftSegment) -> frozenset[str]:
    """Names of the values that become float16; views of one memory become so together."""
    memory: dict[str, str] = {}

    def root(name: str) -> str:
        while name in memory:
            name = memory[name]
        return name

    kinds: dict[str, Buffer] = {}
    made: set[str] = set()
    kept = set(step.keep)
    for item in step.items:
        if isinstance(item, View):
            memory[item.target.name] = item.source.name
            kinds.update({b.name: b for b in (item.source, item.target)})
            continue
        kinds.update({buffer.name: buffer for buffer in item.buffers})
        made.update(buffer.name for buffer in (*item.outputs, *item.temporaries))
        if _pins(item):
            kept.update(buffer.name for buffer in item.buffers)
    groups: dict[str, list[str]] = {}
    for name in kinds:
        groups.setdefault(root(name), []).append(name)
    return frozenset(
        name
        for own, names in groups.items()
        if own in made and not kept.intersection(names)
        for name in names
        if kinds[name].dtype is FLOAT32
    )


def _pins(kernel: Kernel) -> bool:
    """Whether a kernel's values must keep their types: steps, and bits read as another type."""
    nodes = walk(*kernel.roots)
    return kernel.steps is not None or any(isinstance(n, Cast) and n.bits for n in nodes)


def _weights(step: DraftSegment, constants: dict[str, Array], log: DecisionLog) -> frozenset[str]:
    viewed = {item.source.name for item in step.items if isinstance(item, View)}
    kernels = [item for item in step.items if isinstance(item, Kernel)]
    read = dict.fromkeys(b.name for k in kernels if not _pins(k) for b in k.inputs)
    pinned = {b.name for k in kernels if _pins(k) for b in k.inputs}
    found = []
    for name in read:
        array = constants.get(name)
        if array is None or array.dtype != np.float32 or array.ndim < 2:
            continue
        if name in viewed or name in pinned:
            continue
        finite = array[np.isfinite(array)]
        if finite.size and float(np.abs(finite).max()) > _LARGEST:
            reason = f"a weight is {float(np.abs(finite).max()):.3g}, float16 ends at {_LARGEST:g}"
            log.add("precision", name, "float32", (("float16", reason),))
            continue
        found.append(name)
    return frozenset(found)


def _item(item: Item, values: frozenset[str], weights: dict[str, str]) -> Item:
    if isinstance(item, View):
        source, target = _buffers((item.source, item.target), values, {})
        return replace(item, source=source, target=target)
    stages = tuple(
        replace(stage, stores=tuple(_store(store, values, weights) for store in stage.stores))
        for stage in item.stages
    )
    return replace(
        item,
        stages=stages,
        inputs=_buffers(item.inputs, values, weights),
        outputs=_buffers(item.outputs, values, {}),
        temporaries=_buffers(item.temporaries, values, {}),
    )


def _buffers(
    buffers: Iterable[Buffer], values: frozenset[str], weights: dict[str, str]
) -> tuple[Buffer, ...]:
    return tuple(
        replace(own, name=weights.get(own.name, own.name), dtype=FLOAT16)
        if own.name in values or own.name in weights
        else own
        for own in buffers
    )


def _store(store: Store, values: frozenset[str], weights: dict[str, str]) -> Store:
    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Load) and (node.buffer in values or node.buffer in weights):
            name = weights.get(node.buffer, node.buffer)
            return cast(load(name, FLOAT16, node.index), FLOAT32)
        return None

    changed = store.mapped(lambda root: rewrite(root, rule))
    if store.buffer not in values:
        return changed
    value = changed.value
    exact = value.arg if isinstance(value, Cast) and value.arg.dtype is FLOAT16 else None
    return replace(changed, value=exact if exact is not None else cast(value, FLOAT16))
