"""Sums of products of narrow numbers, several of them to a dot product.

    sum(.., j: 4)  int32(u8) * int32(s8)
    sum(.., j: 2)  float32(bf16) * float32(bf16)
    select(inside, product, 0) in place of a product: terms outside are 0 and may be left out
Input -> Output: a ``Reduce`` -> its kind and its two operands, or None where it is another sum.
Guarantees: the operands' types are stated in the IR. Sums of bytes are exact in any order; products
of bfloat16 are exact in float32, their sums are rounded.
Not here: how operands get into this order (lower.byte_products), instructions (codegen).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.core.dtypes import BFLOAT16, FLOAT32, INT8, INT32, UINT8, DType
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Call, Cast, Const, Expr, Load, Reduce


@dataclass(frozen=True, slots=True)
class DotKind:
    """What a dot product multiplies.

    Attributes:
        data, weights: types of its factors.
        total: of the sum.
        unit: products of one dot product; they fill 32 bits.
    """

    data: DType
    weights: DType
    total: DType
    unit: int


BYTES = DotKind(UINT8, INT8, INT32, 4)
PAIRS = DotKind(BFLOAT16, BFLOAT16, FLOAT32, 2)
KINDS = (BYTES, PAIRS)


def kind_of(node: Reduce) -> DotKind | None:
    """The kind of dot products that a sum can be made of, or None."""
    found = _parts(node)
    return None if found is None else found[0]


def factors(node: Reduce) -> tuple[Expr, Load] | None:
    """The data's expression and the weights' load (guarded with 0 or not) of such a sum."""
    found = _parts(node)
    return None if found is None else found[1:]


def terms_of(node: Reduce) -> tuple[Expr | None, Expr]:
    """What the sum adds up, and where: a condition outside of which it is 0, or None."""
    body = node.body
    if isinstance(body, Call) and body.op == "select" and node.combiner == "sum":
        condition, term, otherwise = body.args
        if isinstance(otherwise, Const) and otherwise.value == 0:
            return condition, term
    return None, body


def is_dot(node: Reduce) -> bool:
    """True when the innermost axis of a sum has the factors of one dot product."""
    kind = kind_of(node)
    return kind is not None and node.axes[-1].extent == Dim.of(kind.unit)


def _parts(node: Reduce) -> tuple[DotKind, Expr, Load] | None:
    body = terms_of(node)[1]
    if node.combiner != "sum" or not (isinstance(body, Call) and body.op == "mul"):
        return None
    left, right = (_narrow(part) for part in body.args)
    inner = right
    if isinstance(inner, Call) and inner.op == "select":
        inner = inner.args[1]
    if not isinstance(inner, Load):
        return None
    types = left.dtype, right.dtype, node.dtype
    for kind in KINDS:
        if types == (kind.data, kind.weights, kind.total):
            return kind, left, inner
    return None


def _narrow(factor: Expr) -> Expr:
    """A factor as it is stored: without its conversion, which may stand inside of its guard."""
    if isinstance(factor, Call) and factor.op == "select" and isinstance(factor.args[1], Cast):
        factor = factor.args[1]
    return factor.arg if isinstance(factor, Cast) else factor
