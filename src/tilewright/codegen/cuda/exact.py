"""Arithmetic of quantised values in few instructions, every operation rounded by itself.

    min(max(x, low), high)   select  ->  2 instructions
    (a * s + b * t) / u      of bytes, about to be rounded  ->  2 multiply-adds (kernel.byte_sums)
    int32(round(x))          conversions, which are slow  ->  the last bits of x + 1.5 * 2^23
    float(byte) - zero       a conversion  ->  the last bits of 2^23 + byte
    x / constant             IEEE's division  ->  the product with the inverse, mended once
Input -> Output: a node of a kernel that stores bytes -> its text, or None: as anywhere else.
Guarantees: the same values as elsewhere (quotients below 1e-30 or above 1e30, which no byte tells
apart, and those of rough functions may differ in their last bit), products are not contracted with
sums; signs of zeros may differ, which no byte shows.
Not here: other operations (scalar), functions (prelude.cuh).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.codegen.cuda import scalar
from tilewright.core.dtypes import FLOAT8_E4M3FN, FLOAT32, INT8, INT32, UINT8, DType
from tilewright.kernel.bounds import bounds
from tilewright.kernel.byte_sums import sum_of_bytes
from tilewright.kernel.ir import Call, Cast, Const, Expr
from tilewright.kernel.limits import limited

_LARGEST = 2.0**22  # of numbers that 1.5 * 2^23 is added to
_BYTES = 256
_MANTISSA = 0x7FFFFF  # where all bits are set, the inverse is too far off
_ROUGH = ("gelu", "erf")  # functions off by more than a quotient's last bit
_MODERATE = 2.0**60  # of divisors, and the inverse of their least


def stores_bytes(types: Sequence[DType]) -> bool:
    """Whether a kernel's results are quantised."""
    return any(dtype in (INT8, UINT8, FLOAT8_E4M3FN) for dtype in types)


def call(node: Call, args: Sequence[str], text: Callable[[Expr], str], rough: bool) -> str | None:
    """The text of an operation; functions in it are ``rough`` where no result shows their bits."""
    if node.dtype is not FLOAT32:
        return None
    if node.op == "sub" and (shift := _integer(node.args[1])) is not None:
        wide = node.args[0]
        if isinstance(wide, Cast) and wide.arg.dtype in (INT8, UINT8) and not wide.bits:
            return f"tw_byte_to_float({text(wide.arg)}, {shift})"
    if node.op == "mul":
        return f"tw_product({args[0]}, {args[1]})"
    if node.op == "round" and _is_small(node.args[0]):
        return f"tw_whole({args[0]})"
    if node.op == "div" and isinstance(node.args[1], Const):
        divisor = np.float32(node.args[1].value)
        mantissa = divisor.view(np.uint32) & _MANTISSA
        if 1 / _MODERATE < abs(divisor) < _MODERATE and mantissa != _MANTISSA:
            inverse = scalar.literal(float(np.float32(1 / np.float64(divisor))), FLOAT32)
            if rough and isinstance(node.args[0], Call) and node.args[0].op in _ROUGH:
                return f"tw_product({args[0]}, {inverse})"
            checked = "" if bounds(node.args[0]).is_finite else "_or_limit"
            return f"tw_quotient{checked}({args[0]}, {args[1]}, {inverse})"
    return None


def limit(node: Call, text: Callable[[Expr], str]) -> str | None:
    """The text of ``x < c ? x : c`` or ``x > c ? x : c``, of an x that is computed anyway."""
    if node.op != "select":
        return None
    total, found = sum_of_bytes(node), limited(node)
    if total is not None and found is not None:
        first, second = (text(leaf) for leaf in total.leaves)
        near, far, offset, low, high = (
            scalar.literal(number, FLOAT32) for number in (*total.factors, total.offset, *found[1:])
        )
        inner = f"fmaf({first}, {near}, fmaf({second}, {far}, {offset}))"
        return f"fmaxf(fminf({inner}, {high}), {low})"
    test, value, other = node.args
    if node.dtype is not FLOAT32 or not isinstance(other, Const) or not isinstance(test, Call):
        return None
    if test.op not in ("lt", "gt") or test.args != (value, other):
        return None
    return f"{'fminf' if test.op == 'lt' else 'fmaxf'}({text(value)}, {text(other)})"


def cast(node: Cast, value: str, text: Callable[[Expr], str]) -> str | None:
    """The text of a conversion."""
    if node.bits:
        return None
    if node.dtype is FLOAT32 and node.arg.dtype in (INT8, UINT8):
        return f"tw_byte_to_float({value}, 0)"
    whole = node.arg
    if node.dtype is not INT32 or not isinstance(whole, Call) or whole.op != "round":
        return None
    is_small = whole.dtype is FLOAT32 and _is_small(whole.args[0])
    return f"tw_nearest({text(whole.args[0])})" if is_small else None


def _is_small(value: Expr) -> bool:
    found = bounds(value)
    return not found.maybe_nan and found.low > -_LARGEST and found.high < _LARGEST


def _integer(value: Expr) -> int | None:
    """A constant of a byte's size."""
    if not isinstance(value, Const) or not float(value.value).is_integer():
        return None
    return int(value.value) if abs(value.value) < _BYTES else None
