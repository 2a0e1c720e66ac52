"""Shape rules of matrix products with weights of few bits (runtime.reference.small_weights).

Input -> Output: rows of the data, columns of the weights; sizes of codes, scales and zero points
checked against what the attributes state.
"""

from __future__ import annotations

from tilewright.core.dtypes import INT8, UINT8
from tilewright.core.shape import Dim, product
from tilewright.graph.info import NodeInfo
from tilewright.graph.shapes.registry import RuleContext, Shape, shape_rule
from tilewright.runtime.reference.small_weights import DOMAIN, NBITS_DOMAIN


@shape_rule("MatMulNBits", domain=NBITS_DOMAIN)
def matmul_nbits(ctx: RuleContext) -> NodeInfo:
    """K and N are attributes; the weights lie in N columns of whole blocks."""
    depth, columns = ctx.integer("K"), ctx.integer("N")
    bits, block = ctx.integer("bits", 4), ctx.integer("block_size")
    if bits not in (2, 4, 8) or block < 16 or block & (block - 1):
        ctx.fail(
            f"bits={bits}, block_size={block}: 2, 4 or 8 bits, powers of two from 16 are known"
        )
    if ctx.has(4):
        ctx.fail("g_idx is not known", "reorder the weights, and leave g_idx out")
    if not ctx.dtype(0).is_float or ctx.dtype(1) is not UINT8:
        ctx.fail(f"data of {ctx.dtype(0)} with weights of {ctx.dtype(1)}")
    groups = -(-depth // block)
    _count(ctx, 1, columns * groups * (block * bits // 8), "bytes of weights")
    _count(ctx, 2, columns * groups, "scales")
    if ctx.has(3):
        per_column = -(-groups * bits // 8) if ctx.dtype(3) is UINT8 else groups
        _count(ctx, 3, columns * per_column, "zero points")
    if ctx.has(5):
        _count(ctx, 5, columns, "numbers of bias")
    return ctx.result(_rows(ctx, Dim.of(depth), Dim.of(columns)))


@shape_rule("MatMulWeights", domain=DOMAIN)
def matmul_weights(ctx: RuleContext) -> NodeInfo:
    """Codes are rows; two of 4 bits share a byte."""
    bits, block = ctx.integer("bits", 8), ctx.integer("block_size")
    if bits not in (4, 8) or block < 1 or (bits == 4 and block % 2):
        ctx.fail(f"bits={bits}, block_size={block}: 8 bits, or 4 in even blocks, are known")
    kind = ctx.dtype(1)
    if not ctx.dtype(0).is_float or kind not in (INT8, UINT8) or (bits == 4 and kind is INT8):
        ctx.fail(f"data of {ctx.dtype(0)} with codes of {kind}")
    rows, columns = ctx.shape_of_rank(1, 2)
    depth = rows * 2 if bits == 4 else rows
    groups = depth // block
    ctx.equal(groups * block, depth, "rows of weights in whole blocks")
    for place, what in ((2, "scales"), (3, "zero points")):
        if ctx.has(place):
            shape = ctx.shape_of_rank(place, 2)
            ctx.equal(shape[0], groups, f"rows of {what}")
            ctx.equal(shape[1], columns, f"columns of {what}")
    return ctx.result(_rows(ctx, depth, columns))


def _rows(ctx: RuleContext, depth: Dim, columns: Dim) -> Shape:
    shape = ctx.shape(0)
    if not shape:
        ctx.mismatch("the data is a scalar")
    ctx.equal(shape[-1], depth, "elements of a row of data and rows of weights")
    return (*shape[:-1], columns)


def _count(ctx: RuleContext, place: int, count: int, what: str) -> None:
    ctx.equal(product(ctx.shape(place)), Dim.of(count), what)
