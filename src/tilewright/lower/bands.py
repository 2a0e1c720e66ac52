"""Chains of kernels band by band, so that what they hand on stays in the second cache.

Input -> Output: a segment's kernels -> the same with some chains as one kernel of several steps.
    v[t, ..] = f(x, t);  m[t, ..] = g(v[t, ..]);  y = h(m[t, ..])  for all t
    ->  in steps of few t:  v and m hold these t only
Requires: each kernel reads what the one before it wrote at its own index along some dim.
Guarantees: values are unchanged; every other reader of a value, and every border, keeps it whole.
Why: the tiles of a Winograd convolution are several times as large as its image, and would be
written to memory and read again.
Not here: what a step is (kernel.ir), who runs it (runtime).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.kernel.blocked import accesses
from tilewright.kernel.ir import Axis, AxisVar, Buffer, Expr, Kernel, Load, Stage, load
from tilewright.kernel.traverse import transform
from tilewright.lower.context import Item, View
from tilewright.lower.strassen import is_image

_CACHE_BYTES = 1 << 20  # second caches of one processor
_WORTH = 2  # times the cache, and what the chain reads and writes, that values have to exceed
_USUAL_SIZE = 40  # of a symbolic dim of an image
ONE = Dim.of(1)


def in_bands(
    items: Sequence[Item], keep: Collection[str], constants: Collection[str], log: DecisionLog
) -> list[Item]:
    """Joins every chain of three kernels that hand on far more than they read and write."""
    users: dict[str, int] = {}
    for item in items:
        for name in [item.source.name] if isinstance(item, View) else [b.name for b in item.inputs]:
            users[name] = users.get(name, 0) + 1
    private = {name for name, count in users.items() if count == 1} - set(keep)
    result: list[Item] = []
    for item in items:
        result.append(item)
        chain = [one for one in result[-3:] if isinstance(one, Kernel)]
        if len(chain) == 3 and _is_chain(chain, private):
            found = _band(chain, constants)
            if found is not None:
                dim, count = found
                result[-3:] = [_joined(chain, dim, count)]
                log.add(
                    "bands",
                    "+".join(chain[-1].sources),
                    f"{count} of {_extent(chain, dim)} at a time",
                )
    return result


def _is_chain(chain: Sequence[Kernel], private: Collection[str]) -> bool:
    plain = all(k.steps is None and not k.temporaries and len(k.outputs) == 1 for k in chain)
    if not plain or any(axis.ordered for k in chain for stage in k.stages for axis in stage.axes):
        return False
    handed = [(k.outputs[0].name, after) for k, after in pairwise(chain)]
    return all(
        name in private and name in {b.name for b in after.inputs} for name, after in handed
    ) and all(len(kernel.stages) == 1 for kernel in chain[:-1])


def _band(chain: Sequence[Kernel], constants: Collection[str]) -> tuple[int, int] | None:
    """The dim along which the chain goes, and how much of it in one step."""
    values = [kernel.outputs[0] for kernel in chain[:-1]]
    if any(len(value.shape) != len(values[0].shape) for value in values):
        return None
    if not chain[-1].outputs[0].shape:  # one number of all of it
        return None
    if any(is_image(value.name) and not _is_known(value) for value in values):
        return None  # a band would be one row of halves, too little for threads to share
    images = chain[-1].outputs[0].shape[0]
    weights = sum(
        _bytes(b, images) for kernel in chain for b in kernel.inputs if b.name in constants
    )
    whole = sum(_bytes(value, images) for value in values)
    names = {value.name for value in values}
    ends = {
        b.name: b for k in chain for b in (*k.inputs, *chain[-1].outputs) if b.name not in names
    }
    around = sum(_bytes(b, images) for name, b in ends.items() if name not in constants)
    if whole <= _WORTH * max(_CACHE_BYTES, around):
        return None
    for dim, extent in enumerate(values[0].shape):
        if extent == ONE or _axes(chain, dim) is None:
            continue
        one = whole // _size(extent, images)
        most = extent.const if extent.is_const else 1  # a last, shorter band would need guards
        counts = [k for k in range(1, most + 1) if not extent.is_const or most % k == 0]
        fitting = [k for k in counts if k * one + weights <= _CACHE_BYTES]
        if fitting:
            return dim, fitting[-1]
    return None


def _is_known(buffer: Buffer) -> bool:
    return all(size.is_const for size in buffer.shape)


def _extent(chain: Sequence[Kernel], dim: int) -> Dim:
    return chain[0].outputs[0].shape[dim]


def _bytes(buffer: Buffer, images: Dim) -> int:
    total = buffer.dtype.storage_bytes
    for size in buffer.shape:
        total *= _size(size, images)
    return total


def _size(dim: Dim, images: Dim) -> int:
    """What to expect: of a symbolic number of images one, as bands of many are no worse."""
    if dim.is_const:
        return dim.const
    return 1 if dim == images else _USUAL_SIZE


def _axes(chain: Sequence[Kernel], dim: int) -> list[str | None] | None:
    """Each stage's axis that indexes the dim of all values handed on, or None.

    A stage that touches none of them, as of a border, has no such axis: it stays as it is.
    """
    handed = {kernel.outputs[0].name for kernel in chain[:-1]}
    found: list[str | None] = []
    for stage in (stage for kernel in chain for stage in kernel.stages):
        indices = [index[dim] for name, index in accesses(stage) if name in handed]
        names = {index.name if isinstance(index, AxisVar) else "" for index in indices}
        if len(names) > 1 or not names <= {axis.name for axis in stage.axes}:
            return None
        found.append(min(names, default=None))
    return found


def _joined(chain: Sequence[Kernel], dim: int, count: int) -> Kernel:
    last, values = chain[-1], [kernel.outputs[0] for kernel in chain[:-1]]
    extent = _extent(chain, dim)
    band = Axis("band", extent.ceildiv(count))
    names = {value.name for value in values}
    stages = [
        stage if axis is None else in_step(stage, axis, band, count, dict.fromkeys(names, dim))
        for stage, axis in zip(
            (stage for kernel in chain for stage in kernel.stages),
            _axes(chain, dim) or (),
            strict=True,
        )
    ]
    short = tuple(
        replace(v, shape=(*v.shape[:dim], Dim.of(count), *v.shape[dim + 1 :])) for v in values
    )
    inputs = {b.name: b for kernel in chain for b in kernel.inputs if b.name not in names}
    return replace(
        last,
        name=f"{last.name} in bands",
        inputs=tuple(inputs.values()),
        temporaries=short,
        stages=tuple(stages),
        steps=band,
    )


def in_step(stage: Stage, axis: str, step: Axis, count: int, handed: Mapping[str, int]) -> Stage:
    """The stage for so many places of an axis at a time.

    Args:
        handed: the dim of each value handed on that the axis indexes, now within the step; all
            else is indexed as before.
    """
    local = next(one for one in stage.axes if one.name == axis)
    place = step.var * count + local.var if count > 1 else step.var

    def inside(buffer: str, index: Sequence[Expr]) -> tuple[Expr, ...]:
        dim = handed[buffer]
        return (*index[:dim], local.var, *index[dim + 1 :])

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer in handed:
            return load(node.buffer, node.dtype, inside(node.buffer, node.index))
        return place if isinstance(node, AxisVar) and node.name == axis else None

    stores = tuple(store.mapped(lambda root: transform(root, rule)) for store in stage.stores)
    stores = tuple(
        replace(store, index=inside(store.buffer, store.index)) if store.buffer in handed else store
        for store in stores
    )
    axes = tuple(replace(one, extent=Dim.of(count)) if one is local else one for one in stage.axes)
    return Stage(axes, stores)
