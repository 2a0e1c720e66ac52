"""Contents computed from contents: shape arithmetic stays symbolic, small constants become numbers.

Input -> Output: a node with the contents of its inputs -> the contents of its outputs, or None.
Guarantees: integers are exact; a float element stands for an integer polynomial over a power of
two, which floats represent exactly; anything that is not proven is None.
Not here: Shape and Size, whose contents come from shapes (generation).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.dtypes import DType, Kind
from tilewright.core.shape import Dim
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
        return [constant(value) for value in values.reshape(-1)]


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
            low, high = _range(dtype)
            if any(not low <= part <= high for part in plain):
                return None
        return np.array(plain, dtype.numpy).reshape(numbers.shape)
    if any(value.denominator != 1 for value in flat):
        return None
    result = np.empty(numbers.shape, object)
    for index, value in np.ndenumerate(numbers):
        result[index] = value.numerator
    return result


def _range(dtype: DType) -> tuple[int, int]:
    if dtype.kind is Kind.INT:
        return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1
    return 0, 1 if dtype.kind is Kind.BOOL else 2**dtype.bits - 1


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


def constant(value: Number) -> int:
    """The integer that a number is.

    Raises:
        Unproven: it is symbolic or a fraction.
    """
    if not value.numerator.is_const or value.denominator != 1:
        raise Unproven
    return value.numerator.const
