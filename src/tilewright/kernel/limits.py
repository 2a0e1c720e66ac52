"""Numbers between known limits.

    select(v > low, v, low) where v = select(u < high, u, high)   ->   u, low, high
Input -> Output: an expression -> what lies inside of its limits, and both limits, or None.
Guarantees: limits are constants of the expression.
Not here: bounds of any expression (kernel.bounds).
"""

from __future__ import annotations

from tilewright.kernel.ir import Call, Const, Expr


def limited(number: Expr) -> tuple[Expr, float, float] | None:
    """The number inside of a lower limit around an upper one, and both limits."""
    low = _limit(number, "gt")
    high = None if low is None else _limit(low[0], "lt")
    return None if low is None or high is None else (high[0], low[1], high[1])


def _limit(expr: Expr, op: str) -> tuple[Expr, float] | None:
    """``value`` and ``bound`` of ``select(value op bound, value, bound)``."""
    if not (isinstance(expr, Call) and expr.op == "select"):
        return None
    test, value, bound = expr.args
    if not (isinstance(bound, Const) and isinstance(test, Call) and test.op == op):
        return None
    return (value, float(bound.value)) if test.args == (value, bound) else None
