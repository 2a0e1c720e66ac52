"""Shape rules of the operators that compute in int32 alone (runtime.reference.integer_only).

Input -> Output: the data's shape in the type that ``y_type`` states; types, scales and rows that
the functions are not made for are errors here, so that no kernel has to look.
"""

from __future__ import annotations

from typing import Any

from tilewright.core.dtypes import BY_CODE, DType
from tilewright.core.shape import product
from tilewright.graph.info import NodeInfo
from tilewright.graph.shapes.registry import RuleContext, shape_rule
from tilewright.runtime.reference.fixed_point import MAX_ROW
from tilewright.runtime.reference.integer_only import (
    DOMAIN,
    ELEMENTWISE,
    reason_against,
    scales_of,
)


def _result_type(ctx: RuleContext) -> DType:
    found = BY_CODE.get(ctx.integer("y_type", 0))
    if found is None:
        ctx.fail("y_type is no element type")
    return found


def _checked(ctx: RuleContext) -> None:
    attributes: dict[str, Any] = dict(ctx.node.attributes)
    missing = sorted({"x_scale", "y_scale", "x_zero", "y_zero", "y_type"} - attributes.keys())
    if missing:
        ctx.fail(f"it needs the attributes {', '.join(missing)}")
    x, y = ctx.dtype(0).numpy, _result_type(ctx).numpy
    try:
        scales = scales_of(attributes, x)
    except KeyError:
        ctx.fail(f"the result is {y}: integers of at most 16 bits are known")
    reason = reason_against(ctx.node.op_type, x, y, scales, int(attributes["x_zero"]))
    if reason is not None:
        ctx.fail(reason)


@shape_rule(*ELEMENTWISE, domain=DOMAIN, dtypes=(_result_type,))
def elementwise(ctx: RuleContext) -> NodeInfo:
    """The data's shape."""
    _checked(ctx)
    return ctx.result(ctx.shape(0))


@shape_rule("IntegerSoftmax", domain=DOMAIN, dtypes=(_result_type,))
def softmax(ctx: RuleContext) -> NodeInfo:
    """The data's shape; the row's size is known."""
    _checked(ctx)
    shape = ctx.shape(0)
    size = shape[ctx.axis(-1, rank=len(shape))]
    if not size.is_const or size.const > MAX_ROW:
        ctx.fail(f"rows of {size}: a size up to {MAX_ROW} must be known")
    return ctx.result(shape)


@shape_rule("IntegerLayerNormalization", domain=DOMAIN, dtypes=(_result_type,))
def layer_norm(ctx: RuleContext) -> NodeInfo:
    """The data's shape; the row's size is known, and stated."""
    _checked(ctx)
    shape = ctx.shape(0)
    size = product(shape[ctx.axis(-1, rank=len(shape)) :])
    if not size.is_const or not 1 <= size.const <= MAX_ROW:
        ctx.fail(f"rows of {size}: a size up to {MAX_ROW} must be known")
    if ctx.integer("size", 0) != size.const:
        ctx.fail(f"size={ctx.integer('size', 0)}, but rows have {size}")
    return ctx.result(shape)
