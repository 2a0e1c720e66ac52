"""Constant operands in the order in which a contraction reads them.

Input -> Output: a kernel whose reduction reads constants -> the kernel over packed copies of
them.
    b[k, 32*jo + ji] for jo, k, ji  ->  packed[jo, k, ji]: the innermost loops read it from end to
    end
Requires: the access is affine in axes of known extents.
Guarantees: a packed copy has as many elements as points of the axes that it depends on; values
are copied.
Not here: which axes are split (lower.layout).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.shape import Dim
from tilewright.kernel.affine import Affine, access, affine
from tilewright.kernel.blocked import conjuncts
from tilewright.kernel.dot import is_dot
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Call,
    Const,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    Store,
    axis_var,
    load,
    rebuild,
    walk,
)
from tilewright.lower.reindex import Refusal

Array = npt.NDArray[Any]


def pack_constants(
    kernel: Kernel, constants: Mapping[str, Array]
) -> tuple[Kernel, dict[str, Array]] | Refusal:
    """Packs every constant that reductions read along the last axis of their stage."""
    shapes = {buffer.name: buffer.shape for buffer in kernel.inputs}
    made: dict[str, tuple[Buffer, Array]] = {}
    stages = tuple(_pack_stage(stage, constants, shapes, made) for stage in kernel.stages)
    if not made:
        return Refusal("no constant operand moves along the last axis")
    roots = [root for stage in stages for root in stage.roots]
    used = {node.buffer for node in walk(*roots) if isinstance(node, Load)}
    kept = [buffer for buffer in kernel.inputs if buffer.name in used]
    inputs = (*kept, *(buffer for buffer, _ in made.values()))
    result = replace(kernel, stages=stages, inputs=inputs)
    return result, {name: array for name, (_, array) in made.items()}


def _pack_stage(
    stage: Stage,
    constants: Mapping[str, Array],
    shapes: Mapping[str, tuple[Dim, ...]],
    made: dict[str, tuple[Buffer, Array]],
) -> Stage:
    replacements: dict[int, Expr] = {}
    for reduce in _reductions(stage):
        for whole, node, inside in _operands(reduce.body, constants):
            form = access(node.index, shapes[node.buffer])
            order = _order(form, stage, reduce)
            if isinstance(order, Refusal) or not constants[node.buffer].size:
                continue
            packed, array = _packed(node, form, order, inside, constants[node.buffer])
            made[packed.name] = packed, array
            index = [axis_var(axis.name) for axis in order]
            replacements[id(whole)] = load(packed.name, packed.dtype, index)
    return _replaced(stage, replacements) if replacements else stage


def _reductions(stage: Stage) -> list[Reduce]:
    roots = [store.value for store in stage.stores]
    return [node for node in walk(*roots) if isinstance(node, Reduce) and node.combiner == "sum"]


def _operands(
    body: Expr, constants: Mapping[str, Array]
) -> list[tuple[Expr, Load, tuple[tuple[Affine, int], ...]]]:
    """Loads of constants: what to replace, the load, and bounds outside of which it is zero."""
    found: list[tuple[Expr, Load, tuple[tuple[Affine, int], ...]]] = []
    guarded: set[int] = set()
    for node in reversed(walk(body)):
        if isinstance(node, Call) and node.op == "select":
            then, otherwise = node.args[1], node.args[2]
            bounds = _bounds(node.args[0])
            zero = isinstance(otherwise, Const) and otherwise.value == 0
            if zero and bounds is not None and isinstance(then, Load) and then.buffer in constants:
                found.append((node, then, bounds))
                guarded.add(id(then))
        elif isinstance(node, Load) and node.buffer in constants and id(node) not in guarded:
            found.append((node, node, ()))
    return found


def _bounds(condition: Expr) -> tuple[tuple[Affine, int], ...] | None:
    """A conjunction of ``form < constant``, or None."""
    result: list[tuple[Affine, int]] = []
    for part in conjuncts(condition):
        if not isinstance(part, Call) or part.op != "lt" or not isinstance(part.args[1], Const):
            return None
        form = affine(part.args[0])
        if form.rest:
            return None
        result.append((form, int(part.args[1].value)))
    return tuple(result)


def _order(form: Affine, stage: Stage, reduce: Reduce) -> list[Axis] | Refusal:
    """The axes of an access: outer ones, the reduction's, the last axis of the stage."""
    if form.rest or not stage.axes:
        return Refusal("the access is not affine")
    last = stage.axes[-1]
    axes = [*stage.axes[:-1], *reduce.axes, last]
    if is_dot(reduce):  # the bytes of one dot product beside each other
        axes = [*stage.axes[:-1], *reduce.axes[:-1], last, reduce.axes[-1]]
    if form.terms.get(last.name) is None and not _is_strided(form, reduce):
        return Refusal("the access does not move along the last axis")
    order = [axis for axis in axes if axis.name in form.terms]
    if len(order) != len(form.terms):
        return Refusal("the access depends on another reduction")
    if not all(axis.extent.is_const for axis in order) or not form.offset.is_const:
        return Refusal("an extent is not known")
    if not all(factor.is_const for factor in form.terms.values()):
        return Refusal("a stride is not known")
    return order


