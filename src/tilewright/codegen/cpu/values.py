"""LLVM types and SSA values as Python records.

Input -> Output: kind, bits and lanes -> LLVM's text for the type; numbers -> LLVM literals.
Guarantees: types are interned (``is`` is equality); constants know their Python value, so that
emission can fold them.
Not here: instructions (emit, instructions), how an element type travels (convert).
"""

from __future__ import annotations

import math
import struct
from functools import cache
from typing import NamedTuple

from tilewright.core.errors import InternalError

_FLOAT_NAMES = {("f", 16): "half", ("f", 32): "float", ("f", 64): "double", ("bf", 16): "bfloat"}
_FLOAT_MANGLES = {"half": "f16", "float": "f32", "double": "f64", "bfloat": "bf16"}


class Type:
    """An LLVM first-class type; make it with ``type_of`` or ``int_type``/``float_type``.

    Attributes:
        kind: ``i`` integer, ``f`` IEEE float, ``bf`` bfloat, ``ptr`` pointer.
        bits: width of one lane.
        lanes: 1 is a scalar, more is a fixed vector.
        text: LLVM's spelling, such as ``<16 x float>``.
        mangled: its spelling in names of intrinsics, such as ``v16f32``.
    """

    __slots__ = ("bits", "kind", "lanes", "mangled", "text")

    kind: str
    bits: int
    lanes: int
    text: str
    mangled: str

    @property
    def is_float(self) -> bool:
        return self.kind == "f" or self.kind == "bf"

    @property
    def is_int(self) -> bool:
        return self.kind == "i"

    @property
    def is_vector(self) -> bool:
        return self.lanes > 1

    @property
    def element(self) -> Type:
        """The type of one lane."""
        return type_of(self.kind, self.bits, 1)

    @property
    def bytes(self) -> int:
        """Bytes in memory of all lanes together; lanes narrower than a byte count as one."""
        return self.element_bytes * self.lanes

    @property
    def element_bytes(self) -> int:
        """Bytes in memory of one lane."""
        return max(1, self.bits // 8)

    def with_lanes(self, lanes: int) -> Type:
        """The same element with another number of lanes."""
        return type_of(self.kind, self.bits, lanes)

    def as_int(self) -> Type:
        """Integers of the same width and lanes."""
        return type_of("i", self.bits, self.lanes)

    def __repr__(self) -> str:
        return self.text


@cache
def type_of(kind: str, bits: int, lanes: int = 1) -> Type:
    """The interned type.  ``ptr`` has 64 bits; one lane is a scalar, never a vector."""
    made = Type()
    made.kind, made.bits, made.lanes = kind, bits, lanes
    if kind == "i":
        text, mangled = f"i{bits}", f"i{bits}"
    elif kind == "ptr":
        text, mangled = "ptr", "p0"
    elif (kind, bits) in _FLOAT_NAMES:
        text = _FLOAT_NAMES[kind, bits]
        mangled = _FLOAT_MANGLES[text]
    else:
        raise InternalError(f"no LLVM type {kind}{bits}")
    made.text = text if lanes == 1 else f"<{lanes} x {text}>"
    made.mangled = mangled if lanes == 1 else f"v{lanes}{mangled}"
    return made


def int_type(bits: int, lanes: int = 1) -> Type:
    """An integer type; one bit is a boolean."""
    return type_of("i", bits, lanes)


def float_type(bits: int, lanes: int = 1) -> Type:
    """half, float or double."""
    return type_of("f", bits, lanes)


PTR = type_of("ptr", 64)
I1 = int_type(1)
I8 = int_type(8)
I16 = int_type(16)
I32 = int_type(32)
I64 = int_type(64)
HALF = float_type(16)
BFLOAT = type_of("bf", 16)
FLOAT = float_type(32)
DOUBLE = float_type(64)


class Value(NamedTuple):
    """An SSA value or a literal.

    Attributes:
        type: its LLVM type.
        ref: ``%name``, ``@name`` or a literal, as written after the type.
        const: the number when it is a literal (all lanes alike), else None.
    """

    type: Type
    ref: str
    const: int | float | None = None

    @property
    def typed(self) -> str:
        """``type ref``, as operands are written."""
        return f"{self.type.text} {self.ref}"


def wrap(number: int, bits: int) -> int:
    """The two's complement value of the low bits (i1 gives 0 or 1)."""
    number &= (1 << bits) - 1
    return number - (1 << bits) if bits > 1 and number >> (bits - 1) else number


def float_literal(number: float, kind: Type) -> str:
    """LLVM's exact spelling of a float; the number is rounded to the type first."""
    if kind.kind == "bf":
        raise InternalError("bfloat literals are written as integers")
    number = rounded(number, kind.bits)
    if kind.bits == 16:
        return f"0xH{struct.unpack('<H', struct.pack('<e', number))[0]:04X}"
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


def rounded(number: float, bits: int) -> float:
    """The nearest IEEE number of 16, 32 or 64 bits, infinity included."""
    code = {16: "<e", 32: "<f", 64: "<d"}[bits]
    try:
        return float(struct.unpack(code, struct.pack(code, number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def constant(kind: Type, number: int | float) -> Value:
    """A literal; in a vector every lane has the value.  Integers wrap to the type."""
    return _constant(kind, number, str(number))


@cache
def _constant(kind: Type, number: int | float, key: str) -> Value:
    # The text is part of the key because 0.0 == -0.0 == 0 and NaN != NaN.
    del key
    if kind.kind == "ptr":
        return Value(kind, "null", 0)
    if kind.kind == "i":
        number = wrap(int(number), kind.bits)
        text = ("true" if number else "false") if kind.bits == 1 else str(number)
    else:
        number = rounded(float(number), kind.bits)
        text = float_literal(number, kind.element)
    if kind.lanes > 1:
        text = f"splat ({kind.element.text} {text})"
    return Value(kind, text, number)


def index(number: int) -> Value:
    """An i64 literal."""
    return constant(I64, number)


def lane_constants(kind: Type, numbers: list[int] | list[float]) -> Value:
    """A vector literal with one number a lane."""
    if len(numbers) != kind.lanes or kind.lanes == 1:
        raise InternalError(f"{len(numbers)} numbers for {kind.text}")
    if all(number == numbers[0] for number in numbers) and kind.kind == "i":
        return constant(kind, numbers[0])
    element = kind.element
    parts = ", ".join(f"{element.text} {constant(element, number).ref}" for number in numbers)
    return Value(kind, f"<{parts}>")
