"""Chains of kernels image by image, so that what they hand on stays in the last cache.

Input -> Output: a segment's kernels -> the same with some runs of neighbours as one kernel of
several steps, a few images in each.
    a[n, ..] = f(x, n);  b[n, ..] = g(a[n, ..]);  y[n, ..] = h(b[n, ..])  for all n
    ->  in steps of few n:  a and b hold these n only
Requires: each kernel reads what others of the chain wrote at its own index along the images
(a ``Refusal`` says what does not).
Guarantees: values are unchanged; what is read outside of a chain is kept whole; values of equal
shape share memory where the first has been read before the second is written.
Why: a batch of images between two layers is larger than the caches, one image is not.
Not here: chains along other dims (lower.bands), what a step is (kernel.ir), who runs it (runtime).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from tilewright.core.dtypes import DType
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Axis, Buffer, Expr, Kernel, Load, Stage, axis_var, load, walk
from tilewright.kernel.traverse import transform
from tilewright.lower.bands import in_step
from tilewright.lower.context import Item, View
from tilewright.lower.reindex import Refusal

_CACHE_BYTES = 16 << 20  # of the last cache: for the values of a step and the chain's weights
_LARGE_BYTES = 4 << 20  # of all images: a value that does not stay near by itself
_ALWAYS = 1 << 30  # the last reader of what is read outside of the segment
ONE = Dim.of(1)


@dataclass(slots=True)
class _Chain:
    """Neighbouring kernels.

    Attributes:
        images: how many there are.
        dims: along which dim they lie in each value that the kernels write.
        axes: the axis of the images in each stage of each kernel.
    """

    images: int
    kernels: list[Kernel] = field(default_factory=list)
    dims: dict[str, int] = field(default_factory=dict)
    axes: list[list[str]] = field(default_factory=list)

    def copy(self) -> _Chain:
        """As far as it goes now."""
        return _Chain(self.images, [*self.kernels], dict(self.dims), [*self.axes])


def by_images(
    items: Sequence[Item], keep: Collection[str], constants: Collection[str], log: DecisionLog
) -> list[Item]:
    """Joins every run of kernels that hand on more than the last cache holds."""
    last = _last_readers(items, keep)
    result: list[Item] = []
    start = 0
    while start < len(items):
        item = items[start]
        found = _chain(items, start, last, constants)
        if isinstance(found, Refusal):
            if isinstance(item, Kernel) and any(_is_large(b) for b in _written(item)):
                reason = (("image by image", found.reason),)
                log.add("bands", "+".join(item.sources), "all images at once", reason)
            result.append(item)
            start += 1
            continue
        chain, count = found
        start += len(chain.kernels)
        result.append(_joined(chain, {n for n in chain.dims if last[n] >= start}, count))
        log.add(
            "bands",
            "+".join(_sources(chain)),
            f"{len(chain.kernels)} kernels, {count} of {chain.images} images at a time",
        )
    return result


def _last_readers(items: Sequence[Item], keep: Collection[str]) -> dict[str, int]:
    last: dict[str, int] = dict.fromkeys((b.name for i in items for b in _written(i)), -1)
    for number, item in enumerate(items):
        for buffer in [item.source] if isinstance(item, View) else item.inputs:
            last[buffer.name] = number
    return {**last, **dict.fromkeys(keep, _ALWAYS)}


def _written(item: Item) -> tuple[Buffer, ...]:
    return (item.target,) if isinstance(item, View) else (*item.outputs, *item.temporaries)


# --- which kernels --------------------------------------------------------------------------------


def _chain(
    items: Sequence[Item], start: int, last: Mapping[str, int], constants: Collection[str]
) -> tuple[_Chain, int] | Refusal:
    """The chain that begins at an item, and how many images it takes at a time."""
    images = _images(items[start])
    if isinstance(images, Refusal):
        return images
    chain = _Chain(images)
    best: tuple[_Chain, int] | Refusal = Refusal("no large value is handed on")
    for item in items[start:]:
        reads_large = any(
            buffer.name in chain.dims and _is_large(buffer)
            for buffer in ([] if isinstance(item, View) else item.inputs)
        )
        reason = _extend(chain, item)
        if reason is not None:
            return best if isinstance(best, tuple) else reason
        one, weights = _live_bytes(chain, start, last) // images, _weights(chain, constants)
        if one + weights > _CACHE_BYTES:
            return best
        if reads_large and one * images > _CACHE_BYTES:
            fitting = [k for k in range(1, images + 1) if k * one + weights <= _CACHE_BYTES]
            best = chain.copy(), max(k for k in fitting if images % k == 0)
        elif isinstance(best, Refusal) and not any(map(_is_large, _written(chain.kernels[0]))):
            return best
    return best


def _images(item: Item) -> int | Refusal:
    """How many images a chain may divide that begins with the item."""
    if isinstance(item, View):
        return Refusal("it is a view")
    axes = item.stages[0].axes
    extent = axes[0].extent if axes else ONE
    if not extent.is_const:
        return Refusal("the number of images is not known")
    return extent.const if extent.const > 1 else Refusal("there is one image")


def _live_bytes(chain: _Chain, start: int, last: Mapping[str, int]) -> int:
    """Bytes of the values that have been written and are still to be read, at the worst place."""
    most = 0
    for place in range(len(chain.kernels)):
        values = [b for kernel in chain.kernels[: place + 1] for b in _written(kernel)]
        ends = {b.name: min(last[b.name] - start, len(chain.kernels)) for b in values}
        own = {b.name for b in _written(chain.kernels[place])}
        most = max(most, sum(_bytes(b) for b in values if b.name in own or ends[b.name] >= place))
    return most


def _weights(chain: _Chain, constants: Collection[str]) -> int:
    read = {b.name: b for kernel in chain.kernels for b in kernel.inputs if b.name in constants}
    return sum(map(_bytes, read.values()))


def _bytes(buffer: Buffer) -> int:
    return buffer.dtype.storage_bytes * prod(
        size.const if size.is_const else 1 for size in buffer.shape
    )


def _is_large(buffer: Buffer) -> bool:
    return _bytes(buffer) >= _LARGE_BYTES


def _extend(chain: _Chain, item: Item) -> Refusal | None:
    """Adds a kernel to the chain, or says why it must not be."""
    if isinstance(item, View):
        return Refusal(f"{item.target.name} is a view")
    if item.steps is not None:
        return Refusal(f"{item.name} goes in steps")
    dims = dict(chain.dims)
    axes: list[str] = []
    for stage in item.stages:
        axis = _image_axis(stage, dims, chain.images)
        if isinstance(axis, Refusal):
            return axis
        axes.append(axis)
        for store in stage.stores:
            places = [k for k, part in enumerate(store.index) if part == axis_var(axis)]
            if len(places) != 1 or dims.setdefault(store.buffer, places[0]) != places[0]:
                return Refusal(f"{store.buffer} is not written image by image")
        buffers = {b.name: b for b in item.buffers}
        whole = Dim.of(chain.images)
        if any(buffers[s.buffer].shape[dims[s.buffer]] != whole for s in stage.stores):
            return Refusal(f"{stage.stores[0].buffer} holds more than the images")
    chain.kernels.append(item)
    chain.axes.append(axes)
    chain.dims.update(dims)
    return None


def _image_axis(stage: Stage, dims: Mapping[str, int], images: int) -> str | Refusal:
    """The axis of a stage that goes over the images."""
    if any(axis.ordered for axis in stage.axes):
        return Refusal("a stage runs in order")
    loads = [n for n in walk(*stage.roots) if isinstance(n, Load) and n.buffer in dims]
    parts: list[Expr] = [node.index[dims[node.buffer]] for node in loads]
    parts += [s.index[dims[s.buffer]] for s in stage.stores if s.buffer in dims]
    found = set(parts) or {axis.var for axis in stage.axes[:1]}
    for axis in stage.axes:
        if found == {axis.var} and axis.extent == Dim.of(images):
            return axis.name
    return Refusal(f"{stage.stores[0].buffer} is not computed image by image")


# --- one kernel of them ---------------------------------------------------------------------------


def _joined(chain: _Chain, kept: Collection[str], count: int) -> Kernel:
    step = Axis("images", Dim.of(chain.images // count))
    values = {b.name: b for kernel in chain.kernels for b in _written(kernel)}
    handed = {name: dim for name, dim in chain.dims.items() if name not in kept}
    short = {name: _shortened(values[name], dim, count) for name, dim in handed.items()}
    stages = [
        in_step(stage, axis, step, count, handed)
        for kernel, axes in zip(chain.kernels, chain.axes, strict=True)
        for stage, axis in zip(kernel.stages, axes, strict=True)
    ]
    places = _shared(stages, short)
    inputs = {b.name: b for k in chain.kernels for b in k.inputs if b.name not in values}
    return Kernel(
        name=f"{chain.kernels[0].name} to {chain.kernels[-1].name} by images",
        inputs=tuple(inputs.values()),
        outputs=tuple(values[name] for name in chain.dims if name in kept),
        temporaries=tuple(short[name] for name in dict.fromkeys(places.values())),
        stages=tuple(_renamed(stage, places) for stage in stages),
        steps=step,
        sources=_sources(chain),
    )


def _shortened(buffer: Buffer, dim: int, count: int) -> Buffer:
    return replace(buffer, shape=(*buffer.shape[:dim], Dim.of(count), *buffer.shape[dim + 1 :]))


def _shared(stages: Sequence[Stage], values: Mapping[str, Buffer]) -> dict[str, str]:
    """Where each value lies: at its own place, or at that of one that has been read."""
    touched = [
        {store.buffer for store in stage.stores}
        | {node.buffer for node in walk(*stage.roots) if isinstance(node, Load)}
        for stage in stages
    ]
    last = {name: place for place, names in enumerate(touched) for name in names}
    free: dict[tuple[DType, tuple[Dim, ...]], list[str]] = {}
    places: dict[str, str] = {}
    for place, names in enumerate(touched):
        own = sorted(names & values.keys())
        for name in own:
            kind = values[name].dtype, values[name].shape
            if name not in places:
                places[name] = free[kind].pop() if free.get(kind) else name
        for name in own:
            if last[name] == place:
                free.setdefault((values[name].dtype, values[name].shape), []).append(places[name])
    return places


def _renamed(stage: Stage, places: Mapping[str, str]) -> Stage:
    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer in places:
            return load(places[node.buffer], node.dtype, node.index)
        return None

    stores = (store.mapped(lambda root: transform(root, rule)) for store in stage.stores)
    return replace(
        stage,
        stores=tuple(replace(s, buffer=places.get(s.buffer, s.buffer)) for s in stores),
    )


def _sources(chain: _Chain) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for kernel in chain.kernels for name in kernel.sources))
