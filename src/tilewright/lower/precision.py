"""Which type an operator computes in.

Input -> Output: an element type -> the type of its arithmetic.
Guarantees: float16, bfloat16 and narrower floats are computed in float32 from operands to result,
so that an operator rounds once and sums of halves do not overflow; float64 stays.
Not here: what is stored (the shape rules say).
"""

from __future__ import annotations

import math

from tilewright.core.dtypes import FLOAT32, FLOAT64, INT8, UINT8, DType
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Expr, call, dim_value, select
from tilewright.lower.context import Lowering


def compute_type(dtype: DType) -> DType:
    """The type to compute in: one with arithmetic that holds all values of ``dtype``."""
    if dtype.is_float:
        return FLOAT64 if dtype is FLOAT64 else FLOAT32
    if dtype.is_integer and dtype.bits < 8:
        return INT8 if dtype.is_signed else UINT8
    return dtype


def real_type(*dtypes: DType) -> DType:
    """The floating-point type to compute in for operands of these types; float64 for integers."""
    narrow = all(dtype.is_float and dtype is not FLOAT64 for dtype in dtypes)
    return FLOAT32 if narrow else FLOAT64


def dim_as(dim: Dim, kind: DType) -> Expr:
    """A size as a value of a type."""
    return dim_value(dim).cast(kind)


def finite_or_zero(value: Expr) -> Expr:
    """Zero for infinities; NaN stays."""
    return select(call("isinf", value), 0.0, value)


def text_attribute(ctx: Lowering, name: str, default: str) -> str:
    """A string attribute."""
    value = ctx.node.attribute(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def number(ctx: Lowering, name: str, default: float) -> float:
    """A float attribute."""
    return float(ctx.node.attribute(name, default))


def flag(ctx: Lowering, name: str, default: int = 0) -> bool:
    """An integer attribute that is a yes or no."""
    return bool(ctx.node.attribute(name, default))


SQRT_HALF = math.sqrt(0.5)
