"""Arithmetic, comparison, logic and choice, element by element with NumPy broadcasting.

    Add(a, b)  ->  out[i, j] = a[i, j] + b[j]
Guarantees: NaN propagates through Max, Min and Clip; integers wrap and divide toward zero.
Not here: activations (lower.activation), conversions (lower.convert).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce

import numpy as np

from tilewright.core.dtypes import BOOL, FLOAT64, INT64, DType
from tilewright.kernel.ir import Expr, call, constant, select
from tilewright.lower.broadcast import broadcast_load, elementwise, refuse_opaque
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.precision import compute_type, flag, real_type, text_attribute
from tilewright.lower.registry import lowers

_FLOAT_FUNCTIONS = {
    **{name.capitalize(): name for name in "sqrt exp log sin cos tan asin acos atan".split()},
    **{name.capitalize(): name for name in "sinh cosh tanh asinh acosh atanh erf".split()},
    **{name.capitalize(): name for name in "floor ceil round".split()},
}
_SAME_TYPE_FUNCTIONS = {
    "Neg": "neg",
    "Abs": "abs",
    "Sign": "sign",
    "Not": "not",
    "BitwiseNot": "not",
}
_BINARY = {
    **{name.capitalize(): name for name in ("add", "sub", "mul", "div")},
    **{name.capitalize(): name for name in ("and", "or", "xor")},
    **{f"Bitwise{name.capitalize()}": name for name in ("and", "or", "xor")},
    "Equal": "eq",
    "Less": "lt",
    "LessOrEqual": "le",
    "Greater": "gt",
    "GreaterOrEqual": "ge",
}


@lowers(*_FLOAT_FUNCTIONS)
def float_function(ctx: Lowering) -> None:
    """Functions of real numbers; integer operands are computed in float64."""
    name = _FLOAT_FUNCTIONS[ctx.node.op_type]
    elementwise(ctx, partial(call, name), kind=real_type(ctx.input(0).dtype))


@lowers(*_SAME_TYPE_FUNCTIONS)
def same_type_function(ctx: Lowering) -> None:
    elementwise(ctx, partial(call, _SAME_TYPE_FUNCTIONS[ctx.node.op_type]))


@lowers("Reciprocal")
def reciprocal(ctx: Lowering) -> None:
    elementwise(ctx, lambda x: 1.0 / x)


@lowers("IsNaN")
def is_nan(ctx: Lowering) -> None:
    elementwise(ctx, partial(call, "isnan"))


@lowers("IsInf")
def is_inf(ctx: Lowering) -> None:
    negative, positive = flag(ctx, "detect_negative", 1), flag(ctx, "detect_positive", 1)

    def test(x: Expr) -> Expr:
        if negative and positive:
            return call("isinf", x)
        if not negative and not positive:
            return constant(False, BOOL)
        return call("isinf", x) & (x.gt(0) if positive else x.lt(0))

    elementwise(ctx, test)


@lowers(*_BINARY)
def binary(ctx: Lowering) -> None:
    elementwise(ctx, partial(call, _BINARY[ctx.node.op_type]))


@lowers("BitShift")
def bit_shift(ctx: Lowering) -> None:
    """Beyond the width only the sign is left by a right shift, nothing by a left one."""
    left = text_attribute(ctx, "direction", "") == "LEFT"

    def shift(x: Expr, amount: Expr) -> Expr:
        if not left and x.dtype.is_signed:
            top = x.dtype.bits - 1
            amount = select(amount.lt(0) | amount.gt(top), top, amount)
        return call("shl" if left else "shr", x, amount)

    elementwise(ctx, shift)


@lowers("Mod")
def modulo(ctx: Lowering) -> None:
    """``fmod`` = 0: the divisor's sign; 1: the dividend's."""
    elementwise(ctx, partial(call, "fmod" if flag(ctx, "fmod") else "mod"))


@lowers("Max", "Min", "Sum", "Mean")
def variadic(ctx: Lowering) -> None:
    operands = [buffer for buffer in ctx.inputs if buffer is not None]
    name = {"Max": "max", "Min": "min"}.get(ctx.node.op_type, "add")

    def combine(*values: Expr) -> Expr:
        total = reduce(partial(call, name), values)
        return total / len(values) if ctx.node.op_type == "Mean" else total

    elementwise(ctx, combine, operands)


# --- powers ---------------------------------------------------------------------------------------


def _power_type(base: DType, exponent: DType) -> DType:
    """Integers among themselves stay integers; else reals, wide if either is."""
    if base.is_float:
        return FLOAT64 if FLOAT64 in (base, exponent) else compute_type(base)
    if exponent.is_float:
        return FLOAT64
    return compute_type(base) if base is exponent else INT64


@lowers("Pow")
def power(ctx: Lowering) -> None:
    """Small constant exponents become products and roots, which are exact or rounded once."""
    base, exponent = ctx.input(0), ctx.input(1)
    kind = _power_type(base.dtype, exponent.dtype)
    simple = _simple_power(ctx) if kind.is_float else None
    if simple is not None:
        elementwise(ctx, simple, [base], kind)
        return
    elementwise(ctx, partial(call, "pow"), [base, exponent], kind)


def _simple_power(ctx: Lowering) -> Callable[[Expr], Expr] | None:
    out, base = ctx.output(), ctx.input(0)
    known = ctx.content(1)
    if known is None or known.size != 1 or out is None or out.shape != base.shape:
        return None
    return _SIMPLE_POWERS.get(float(known.reshape(-1)[0]))


def _square_root(x: Expr) -> Expr:
    """pow(x, 0.5): unlike the root, +0 for -0 and +inf for -inf."""
    return select(x.eq(-np.inf), np.inf, call("sqrt", x) + 0.0)


_SIMPLE_POWERS: dict[float, Callable[[Expr], Expr]] = {
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    -1.0: lambda x: 1.0 / x,
    0.5: _square_root,
}


# --- choice ---------------------------------------------------------------------------------------


@lowers("Where")
def where(ctx: Lowering) -> None:
    """Elements are moved as they are, so any type will do."""
    out = ctx.output()
    if out is None:
        return
    condition, then, otherwise = (ctx.input(position) for position in range(3))
    refuse_opaque(then, out)

    def body(*index: Expr) -> Expr:
        chosen = [broadcast_load(part, out.shape, index) for part in (condition, then, otherwise)]
        return select(*chosen)

    ctx.pure(out, body)


@lowers("Clip")
def clip(ctx: Lowering) -> None:
    """Both bounds are scalars; where they cross, the upper one wins."""
    base = ctx.input(0)
    given = [position for position in (1, 2) if ctx.optional(position) is not None]
    if any(len(ctx.input(position).shape) > len(base.shape) for position in given):
        raise Unlowerable("a bound is no scalar")
    known = {position: _known_bound(ctx, position) for position in given}
    asked = [position for position in given if known[position] is None]

    def limit(x: Expr, *bounds: Expr) -> Expr:
        at_run_time = dict(zip(asked, bounds, strict=True))
        for position in given:
            bound = known[position] or at_run_time[position]
            x = x.max(bound) if position == 1 else x.min(bound)
        return x

    elementwise(ctx, limit, [base, *map(ctx.input, asked)])


def _known_bound(ctx: Lowering, position: int) -> Expr | None:
    """A bound that is a constant: of one that is not, code has to ask whether it is NaN."""
    found = ctx.content(position)
    kind = compute_type(ctx.input(0).dtype)
    return None if found is None or found.size != 1 else constant(found.item(), kind)
