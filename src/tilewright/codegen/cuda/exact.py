"""Arithmetic of quantised values in few instructions, every operation rounded by itself.

    min(max(x, low), high)   select  ->  2 instructions
    (a * s + b * t) / u      of bytes, about to be rounded  ->  2 multiply-adds (kernel.byte_sums)
    int32(round(x))          conversions, which are slow  ->  the last bits of x + 1.5 * 2^23
    float(byte) - zero       a conversion  ->  the last bits of 2^23 + byte
    x / constant             IEEE's division  ->  two instructions (quotients), or three
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
from tilewright.codegen.cuda.quotients import quotient_factors
from tilewright.core.dtypes import FLOAT8_E4M3FN, FLOAT32, INT8, INT32, UINT8, DType
from tilewright.kernel.bounds import bounds
from tilewright.kernel.byte_sums import sum_of_bytes
from tilewright.kernel.float8_sums import sum_of_float8
from tilewright.kernel.ir import Call, Cast, Const, Expr
from tilewright.kernel.limits import limited

BYTES = (INT8, UINT8)
_LARGEST = 2.0**22 - 2.0**8  # of numbers that 1.5 * 2^23 and a byte are added to
_BYTES = 256
_HALF = 0.499  # what rounding to integers moves numbers of a byte by, for certain
_MANTISSA = 0x7FFFFF  # where all bits are set, the inverse is too far off
_ROUGH = ("gelu", "erf")  # functions off by more than a quotient's last bit
_MODERATE = 2.0**60  # of divisors, and the inverse of their least


def stores_bytes(types: Sequence[DType]) -> bool:
    """Whether a kernel's results are quantised."""
    return any(dtype in (*BYTES, FLOAT8_E4M3FN) for dtype in types)


def call(node: Call, args: Sequence[str], text: Callable[[Expr], str], rough: bool) -> str | None:
    """The text of an operation; functions in it are ``rough`` where no result shows their bits."""
    if node.dtype is not FLOAT32:
        return None
    if node.op == "sub" and _is_nothing(node.args[1]):
        return args[0]
    if node.op == "sub" and (shift := _integer(node.args[1])) is not None:
        wide = node.args[0]
        if isinstance(wide, Cast) and wide.arg.dtype in BYTES and not wide.bits:
            return _byte(text(wide.arg), shift)
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
            if mantissa == 0:
                return f"tw_product({args[0]}, {inverse})"
            if factors := quotient_factors(float(divisor)):
                high, low = (scalar.literal(factor, FLOAT32) for factor in factors)
                return f"tw_quotient_by({args[0]}, {high}, {low})"
            checked = "" if bounds(node.args[0]).is_finite else "_or_limit"
            return f"tw_quotient{checked}({args[0]}, {args[1]}, {inverse})"
    return None


def contracted(value: Expr, text: Callable[[Expr], str]) -> str:
    """The text of what a rough function is of: there a product need not be rounded by itself."""
    if isinstance(value, Call) and value.op == "add":
        for factors, added in (value.args, value.args[::-1]):
            if isinstance(factors, Call) and factors.op == "mul":
                return f"fmaf({text(factors.args[0])}, {text(factors.args[1])}, {text(added)})"
    return text(value)


def _number(node: Call, text: Callable[[Expr], str]) -> str | None:
    """The text of ``isnan(x) ? 0 : x`` of a scaled rough function, which may be 0 for NaN."""
    test, zero, scaled = node.args
    if not isinstance(test, Call) or test.op != "isnan" or test.args != (scaled,):
        return None
    if not isinstance(zero, Const) or zero.value != 0 or not isinstance(scaled, Call):
        return None
    if scaled.op not in ("mul", "div") or not isinstance(scaled.args[1], Const):
        return None
    inner, factor = scaled.args[0], np.float64(scaled.args[1].value)
    if not isinstance(inner, Call) or inner.op != "gelu" or not np.isfinite(factor) or not factor:
        return None
    factor = 1 / factor if scaled.op == "div" else factor
    given = scalar.literal(float(np.float32(factor)), FLOAT32)
    return f"tw_product(tw_rough_gelu<true>({contracted(inner.args[0], text)}), {given})"