def _is_strided(form: Affine, reduce: Reduce) -> bool:
    """True when the access gathers along the reduction's last axis, which lanes may run along."""
    stride = form.terms.get(reduce.axes[-1].name)
    return stride is not None and stride.is_const and stride.const > 1


def _packed(
    node: Load,
    form: Affine,
    order: list[Axis],
    inside: tuple[tuple[Affine, int], ...],
    array: Array,
) -> tuple[Buffer, Array]:
    text = ",".join(f"{axis.extent}*{form.terms[axis.name]}" for axis in order)
    name = f"{node.buffer}/packed[{text}+{form.offset}]"
    dims = tuple(axis.extent for axis in order)
    flat = array.reshape(-1)
    if not inside:
        return Buffer(name, node.dtype, dims), _strided(flat, form, order)
    where = _grid(form, order)
    # What a guard around the load leaves out may lie anywhere, and is not used.
    mask = (where >= 0) & (where < flat.size)
    for bound, limit in inside:
        mask &= _grid(bound, order) < limit
        name += f"[{limit}]"
    data = np.where(mask, flat[np.where(mask, where, 0)], array.dtype.type(0))
    return Buffer(name, node.dtype, dims), data


def _span(form: Affine, order: list[Axis]) -> tuple[int, int]:
    """The lowest and highest element that an access reaches."""
    ends = [form.terms[axis.name].const * (axis.extent.const - 1) for axis in order]
    first = form.offset.const + sum(end for end in ends if end < 0)
    return first, form.offset.const + sum(end for end in ends if end > 0)


def _strided(flat: Array, form: Affine, order: list[Axis]) -> Array:
    """The elements at an affine form, copied; an index array would cost ten times as much."""
    steps = [form.terms[axis.name].const for axis in order]
    sizes = [axis.extent.const for axis in order]
    first, last = _span(form, order)
    if not all(sizes):
        return np.empty(sizes, dtype=flat.dtype)
    if first < 0 or last >= flat.size:
        # A choice around the load leaves points out; those may lie anywhere, and are not used.
        return np.asarray(flat[np.clip(_grid(form, order), 0, flat.size - 1)])
    strides = [step * flat.itemsize for step in steps]
    window = np.lib.stride_tricks.as_strided(flat[form.offset.const :], sizes, strides)
    return np.ascontiguousarray(window)


def _grid(form: Affine, order: list[Axis]) -> npt.NDArray[np.int64]:
    """An affine form at every point of some axes."""
    total = np.zeros(tuple(axis.extent.const for axis in order), dtype=np.int64)
    total += form.offset.const
    for position, axis in enumerate(order):
        if axis.name in form.terms:
            steps = np.arange(axis.extent.const) * form.terms[axis.name].const
            sizes = [1] * len(order)
            sizes[position] = axis.extent.const
            total += steps.reshape(sizes)
    return total


def _replaced(stage: Stage, replacements: Mapping[int, Expr]) -> Stage:
    def rewritten(root: Expr) -> Expr:
        done: dict[int, Expr] = {}
        for node in walk(root):
            done[id(node)] = replacements.get(id(node)) or rebuild(
                node, [done[id(child)] for child in node.children]
            )
        return done[id(root)]

    stores = tuple(
        Store(store.buffer, store.index, rewritten(store.value), store.guard)
        for store in stage.stores
    )
    return Stage(stage.axes, stores)
