"""Contents computed from contents: shape arithmetic stays symbolic, small constants become numbers.

Input -> Output: a node with the contents of its inputs -> the contents of its outputs, or None.
Guarantees: integers are exact; a float element stands for an integer polynomial over a power of
two, which floats represent exactly; anything that is not proven is None.
Not here: Shape and Size, whose contents come from shapes (generation).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.dtypes import BY_CODE, DType, Kind
from tilewright.core.shape import Dim, product
from tilewright.graph.shapes.algebra import Facts
from tilewright.graph.shapes.registry import MAX_CONTENT
from tilewright.graph.view import NodeView

Array = npt.NDArray[Any]
MAX_DENOMINATOR = 2**12


@dataclass(frozen=True, slots=True)
class Number:
    """``numerator / denominator``, the denominator a power of two."""

    numerator: Dim
    denominator: int = 1


@dataclass(frozen=True, slots=True)
class ContentCall:
    """One node with its inputs' elements as object arrays of ``Number`` (None where unknown).

    Attributes:
        node: the call.
        operands: the inputs' elements.
        kinds: the inputs' element types (None where absent).
        shape: the output's static shape, None where it is not static.
        facts: what is proven of dims.
    """

    node: NodeView
    operands: tuple[Array | None, ...]
    kinds: tuple[DType | None, ...]
    shape: tuple[int, ...] | None
    facts: Facts

    def needed(self, *positions: int) -> tuple[Array, ...]:
        """The elements of these inputs.

        Raises:
            Unproven: one of them is unknown or absent.
        """
        found = [self.operands[k] if k < len(self.operands) else None for k in positions]
        known = tuple(part for part in found if part is not None)
        if len(known) != len(found):
            raise Unproven
        return known

    def ints(self, position: int, default: list[int] | None = None) -> list[int]:
        """Constant integers of an input.

        Raises:
            Unproven: they are not constant integers.
        """
        absent = position >= len(self.kinds) or self.kinds[position] is None
        if absent and default is not None:
            return default
        (values,) = self.needed(position)
        return [_constant(value) for value in values.reshape(-1)]


class Unproven(Exception):
    """The contents cannot be stated."""


ContentRule = Callable[[ContentCall], "Array | tuple[Array, ...]"]
_RULES: dict[str, ContentRule] = {}


def content_rule(*op_types: str) -> Callable[[ContentRule], ContentRule]:
    """Registers how operators of ai.onnx compute contents from symbolic contents."""

    def register(function: ContentRule) -> ContentRule:
        for op_type in op_types:
            _RULES[op_type] = function
        return function

    return register


def has_rule(node: NodeView) -> bool:
    """Whether contents can pass through this operator."""
    return node.domain == "" and node.op_type in _RULES


def propagate(call: ContentCall) -> tuple[Array, ...] | None:
    """The outputs' elements as object arrays of ``Number``, or None where they are not proven."""
    try:
        found = _RULES[call.node.op_type](call)
    except Unproven:
        return None
    parts = found if isinstance(found, tuple) else (found,)
    # NumPy hands out the bare element where an object array becomes a scalar.
    results = tuple(np.asarray(part, object) for part in parts)
    return results if all(part.size <= MAX_CONTENT for part in results) else None


def to_numbers(content: Array, dtype: DType) -> Array | None:
    """Contents as an object array of ``Number``; None where an element is not exact."""
    if dtype.kind in (Kind.STRING, Kind.COMPLEX) or content.size > MAX_CONTENT:
        return None
    result = np.empty(content.shape, object)
    for index, value in np.ndenumerate(content):
        number = _number(value)
        if number is None:
            return None
        result[index] = number
    return result


def from_numbers(numbers: Array, dtype: DType) -> Array | None:
    """An ordinary array, or an object array of ``Dim``; None where a fraction is symbolic."""
    flat = numbers.reshape(-1)
    if all(value.numerator.is_const for value in flat):
        plain = [value.numerator.const / value.denominator for value in flat]
        if dtype.kind in (Kind.INT, Kind.UINT, Kind.BOOL):
            plain = [value.numerator.const // value.denominator for value in flat]
            limit = 2 ** (dtype.bits - 1)
            if dtype.kind is Kind.INT and any(not -limit <= part < limit for part in plain):
                return None
        return np.array(plain, dtype.numpy).reshape(numbers.shape)
    if any(value.denominator != 1 for value in flat):
        return None
    result = np.empty(numbers.shape, object)
    for index, value in np.ndenumerate(numbers):
        result[index] = value.numerator
    return result


def _number(value: Any) -> Number | None:
    if isinstance(value, Dim):
        return Number(value)
    if isinstance(value, int | np.integer | np.bool_):
        return Number(Dim.of(int(value)))
    real = float(value)
    if not np.isfinite(real) or abs(real) > 2**53:
        return None
    top, bottom = real.as_integer_ratio()
    return Number(Dim.of(top), bottom) if bottom <= MAX_DENOMINATOR else None


def _constant(value: Number) -> int:
    if not value.numerator.is_const or value.denominator != 1:
        raise Unproven
    return value.numerator.const


# --- arithmetic ---------------------------------------------------------------------------------


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
        one, other = np.broadcast_arrays(left, right)
    except ValueError:
        raise Unproven from None
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
        "Not": lambda value: Number(Dim.of(1 - _constant(value))),
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
            return Number(Dim.of(int(_constant(value) != 0)))

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
