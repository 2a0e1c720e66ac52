"""Split a long sum of few outputs into parts, summed by a stage of their own.

    out[m, n] = f(sum over k < K: a[m, k] * b[n, k])
    ->  part[s, m, n] = sum over k < K/S: a[m, s*K/S + k] * b[n, s*K/S + k]
        out[m, n] = f(sum over s < S: part[s, m, n])
Why: few outputs are few blocks; with parts, every multiprocessor has one.
Requires: a contraction that tensor cores take, of known sizes.
Guarantees: parts have the type of the sum and are added in order.
Not here: the contraction of a part (contraction), whose group the part is.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.codegen.cuda.operands import FEW, Sizes, sizes_of
from tilewright.codegen.cuda.tile import best_tile
from tilewright.core.dtypes import INT64
from tilewright.core.shape import Dim
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Expr,
    Kernel,
    Reduce,
    Stage,
    Store,
    constant,
    reduce_axes,
    substitute,
)
from tilewright.kernel.ir import transform as rewrite

_CHUNK = 64  # of channels that a part takes whole
_STAGE_US = 1.0  # what one more launch takes
_MB_PER_US = 3.0  # at which parts are written and read


def split_depth(kernel: Kernel) -> tuple[Kernel, int]:
    """The kernel with its sum in parts, and how many (1: as it was)."""
    sizes = sizes_of(kernel)
    parts = 1 if sizes is None or sizes.match.second is not None else _parts(sizes)
    if sizes is None or parts == 1:
        return kernel, 1
    return in_parts(kernel, sizes.sum, sizes.sum.axes[-1], parts), parts


def in_parts(kernel: Kernel, node: Reduce, axis: Axis, parts: int) -> Kernel:
    """A kernel of one stage whose reduction is combined from equal parts of one of its axes."""
    (stage,) = kernel.stages
    part = Axis(f"{axis.name}_part", Dim.of(parts))
    inner = replace(axis, extent=Dim.of(axis.extent.const // parts))
    moved = part.var * constant(inner.extent.const, INT64) + inner.var
    body = substitute(node.body, {axis.name: moved})
    axes = tuple(inner if own is axis else own for own in node.axes)
    partial = reduce_axes(node.combiner, axes, body)
    name = f"{kernel.outputs[0].name}$parts"
    buffer = Buffer(name, node.dtype, (part.extent, *(a.extent for a in stage.axes)))
    point = tuple(a.var for a in stage.axes)
    first = Stage((part, *stage.axes), (Store(name, (part.var, *point), partial),))
    total = reduce_axes(node.combiner, (part,), buffer[(part.var, *point)])

    def rule(expr: Expr) -> Expr | None:
        return total if expr is node else None

    second = Stage(
        stage.axes, tuple(store.mapped(lambda e: rewrite(e, rule)) for store in stage.stores)
    )
    return replace(kernel, stages=(first, second), temporaries=(*kernel.temporaries, buffer))


def _parts(sizes: Sizes) -> int:
    """The number of parts that should take the least time."""
    if min(sizes.rows, sizes.columns) < FEW:
        return 1  # products of so few rows, many at once, are not for tensor cores
    last = sizes.sum.axes[-1].extent.const
    best, least = 1, _time_us(sizes, 1)
    for parts in (4, 8):
        if last % (parts * _CHUNK) == 0 and (time_us := _time_us(sizes, parts)) < least:
            best, least = parts, time_us
    return best


def _time_us(sizes: Sizes, parts: int) -> float:
    count = sizes.count * parts
    found = best_tile(sizes.rows, sizes.columns, sizes.depth // parts, count)[1]
    if parts == 1:
        return found
    return found + _STAGE_US + 8e-6 * sizes.rows * sizes.columns * count / _MB_PER_US
