"""Rows that meet in the same places of the first cache.

Input -> Output: a kernel -> the factors whose rows a register tile cannot keep in that cache.
    out[m, n] = sum_k a[m, k] * b[k, n]:  a tile reads a line of each of 14 rows of a, which lie in
    one set of the cache if the length of a row is a multiple of 4096 bytes
Why: such a product takes up to a fifth longer; a line between the rows costs nothing.
Not here: how the rows are put apart (lower.layout), tiles (codegen).
"""

from __future__ import annotations

from tilewright.core.dtypes import FLOAT32
from tilewright.core.shape import Dim
from tilewright.kernel.affine import affine
from tilewright.kernel.ir import AxisVar, Call, Kernel, Load, Reduce, walk

ROW_PADDING = 16  # elements, a line of the cache
_WAY_BYTES = 4096  # first caches of 32 KiB in 8 ways and 48 KiB in 12
_WAYS = 8


def crowded_factors(kernel: Kernel) -> set[str]:
    """Names of float32 buffers that a sum of products reads along rows which crowd a set."""
    shapes = {buffer.name: buffer.shape for buffer in kernel.inputs}
    return {
        load.buffer
        for reduce in walk(*kernel.roots)
        if isinstance(reduce, Reduce) and reduce.combiner == "sum"
        if isinstance(reduce.body, Call) and reduce.body.op == "mul"
        for load in walk(reduce.body)
        if isinstance(load, Load) and load.buffer in shapes and _crowds(load, reduce, shapes)
    }


def _crowds(load: Load, reduce: Reduce, shapes: dict[str, tuple[Dim, ...]]) -> bool:
    shape = shapes[load.buffer]
    if load.dtype is not FLOAT32 or len(shape) < 2 or not shape[-1].is_const:
        return False
    rows = [
        size
        for part, size in zip(load.index[:-1], shape[:-1], strict=True)
        if isinstance(part, AxisVar) and part.name not in {axis.name for axis in reduce.axes}
    ]
    if not any(not size.is_const or size.const > _WAYS for size in rows):
        return False
    steps = affine(load.index[-1]).terms
    along = any(steps.get(axis.name) == Dim.of(1) for axis in reduce.axes)
    row_bytes = shape[-1].const * load.dtype.storage_bytes
    return along and row_bytes > 0 and row_bytes % _WAY_BYTES == 0
