"""Shape rules of quantisation.

Input -> Output: the data's shape; scales checked against the granularity that they imply.
"""

from __future__ import annotations

from tilewright.core.dtypes import FLOAT32, UINT8, DType
from tilewright.core.shape import shape_text
from tilewright.graph.info import NodeInfo
from tilewright.graph.shapes.contraction import gemm_shape, matmul_shape
from tilewright.graph.shapes.registry import (
    ONE,
    RuleContext,
    Shape,
    attribute_dtype,
    like,
    shape_rule,
)


def _zero_point(ctx: RuleContext) -> DType:
    return ctx.dtype(2) if ctx.has(2) else UINT8


@shape_rule("QuantizeLinear", dtypes=(attribute_dtype("output_dtype", _zero_point),))
def quantize(ctx: RuleContext) -> NodeInfo:
    """The data's shape in the zero point's type."""
    return ctx.result(_checked(ctx))


@shape_rule("DequantizeLinear", dtypes=(attribute_dtype("output_dtype", like(1)),))
def dequantize(ctx: RuleContext) -> NodeInfo:
    """The data's shape in the scale's type."""
    return ctx.result(_checked(ctx))


def _checked(ctx: RuleContext) -> Shape:
    shape, scale = ctx.shape(0), ctx.shape(1)
    if ctx.has(2):
        _check_zero_point(ctx, ctx.shape(2), scale)
    block = ctx.integer("block_size", 0)
    if block:
        _check_blocks(ctx, shape, scale, block)
    elif len(scale) == 1 and scale[0] != ONE:
        axis = ctx.axis(1, rank=len(shape)) if len(shape) != 1 else 0
        ctx.equal(shape[axis], scale[0], f"one scale for each element of axis {axis}")
    elif len(scale) > 1:
        ctx.mismatch("a scale of rank 2 or more needs block_size")
    return shape


def _check_zero_point(ctx: RuleContext, zero: Shape, scale: Shape) -> None:
    """The zero point looks like the scale; a scalar and a vector of one element are the same."""
    if len(zero) != len(scale) and len(zero) + len(scale) == 1:
        zero, scale = (*zero, *scale), (ONE,)
    if len(zero) != len(scale):
        ctx.mismatch(f"a zero point {shape_text(zero)} for scales {shape_text(scale)}")
    for own, other in zip(zero, scale, strict=True):
        ctx.equal(own, other, "scale and zero point")


def _check_blocks(ctx: RuleContext, shape: Shape, scale: Shape, block: int) -> None:
    if len(scale) != len(shape) or block < 0:
        ctx.mismatch("blocked scales need the data's rank and a positive block_size")
    axis = ctx.axis(1, rank=len(shape))
    for own, (size, count) in enumerate(zip(shape, scale, strict=True)):
        expected = size.ceildiv(block) if own == axis else size
        ctx.equal(expected, count, f"scales of axis {own}")


@shape_rule("DynamicQuantizeLinear", dtypes=(UINT8, FLOAT32, UINT8))
def dynamic_quantize(ctx: RuleContext) -> NodeInfo:
    """The data's shape; a scale and a zero point for all of it."""
    return ctx.result(ctx.shape(0), ())


@shape_rule("QLinearMatMul", dtypes=(like(7),))
def quantized_matmul(ctx: RuleContext) -> NodeInfo:
    """A product of quantised matrices in the result's zero point's type."""
    return ctx.result(matmul_shape(ctx, ctx.shape(0), ctx.shape(3)))


def _float_without_zero_point(ctx: RuleContext) -> DType:
    return ctx.dtype(8) if ctx.has(8) else FLOAT32


@shape_rule("QGemm", domain="com.microsoft", dtypes=(_float_without_zero_point,))
def quantized_gemm(ctx: RuleContext) -> NodeInfo:
    """A product of quantised matrices, as float without a scale of the result."""
    if ctx.has(7) != ctx.has(8):
        ctx.fail("scale and zero point of the result come together")
    return ctx.result(gemm_shape(ctx, 0, 3, 6))
