"""What two numbers of float8 add up to, narrowed again: a multiply-add instead of a division.

    float8(max(a * s + b * t, 0) / u)   ->   float8(max(fma(a, s / u, b * (t / u)), 0))
Input -> Output: a number that is about to be narrowed -> ``Float8Sum``, or None.
Guarantees: both ways give the same float8 for all pairs of numbers, each of which was tried, and
NaN for NaN. Nothing follows from formulas alone.
Not here: sums of bytes (byte_sums), instructions (codegen).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

from tilewright.core.dtypes import FLOAT8_E4M3FN, FLOAT32
from tilewright.core.errors import InternalError
from tilewright.kernel.byte_sums import LINEAR, STEPS, Floats, moved
from tilewright.kernel.ir import Call, Cast, Const, Expr

_LARGEST = 448.0
_PAIR = 2
_LEAST, _MOST = 2.0**-8, 2.0**8  # of a factor, and of their ratio: float64 has all bits of an fma
_CODES = np.arange(256, dtype=np.uint8).view(FLOAT8_E4M3FN.numpy).astype(np.float32)
_FINITE = _CODES[np.isfinite(_CODES)]
_ZERO, _ONE = np.asarray(0, np.float32), np.asarray(1, np.float32)


@dataclass(frozen=True, slots=True)
class Float8Sum:
    """``fma(leaves[0], factors[0], leaves[1] * factors[1])``, at least 0 if ``positive``."""

    leaves: tuple[Expr, Expr]
    factors: tuple[float, float]
    positive: bool


@lru_cache(maxsize=1 << 10)
def sum_of_float8(number: Expr) -> Float8Sum | None:
    """The sum that a number is, as a product and a multiply-add."""
    found: list[Expr] = []
    positive = _collect(number, found)
    if number.dtype is not FLOAT32 or positive is None or len(found) != _PAIR:
        return None
    first, second = found
    near, far = _FINITE[:, None], _FINITE[None, :]
    wanted = _narrowed(_value(number, {first: near, second: far}))
    ends = (_value(number, {first: x, second: y}) for x, y in ((_ONE, _ZERO), (_ZERO, _ONE)))
    exact = [float(end) for end in ends]
    if not all(_LEAST < factor < _MOST for factor in (*exact, exact[0] / (exact[1] or 1))):
        return None
    for steps in sorted(product(STEPS, STEPS), key=lambda steps: sum(map(abs, steps))):
        factors = tuple(moved(one, count) for one, count in zip(exact, steps, strict=True))
        total = near.astype(np.float64) * factors[0] + far * np.float32(factors[1])
        total = total.astype(np.float32)
        if np.array_equal(_narrowed(_above_0(total) if positive else total), wanted):
            return Float8Sum((first, second), (factors[0], factors[1]), positive)
    return None


def _collect(number: Expr, leaves: list[Expr]) -> bool | None:
    """Finds the numbers of float8 that linear operations of constants combine; whether what they
    give is at least 0, or None for other operations.
    """
    positive, stack = False, [number]
    while stack:
        node = stack.pop()
        if _constant(node) is not None:
            continue
        if isinstance(node, Cast) and node.arg.dtype is FLOAT8_E4M3FN and not node.bits:
            leaves += [] if node in leaves else [node]
        elif not isinstance(node, Call) or node.op not in (*LINEAR, "max"):
            return None
        elif node.op == "max":
            if positive or _constant(node.args[1]) != 0:
                return None
            positive = True
            stack.append(node.args[0])
        elif node.op in ("mul", "div") and _constant(node.args[1]) is None:
            if node.op == "div" or _constant(node.args[0]) is None:
                return None
            stack.append(node.args[1])
        else:
            stack.extend(node.args)
    return positive


def _constant(node: Expr) -> float | None:
    while isinstance(node, Cast) and not node.bits:
        node = node.arg
    return float(node.value) if isinstance(node, Const) else None


def _value(number: Expr, at: dict[Expr, Floats]) -> Floats:
    """The value of the operations, each rounded to float32."""
    if number in at:
        return at[number]
    constant = _constant(number)
    if constant is not None:
        return np.asarray(constant, np.float32)
    if not isinstance(number, Call):
        raise InternalError(f"{number} is not linear")
    args = [_value(arg, at) for arg in number.args]
    return _above_0(args[0]) if number.op == "max" else np.asarray(LINEAR[number.op](*args))


def _above_0(value: Floats) -> Floats:
    return np.where(value > 0, value, np.float32(0))


def _narrowed(value: Floats) -> Floats:
    """The bits of float8, saturated; zeros have no sign."""
    limited = np.clip(value, -_LARGEST, _LARGEST) + np.float32(0)
    return limited.astype(FLOAT8_E4M3FN.numpy).view(np.uint8)
