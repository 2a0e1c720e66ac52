"""Rounding to bfloat16 as processors do it: what is below the least normal float32 becomes 0.

    x : float32   ->   bf16(blend(abs(x) < 2**-126, x * 0, x))
Guarantees: one rounding to the nearest even; the sign of a zero, infinities and NaN stay.
Why: conversions of bfloat16 by one instruction flush such numbers, and so do products of pairs.
Not here: the instruction (codegen.cpu.evaluate).
"""

from __future__ import annotations

from tilewright.core.dtypes import BFLOAT16, FLOAT32
from tilewright.kernel.ir import Call, Cast, Const, Expr, call, constant

_LEAST_NORMAL = 2.0**-126


def to_bfloat16(value: Expr) -> Expr:
    """A float32 value, rounded."""
    is_tiny = call("abs", value).lt(constant(_LEAST_NORMAL, FLOAT32))
    return call("blend", is_tiny, value * 0.0, value).cast(BFLOAT16)


def rounded_float(node: Cast) -> Expr | None:
    """What ``to_bfloat16`` was asked to round, if a node is its result."""
    blend = node.arg
    if node.dtype is not BFLOAT16 or not (isinstance(blend, Call) and blend.op == "blend"):
        return None
    condition, _, value = blend.args
    limit = condition.args[1] if isinstance(condition, Call) and condition.op == "lt" else None
    is_least = isinstance(limit, Const) and limit.value == _LEAST_NORMAL
    return value if is_least and node is to_bfloat16(value) else None
