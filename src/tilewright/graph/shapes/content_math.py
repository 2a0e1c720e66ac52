"""Arithmetic on contents: sums, products, quotients, comparisons, casts and reductions of shapes.

Input -> Output: object arrays of ``Number`` in -> object arrays of ``Number`` out (see content).
Guarantees: a quotient, a remainder or a comparison is stated only where its sign is proven; floats
narrower than 32 bits, which do not hold sizes exactly, are ``Unproven``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.core.dtypes import BY_CODE, Kind
from tilewright.core.shape import Dim, product
from tilewright.graph.shapes.content import (
    MAX_DENOMINATOR,
    Array,
    ContentCall,
    Number,
    Unproven,
    constant,
    content_rule,
)
from tilewright.graph.shapes.registry import MAX_CONTENT


def _reduced(top: Dim, bottom: int) -> Number:
    while bottom > 1 and all(factor % 2 == 0 for _, factor in top.terms):
        top, bottom = top // 2, bottom // 2
    if bottom > MAX_DENOMINATOR:
        raise Unproven
    return Number(top, bottom)


def _add(left: Number, right: Number) -> Number:
    bottom = max(left.denominator, right.denominator)
    top = left.numerator * (bottom // left.denominator)
    return _reduced(top + right.numerator * (bottom // right.denominator), bottom)


def _negate(value: Number) -> Number:
    return Number(-value.numerator, value.denominator)


def _multiply(left: Number, right: Number) -> Number:
    return _reduced(left.numerator * right.numerator, left.denominator * right.denominator)


def _float_divide(left: Number, right: Number) -> Number:
    divisor = right.numerator
    if not divisor.is_const or divisor.const <= 0:
        raise Unproven
    power = divisor.const & -divisor.const
    if divisor.const != power:
        whole = left.numerator // divisor
        if whole * divisor != left.numerator:
            raise Unproven
        return _reduced(whole * right.denominator, left.denominator)
    return _reduced(left.numerator * right.denominator, left.denominator * power)


def _pairwise(
    call: ContentCall, function: Callable[[Number, Number], Number], left: Array, right: Array
) -> Array:
    if call.shape is not None and int(np.prod(call.shape)) > MAX_CONTENT:
        raise Unproven
    try:
        pairs: Any = np.broadcast_arrays(left, right)
    except ValueError:
        raise Unproven from None
    one, other = pairs
    result = np.empty(one.shape, object)
    for index in np.ndindex(one.shape):
        result[index] = function(one[index], other[index])
    return result


def _floats(call: ContentCall) -> bool:
    """Whether the operands are floats; narrow floats do not hold sizes exactly."""
    kind = call.kinds[0]
    if kind is not None and kind.kind is Kind.FLOAT:
        if kind.bits < 32:
            raise Unproven
        return True
    return False


@content_rule("Add", "Sub", "Mul", "Div", "Mod")
def _arithmetic(call: ContentCall) -> Array:
    left, right = call.needed(0, 1)
    is_float = _floats(call)
    op = call.node.op_type

    def divide(one: Number, other: Number) -> Number:
        if is_float:
            return _float_divide(one, other)
        top, bottom = one.numerator, other.numerator
        if top.is_const and bottom.is_const and bottom.const:
            whole = abs(top.const) // abs(bottom.const)
            return Number(Dim.of(whole if (top.const < 0) == (bottom.const < 0) else -whole))
        if (top // bottom) * bottom == top:
            return Number(top // bottom)
        if not call.facts.non_negative(top) or not call.facts.non_negative(bottom):
            raise Unproven
        return Number(top // bottom)

    def modulo(one: Number, other: Number) -> Number:
        top, bottom = one.numerator, other.numerator
        if is_float or not call.facts.non_negative(bottom - 1):
            raise Unproven
        if call.node.attribute("fmod", 0) and not call.facts.non_negative(top):
            raise Unproven
        return Number(top % bottom)

    functions = {
        "Add": _add,
        "Sub": lambda one, other: _add(one, _negate(other)),
        "Mul": _multiply,
        "Div": divide,
        "Mod": modulo,
    }
    return _pairwise(call, functions[op], left, right)


@content_rule("Max", "Min")
def _extreme(call: ContentCall) -> Array:
    operands = call.needed(*range(len(call.operands)))
    _floats(call)
    choose = call.facts.larger if call.node.op_type == "Max" else call.facts.smaller

    def pick(one: Number, other: Number) -> Number:
        if one.denominator != 1 or other.denominator != 1:
            raise Unproven
        return Number(choose(one.numerator, other.numerator))

    result = operands[0]
    for other in operands[1:]:
        result = _pairwise(call, pick, result, other)
    return result


@content_rule("Sum")
def _sum(call: ContentCall) -> Array:
    operands = call.needed(*range(len(call.operands)))
    _floats(call)
    result = operands[0]
    for other in operands[1:]:
        result = _pairwise(call, _add, result, other)
    return result


@content_rule("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
def _compare(call: ContentCall) -> Array:
    left, right = call.needed(0, 1)
    op = call.node.op_type

    def decide(one: Number, other: Number) -> Number:
        a, b = one.numerator * other.denominator, other.numerator * one.denominator
        if op == "Equal":
            if a == b or call.facts.different(a, b):
                return Number(Dim.of(int(a == b)))
            raise Unproven
        if op.startswith("Less"):
            a, b = b, a
        strict = not op.endswith("OrEqual")
        if call.facts.at_most(b + 1 if strict else b, a):
            return Number(Dim.of(1))
        if call.facts.at_most(a if strict else a + 1, b):
            return Number(Dim.of(0))
        raise Unproven

    return _pairwise(call, decide, left, right)


def _each(values: Array, function: Callable[[Number], Number]) -> Array:
    result = np.empty(values.shape, object)
    for index, value in np.ndenumerate(values):
        result[index] = function(value)
    return result


@content_rule("Neg", "Abs", "Floor", "Ceil", "Relu", "Sign", "Not", "Round")
def _unary(call: ContentCall) -> Array:
    (values,) = call.needed(0)
    facts = call.facts

    def positive(value: Number) -> Number:
        if facts.non_negative(value.numerator):
            return value
        if facts.non_negative(-value.numerator):
            return _negate(value) if call.node.op_type == "Abs" else Number(Dim.of(0))
        if call.node.op_type == "Relu" and value.denominator == 1:
            return Number(facts.larger(value.numerator, Dim.of(0)))
        raise Unproven

    def sign(value: Number) -> Number:
        for result, dim in ((1, value.numerator - 1), (-1, -value.numerator - 1)):
            if facts.non_negative(dim):
                return Number(Dim.of(result))
        raise Unproven

    def whole(value: Number) -> Number:
        if value.denominator != 1:
            raise Unproven
        return value

    functions: dict[str, Callable[[Number], Number]] = {
        "Neg": _negate,
        "Abs": positive,
        "Relu": positive,
        "Sign": sign,
        "Round": whole,
        "Not": lambda value: Number(Dim.of(1 - constant(value))),
        "Floor": lambda value: Number(value.numerator // value.denominator),
        "Ceil": lambda value: Number(value.numerator.ceildiv(value.denominator)),
    }
    return _each(values, functions[call.node.op_type])


@content_rule("Cast", "CastLike")
def _cast(call: ContentCall) -> Array:
    (values,) = call.needed(0)
    target = BY_CODE[int(call.node.attribute("to"))] if call.node.op_type == "Cast" else None
    target = target or call.kinds[1]
    if target is None or target.kind is Kind.STRING:
        raise Unproven
    if target.kind is Kind.BOOL:

        def truth(value: Number) -> Number:
            if call.facts.different(value.numerator, Dim.of(0)):
                return Number(Dim.of(1))
            return Number(Dim.of(int(constant(value) != 0)))

        return _each(values, truth)
    if target.kind is Kind.FLOAT:
        # A size fits float32; a product of sizes may need more than its 24 bits.
        degree = max((len(m) for value in values.flat for m, _ in value.numerator.terms), default=0)
        if degree and (target.bits < 32 or (degree > 1 and target.bits < 64)):
            raise Unproven
        return values

    def truncate(value: Number) -> Number:
        if value.denominator == 1:
            return value
        if not call.facts.non_negative(value.numerator):
            raise Unproven
        return Number(value.numerator // value.denominator)

    if target.bits < 32 and not all(value.numerator.is_const for value in values.flat):
        raise Unproven
    return _each(values, truncate)


@content_rule("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin")
def _reduce(call: ContentCall) -> Array:
    (values,) = call.needed(0)
    _floats(call)
    axes = call.ints(1, [])
    if not axes:
        if call.node.attribute("noop_with_empty_axes", 0):
            return values
        axes = list(range(values.ndim))
    moved = tuple(axis % values.ndim for axis in axes) if values.ndim else ()
    kept = [axis for axis in range(values.ndim) if axis not in moved]
    rows = values.transpose(*kept, *moved).reshape([*(values.shape[k] for k in kept), -1])
    result = np.empty(rows.shape[:-1], object)
    for index in np.ndindex(result.shape):
        result[index] = _reduce_row(call, list(rows[index]))
    if call.node.attribute("keepdims", 1):
        shape = [1 if axis in moved else size for axis, size in enumerate(values.shape)]
        result = result.reshape(shape)
    return result


def _reduce_row(call: ContentCall, row: Sequence[Number]) -> Number:
    if any(value.denominator != 1 for value in row):
        raise Unproven
    dims = [value.numerator for value in row]
    if call.node.op_type == "ReduceProd":
        return Number(product(dims))
    if call.node.op_type == "ReduceSum":
        return Number(sum(dims, Dim.of(0)))
    if not dims:
        raise Unproven
    choose = call.facts.larger if call.node.op_type == "ReduceMax" else call.facts.smaller
    result = dims[0]
    for dim in dims[1:]:
        result = choose(result, dim)
    return Number(result)
