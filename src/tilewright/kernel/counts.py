"""How much memory a kernel touches, and how much it computes.

Input -> Output: a kernel -> bytes of each buffer, operations, the type that they are in.
Guarantees: counts are formulas of the symbols. Bytes are compulsory traffic: each element that can
be reached, once, in the type that it is stored in. Operations are those on loaded values: address
arithmetic, masks of padding, choices and conversions are not work.
Not here: strides (kernel.affine), caches and rooflines (hw).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.core.dtypes import INT8, INT32, DType
from tilewright.core.shape import Dim, product
from tilewright.kernel.affine import affine
from tilewright.kernel.dot import terms_of
from tilewright.kernel.ir import (
    Buffer,
    Call,
    Cast,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    products,
    walk,
)

_FREE = frozenset(("select", "blend", "checked_index"))
_ONE = Dim.of(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Compulsory traffic in bytes, and arithmetic operations.

    Attributes:
        bytes_read, bytes_written: of all buffers together.
        traffic: bytes of each buffer of the kernel; 0 for its private temporaries.
        flops: operations; a multiplication and an addition are two.
    """

    bytes_read: Dim
    bytes_written: Dim
    traffic: Mapping[str, Dim]
    flops: Dim


def count(kernel: Kernel) -> Counts:
    """Bytes of each buffer loaded or stored, once; operations on values times iterations."""
    private = {buffer.name for buffer in kernel.temporaries}
    own = {store.buffer for stage in kernel.stages for store in stage.stores} - private
    buffers = {buffer.name: buffer for buffer in kernel.buffers}
    traffic = {name: Dim.of(0) for name in buffers}
    for name in own:
        traffic[name] = buffer_bytes(buffers[name])
    read = Dim.of(0)
    for name, elements in sorted(_reached(kernel, buffers).items()):
        if name not in own and name not in private:
            traffic[name] = elements * buffers[name].dtype.storage_bytes
            read = read + traffic[name]
    flops = Dim.of(0)
    for stage in kernel.stages:
        flops = flops + _stage_flops(stage)
    if kernel.steps is not None:
        flops = flops * kernel.steps.extent
    return Counts(
        bytes_read=read,
        bytes_written=sum((traffic[name] for name in sorted(own)), Dim.of(0)),
        traffic=traffic,
        flops=flops,
    )


def compute_dtype(kernel: Kernel) -> DType:
    """The type whose peak bounds the kernel: that of the factors of a contraction, else of the
    first result.

    Factors of 8-bit integers count as such, although they are widened before they are multiplied.
    """
    for stage in kernel.stages:
        for node in walk(*stage.roots):
            if isinstance(node, Reduce) and node.combiner == "sum":
                body = terms_of(node)[1]
                while isinstance(body, Cast):
                    body = body.arg
                if found := products(body):
                    return _factor_type(found[0])
    return kernel.outputs[0].dtype


def _factor_type(product_node: Call) -> DType:
    loaded = [node for node in _loads((product_node,)) if not node.dtype.is_float]
    is_small = loaded and all(node.dtype.storage_bytes == 1 for node in loaded)
    return INT8 if product_node.dtype is INT32 and is_small else product_node.dtype


def buffer_bytes(buffer: Buffer) -> Dim:
    """Bytes of a whole buffer."""
    return product(buffer.shape) * buffer.dtype.storage_bytes


def _loads(roots: Iterable[Expr]) -> list[Load]:
    return [node for node in walk(*roots) if isinstance(node, Load)]


def _reached(kernel: Kernel, buffers: Mapping[str, Buffer]) -> dict[str, Dim]:
    """Elements of each loaded buffer that the kernel's loads can reach."""
    parts: dict[str, list[Dim]] = {}
    for stage in kernel.stages:
        extents = _extents(kernel, stage)
        for load in _loads(stage.roots):
            shape = buffers[load.buffer].shape
            reached = product(
                _distinct(part, size, extents) for part, size in zip(load.index, shape, strict=True)
            )
            parts.setdefault(load.buffer, []).append(reached)
    return {name: _together(found, product(buffers[name].shape)) for name, found in parts.items()}


def _together(parts: Sequence[Dim], whole: Dim) -> Dim:
    """What several loads reach at most: their sum, but not more than there is."""
    if whole in parts:
        return whole
    # Equal parts are added as a multiple, which keeps formulas of symbolic sizes short.
    total = sum((part * parts.count(part) for part in dict.fromkeys(parts)), Dim.of(0))
    return total if len(parts) == 1 else total.min(whole)


def _extents(kernel: Kernel, stage: Stage) -> dict[str, Dim]:
    axes = [*stage.axes, *([] if kernel.steps is None else [kernel.steps])]
    for node in walk(*stage.roots):
        if isinstance(node, Reduce):
            axes += node.axes
    return {axis.name: axis.extent for axis in axes}


def _distinct(part: Expr, size: Dim, extents: Mapping[str, Dim]) -> Dim:
    """How many different indices of a dim of this size an index expression can have.

    Sums of several axes (windows, joined dims) are taken to reach all of it.
    """
    names = [name for name in sorted(part.free_axes) if extents[name] != _ONE]
    if len(names) > 1 and not affine(part).rest:
        return size
    return product(extents[name] for name in names).min(size)


def _stage_flops(stage: Stage) -> Dim:
    """Each distinct operation, over the axes that it depends on (shared work is done once)."""
    extents = {axis.name: axis.extent for axis in stage.axes}
    values = walk(*(store.value for store in stage.stores))
    loaded: set[int] = set()
    indices: set[int] = set()
    for node in values:
        if isinstance(node, Reduce):
            extents.update({axis.name: axis.extent for axis in node.axes})
        if isinstance(node, Load):
            indices.update(id(part) for part in walk(*node.index))
        if isinstance(node, Load) or any(id(child) in loaded for child in node.children):
            loaded.add(id(node))
    total = Dim.of(0)
    for node in values:
        if id(node) not in loaded:
            continue
        if isinstance(node, Reduce):
            names = {axis.name for axis in node.axes} | node.free_axes
            total = total + product(extents[name] for name in sorted(names) if name in extents)
        elif isinstance(node, Call) and node.op not in _FREE and id(node) not in indices:
            total = total + product(
                extents[name] for name in sorted(node.free_axes) if name in extents
            )
    return total
