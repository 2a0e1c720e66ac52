"""Sums of products of bytes, four of them to a dot product.

    sum(.., j: 4)  int32(u8) * int32(s8)
Input -> Output: a ``Reduce`` -> its two operands, or None where it is another sum.
Guarantees: the operands' types are stated in the IR: uint8 times int8, added up in int32; a sum is
exact in any order.
Not here: how operands get into this order (lower.byte_products), instructions (codegen).
"""

from __future__ import annotations

from tilewright.core.dtypes import INT8, INT32, UINT8
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Call, Cast, Expr, Load, Reduce

UNIT = 4  # products of one dot product


def factors(node: Reduce) -> tuple[Expr, Load] | None:
    """The uint8 expression and the int8 load (guarded with 0 or not) of such a sum, or None."""
    body = node.body
    if node.combiner != "sum" or node.dtype is not INT32:
        return None
    if not (isinstance(body, Call) and body.op == "mul"):
        return None
    left, right = (part.arg if isinstance(part, Cast) else part for part in body.args)
    inner = right
    if isinstance(inner, Call) and inner.op == "select":
        inner = inner.args[1]
    if left.dtype is not UINT8 or right.dtype is not INT8 or not isinstance(inner, Load):
        return None
    return left, inner


def is_dot(node: Reduce) -> bool:
    """True when the innermost axis of a sum has the bytes of one dot product."""
    return factors(node) is not None and node.axes[-1].extent == Dim.of(UNIT)
