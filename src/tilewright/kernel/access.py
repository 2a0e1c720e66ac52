"""How a kernel touches memory, and how much it does.

Input -> Output: an index and a shape -> a linear index, a stride; a kernel -> bytes and operations.
Guarantees: counts are formulas of the symbols; compulsory traffic only (each buffer once).
Not here: the affine form itself (kernel.affine); caches and rooflines (hw).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.core.dtypes import INT64
from tilewright.core.shape import Dim, product
from tilewright.kernel.affine import affine, row_major
from tilewright.kernel.ir import (
    Buffer,
    Call,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    constant,
    dim_value,
    walk,
)
from tilewright.kernel.text import store_roots

# Integer index arithmetic and choices are not floating-point or tensor work.
_FREE = frozenset(("select", "checked_index"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Compulsory traffic in bytes, and arithmetic operations."""

    bytes_read: Dim
    bytes_written: Dim
    flops: Dim


def linear_index(index: Iterable[Expr], shape: Sequence[Dim]) -> Expr:
    """The element number of an access to a dense row-major array."""
    total: Expr = constant(0, INT64)
    for part, stride in zip(index, row_major(tuple(shape)), strict=True):
        total = total + part * dim_value(stride)
    return total


def stride_of(expr: Expr, axis: str) -> Dim | None:
    """The coefficient of an axis in an int64 expression; None where it is not affine in it."""
    return affine(expr).stride(axis)


def count(kernel: Kernel) -> Counts:
    """Bytes of each buffer loaded or stored, once; operations on values times iterations."""
    written = {store.buffer for stage in kernel.stages for store in stage.stores}
    read = _loaded(kernel) - {buffer.name for buffer in kernel.temporaries}
    own = written - {buffer.name for buffer in kernel.temporaries}
    flops = Dim.of(0)
    for stage in kernel.stages:
        flops = flops + _stage_flops(stage)
    if kernel.steps is not None:
        flops = flops * kernel.steps.extent
    buffers = {buffer.name: buffer for buffer in kernel.buffers}
    return Counts(
        bytes_read=_bytes(buffers, read - own),
        bytes_written=_bytes(buffers, own),
        flops=flops,
    )


def buffer_bytes(buffer: Buffer) -> Dim:
    """Bytes of a whole buffer."""
    return product(buffer.shape) * buffer.dtype.storage_bytes


def _bytes(buffers: Mapping[str, Buffer], names: Iterable[str]) -> Dim:
    total = Dim.of(0)
    for name in sorted(names):
        total = total + buffer_bytes(buffers[name])
    return total


def _loaded(kernel: Kernel) -> set[str]:
    stores = [store for stage in kernel.stages for store in stage.stores]
    roots = [root for store in stores for root in store_roots(store)]
    return {node.buffer for node in walk(*roots) if isinstance(node, Load)}


def _stage_flops(stage: Stage) -> Dim:
    """Each distinct operation, over the axes that it depends on (shared work is done once)."""
    extents = {axis.name: axis.extent for axis in stage.axes}
    values = walk(*(store.value for store in stage.stores))
    for node in values:
        if isinstance(node, Reduce):
            extents.update({axis.name: axis.extent for axis in node.axes})
    indices = {id(part) for node in values if isinstance(node, Load) for part in walk(*node.index)}
    total = Dim.of(0)
    for node in values:
        if isinstance(node, Reduce):
            names = {axis.name for axis in node.axes} | node.free_axes
            total = total + product(extents[name] for name in sorted(names) if name in extents)
        elif isinstance(node, Call) and node.op not in _FREE and id(node) not in indices:
            total = total + product(
                extents[name] for name in sorted(node.free_axes) if name in extents
            )
    return total
