"""Split a long sum of few outputs into parts, summed by a stage of their own.

    out[m, n] = f(sum over k < K: a[m, k] * b[n, k])
    ->  part[s, m, n] = sum over k < K/S: a[m, s*K/S + k] * b[n, s*K/S + k]
        out[m, n] = f(sum over s < S: part[s, m, n])
Why: few outputs are few blocks; with parts, every multiprocessor has one.
Requires: a contraction that tensor cores take, of known sizes.
Guarantees: parts are float32 and are added in order.
Not here: the contraction of a part (contraction), whose group the part is.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.codegen.cuda.contraction import Sizes, sizes_of
from tilewright.core.dtypes import FLOAT32, INT64
from tilewright.core.shape import Dim
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Expr,
    Kernel,
    Stage,
    Store,
    constant,
    reduce_axes,
    substitute,
)
from tilewright.kernel.ir import transform as rewrite

_MULTIPROCESSORS = 132
_TILE = 64  # rows and columns of the blocks that parts are to be computed in
_SHORTEST = 256  # depth of a part
_CHUNK = 64  # of channels that a part takes whole
_FEWEST, _MOST = 4, 8  # fewer parts are not worth a stage
_LONG = 3072  # nor is a shorter sum


def split_depth(kernel: Kernel) -> tuple[Kernel, int]:
    """The kernel with its sum in parts, and how many (1: as it was)."""
    sizes = sizes_of(kernel)
    parts = 1 if sizes is None else _parts(sizes)
    if sizes is None or parts == 1:
        return kernel, 1
    (stage,) = kernel.stages
    node, axis = sizes.sum, sizes.sum.axes[-1]
    part = Axis(f"{axis.name}_part", Dim.of(parts))
    inner = replace(axis, extent=Dim.of(axis.extent.const // parts))
    moved = part.var * constant(inner.extent.const, INT64) + inner.var
    body = substitute(node.body, {axis.name: moved})
    partial = reduce_axes("sum", (*node.axes[:-1], inner), body)
    name = f"{kernel.outputs[0].name}$parts"
    buffer = Buffer(name, FLOAT32, (part.extent, *(a.extent for a in stage.axes)))
    point = tuple(a.var for a in stage.axes)
    first = Stage((part, *stage.axes), (Store(name, (part.var, *point), partial),))
    total = reduce_axes("sum", (part,), buffer[(part.var, *point)])

    def rule(expr: Expr) -> Expr | None:
        return total if expr is node else None

    second = Stage(
        stage.axes, tuple(store.mapped(lambda e: rewrite(e, rule)) for store in stage.stores)
    )
    return replace(kernel, stages=(first, second), temporaries=(*kernel.temporaries, buffer)), parts


def _parts(sizes: Sizes) -> int:
    """How many parts give every multiprocessor a block of good size."""
    if sizes.depth < _LONG:
        return 1
    blocks = -(-sizes.rows // _TILE) * -(-sizes.columns // _TILE) * sizes.count
    last = sizes.sum.axes[-1].extent.const
    parts = 1
    while (
        parts < _MOST
        and blocks * parts < _MULTIPROCESSORS
        and sizes.depth // (2 * parts) >= _SHORTEST
        and last % (2 * parts * _CHUNK) == 0
    ):
        parts *= 2
    return parts if parts >= _FEWEST else 1
