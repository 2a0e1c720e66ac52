"""Arithmetic between integers that fusion brings into one expression.

    isnan(x), x a number for certain                     ->  false
    float(u8(int32(round(x)) + z)) - z, where it fits    ->  round(x)
    float(c), c a known small integer                    ->  the number
Input -> Output: a kernel -> the same values with fewer operations.
Guarantees: every bit is kept: the integers are below 2^24, so that floats hold them exactly.
Not here: fusion itself (lower.fuse).
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.core.dtypes import BOOL, FLOAT32, INT32
from tilewright.kernel.bounds import bounds
from tilewright.kernel.ir import Call, Cast, Const, Expr, Kernel, constant, transform


def simplify(kernel: Kernel) -> Kernel:
    """The kernel with its expressions simplified."""
    stages = tuple(
        replace(
            stage,
            stores=tuple(s.mapped(lambda root: transform(root, _rule)) for s in stage.stores),
        )
        for stage in kernel.stages
    )
    return replace(kernel, stages=stages)


def _rule(node: Expr) -> Expr | None:
    if isinstance(node, Call) and node.op == "isnan":
        return None if bounds(node.args[0]).maybe_nan else constant(False, BOOL)
    if isinstance(node, Cast) and node.dtype is FLOAT32 and not node.bits:
        return _of_constant(node) or _of_requantized(node)
    if isinstance(node, Call) and node.op == "sub" and node.dtype is FLOAT32:
        left, right = node.args
        if isinstance(left, Call) and left.op == "add" and left.args[1] is right:
            whole = left.args[0]
            if isinstance(right, Const) and isinstance(whole, Call) and whole.op == "round":
                return whole if right.value == int(right.value) and _is_small(whole) else None
    return None


def _of_constant(node: Cast) -> Expr | None:
    """A zero point, say, as a float: then it is seen to be what was added before."""
    known = node.arg
    if isinstance(known, Const) and known.dtype.is_integer and abs(known.value) < _EXACT:
        return constant(float(known.value), FLOAT32)
    return None


def _of_requantized(node: Cast) -> Expr | None:
    """``float(u8(int32(round(x)) + z))`` as ``round(x) + z``."""
    narrow = node.arg
    if not (isinstance(narrow, Cast) and narrow.arg.dtype is INT32 and not narrow.bits):
        return None
    if not narrow.dtype.is_integer or narrow.dtype.bits > _BYTE:
        return None
    rounded, zero = _unshifted(narrow.arg)
    if not isinstance(rounded, Cast) or rounded.bits:
        return None
    whole = rounded.arg
    if not (isinstance(whole, Call) and whole.op == "round" and whole.dtype is FLOAT32):
        return None
    found = bounds(whole.args[0])
    least = -(1 << (narrow.dtype.bits - 1)) if narrow.dtype.is_signed else 0
    most = least + (1 << narrow.dtype.bits) - 1
    if found.maybe_nan or not (least - zero <= found.low and found.high <= most - zero):
        return None
    return whole + float(zero) if zero else whole


def _unshifted(expr: Expr) -> tuple[Expr, int]:
    """An integer without the constant that is added to it, and the constant."""
    if isinstance(expr, Call) and expr.op == "add" and isinstance(expr.args[1], Const):
        return expr.args[0], int(expr.args[1].value)
    return expr, 0


_BYTE = 8
_EXACT = float(1 << 22)


def _is_small(whole: Expr) -> bool:
    found = bounds(whole)
    return not found.maybe_nan and found.low > -_EXACT and found.high < _EXACT