def float8_sum(number: Expr, text: Callable[[Expr], str]) -> str | None:
    """The text of a sum of two numbers of float8 that is about to be narrowed."""
    total = sum_of_float8(number)
    if total is None:
        return None
    near, far = (scalar.literal(factor, FLOAT32) for factor in total.factors)
    first, second = (text(leaf) for leaf in total.leaves)
    inner = f"fmaf({first}, {near}, tw_product({second}, {far}))"
    return f"tw_max({inner}, 0.0f)" if total.positive else inner


def limit(node: Call, text: Callable[[Expr], str], rough: bool) -> str | None:
    """The text of ``x < c ? x : c`` or ``x > c ? x : c``, of an x that is computed anyway."""
    if node.op != "select" or node.dtype is not FLOAT32:
        return None
    if rough and (number := _number(node, text)):
        return number
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
    inside = bounds(value)
    if not inside.maybe_nan and test.op == "gt" and inside.low >= float(other.value):
        return text(value)
    return f"{'fminf' if test.op == 'lt' else 'fmaxf'}({text(value)}, {text(other)})"


def cast(node: Cast, value: str, text: Callable[[Expr], str]) -> str | None:
    """The text of a conversion."""
    if node.bits:
        return None
    if node.dtype is FLOAT32 and node.arg.dtype in BYTES:
        return _byte(value, 0)
    number = _rounded(node)
    return None if number is None else f"tw_nearest({text(number)})"


def is_last_byte(value: Expr) -> bool:
    """Whether a value is the last byte of an integer."""
    narrowed = isinstance(value, Cast) and value.dtype in BYTES and not value.bits
    return narrowed and value.children[0].dtype is INT32


def last_byte(value: Expr, text: Callable[[Expr], str]) -> str:
    """The text of 32 bits whose last byte is such a value."""
    whole, zero = value.children[0], 0
    if isinstance(whole, Call) and whole.op == "add":
        first, second = whole.args
        if isinstance(second, Const):
            whole, zero = first, int(second.value)
    number = _rounded(whole)
    if number is None or abs(zero) >= _BYTES:
        return f"(u32){text(value.children[0])}"
    return f"tw_marked({text(_inside(number))}, {zero})"


def _inside(number: Expr) -> Expr:
    """What is about to be rounded, without a lower limit that rounding keeps it at anyway."""
    if isinstance(number, Call) and number.op == "select":
        test, value, least = number.args
        if isinstance(test, Call) and test.op == "gt" and test.args == (value, least):
            found = bounds(value)
            if isinstance(least, Const) and not found.maybe_nan:
                return value if found.low > float(least.value) - _HALF else number
    return number


def _rounded(node: Expr) -> Expr | None:
    """The small number that a node is the nearest integer of."""
    if not isinstance(node, Cast) or node.bits or node.dtype is not INT32:
        return None
    whole = node.arg
    if not isinstance(whole, Call) or whole.op != "round" or whole.dtype is not FLOAT32:
        return None
    return whole.args[0] if _is_small(whole.args[0]) else None


def _byte(value: str, zero: int) -> str:
    """The text of a byte without its zero point, read from its pack where it lies in one."""
    pack = value.removesuffix(".v[e]")
    return f"tw_byte_to_float({pack}, {'' if pack == value else 'e, '}{zero})"


def _is_small(value: Expr) -> bool:
    found = bounds(value)
    return not found.maybe_nan and found.low > -_LARGEST and found.high < _LARGEST


def _is_nothing(value: Expr) -> bool:
    """A zero, or a constant that is converted to it."""
    while isinstance(value, Cast) and not value.bits:
        value = value.arg
    return isinstance(value, Const) and value.value == 0


def _integer(value: Expr) -> int | None:
    """A constant of a byte's size."""
    if not isinstance(value, Const) or not float(value.value).is_integer():
        return None
    return int(value.value) if abs(value.value) < _BYTES else None
