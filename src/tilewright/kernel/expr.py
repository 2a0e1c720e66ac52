"""Expressions of a kernel: what is computed at a point of its axes.

Input -> Output: operators on nodes and the constructors below -> interned nodes.
Guarantees: every node is frozen; expressions are interned, so ``is`` is structural equality and a
shared sub-expression is one object; what a constructor simplifies is exact.
Types: operations work on float32, float64, 8..64 bit integers and bool; float16, bfloat16,
float8, float4, int4, int2 are only loaded, stored, selected and cast (compute in float32 or int8
between).
Not here: rewriting (kernel.traverse), loops and stores (kernel.ir), meaning of operations
(kernel.ops).
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from tilewright.core.dtypes import BOOL, INT64, DType
from tilewright.core.errors import InternalError
from tilewright.core.forks import renew_in_child
from tilewright.core.shape import Dim
from tilewright.kernel.ops import COMBINERS, SCALAR_OPS, Result

Scalar = int | float | bool


class Expr:
    """Base of all expressions.  Operators build ``Call``s; Python numbers become constants.

    Attributes:
        dtype: type of the value.
        children: direct sub-expressions, in order.
        free_axes: names of the axes that the value depends on (bound reduction axes excluded).
        height: number of levels.
    """

    dtype: DType
    children: tuple[Expr, ...]
    free_axes: frozenset[str]
    height: int
    _interned: ClassVar[WeakValueDictionary[Any, Expr]] = WeakValueDictionary()
    __slots__ = ("__dict__", "__weakref__")

    def __add__(self, other: Expr | Scalar) -> Expr:
        return call("add", self, other)

    def __radd__(self, other: Scalar) -> Expr:
        return call("add", constant(other, self.dtype), self)

    def __sub__(self, other: Expr | Scalar) -> Expr:
        return call("sub", self, other)

    def __rsub__(self, other: Scalar) -> Expr:
        return call("sub", constant(other, self.dtype), self)

    def __mul__(self, other: Expr | Scalar) -> Expr:
        return call("mul", self, other)

    def __rmul__(self, other: Scalar) -> Expr:
        return call("mul", constant(other, self.dtype), self)

    def __truediv__(self, other: Expr | Scalar) -> Expr:
        return call("div", self, other)

    def __rtruediv__(self, other: Scalar) -> Expr:
        return call("div", constant(other, self.dtype), self)

    def __mod__(self, other: Expr | Scalar) -> Expr:
        return call("mod", self, other)

    def __neg__(self) -> Expr:
        return call("neg", self)

    def __and__(self, other: Expr) -> Expr:
        return call("and", self, other)

    def __or__(self, other: Expr) -> Expr:
        return call("or", self, other)

    def lt(self, other: Expr | Scalar) -> Expr:
        return call("lt", self, other)

    def le(self, other: Expr | Scalar) -> Expr:
        return call("le", self, other)

    def gt(self, other: Expr | Scalar) -> Expr:
        return call("gt", self, other)

    def ge(self, other: Expr | Scalar) -> Expr:
        return call("ge", self, other)

    def eq(self, other: Expr | Scalar) -> Expr:
        return call("eq", self, other)

    def ne(self, other: Expr | Scalar) -> Expr:
        return call("ne", self, other)

    def min(self, other: Expr | Scalar) -> Expr:
        return call("min", self, other)

    def max(self, other: Expr | Scalar) -> Expr:
        return call("max", self, other)

    def cast(self, dtype: DType, saturate: bool = True) -> Expr:
        return cast(self, dtype, saturate=saturate)


class Const(Expr):
    """A constant.  Floats keep their exact bits, NaN and signed zero included."""

    value: Scalar


class AxisVar(Expr):
    """The current index on an axis; int64."""

    name: str


class DimValue(Expr):
    """A size known when the kernel is called; int64."""

    dim: Dim


class Load(Expr):
    """An element of a buffer.  Evaluated only where it is in bounds (guard it with ``select``)."""

    buffer: str
    index: tuple[Expr, ...]


class Call(Expr):
    """A scalar operation of ``kernel.ops``."""

    op: str
    args: tuple[Expr, ...]


class Cast(Expr):
    """A conversion.

    Floats to integers truncate and saturate (NaN gives 0); integers wrap; to bool means ``!= 0``;
    to narrower floats rounds to nearest even; ``saturate`` chooses between the largest value and
    infinity/NaN for 8-bit floats.  ``bits`` reinterprets the same number of bits instead.
    """

    arg: Expr
    saturate: bool
    bits: bool


class Reduce(Expr):
    """``combiner`` over all points of ``axes`` of ``body``; its accumulator has the body's type."""

    combiner: str
    axes: tuple[Axis, ...]
    body: Expr


@dataclass(frozen=True, slots=True)
class Axis:
    """A named iteration range ``0 .. extent-1``.

    ``ordered``: iterations run in increasing order and see earlier iterations' stores.
    """

    name: str
    extent: Dim
    ordered: bool = False

    @property
    def var(self) -> Expr:
        return axis_var(self.name)


# --- constructors (interned) ---------------------------------------------------------------------


_interning = Lock()
renew_in_child(sys.modules[__name__], "_interning")


def _intern(
    cls: type[Expr],
    key: tuple[Any, ...],
    dtype: DType,
    *,
    binds: Iterable[str] = (),
    names: frozenset[str] = frozenset(),
    **fields: Any,
) -> Any:
    """The one node of these fields; ``names`` are its own axes, ``binds`` those it binds."""
    full = (cls, dtype.name, *key)
    found = Expr._interned.get(full)
    if found is not None:
        return found
    made = cls()
    made.dtype = dtype
    for name, value in fields.items():
        setattr(made, name, value)
    made.children = tuple(
        part
        for value in fields.values()
        for part in (value if isinstance(value, tuple) else (value,))
        if isinstance(part, Expr)
    )
    made.height = 1 + max((child.height for child in made.children), default=0)
    made.free_axes = names.union(*(child.free_axes for child in made.children)).difference(binds)
    with _interning:  # two threads may compile at once; both must get one node
        found = Expr._interned.get(full)
        if found is None:
            found = Expr._interned[full] = made
    return found


def constant(value: Scalar, dtype: DType) -> Expr:
    """A constant of the given type."""
    if dtype.is_float:
        number = float(value)
        return _intern(Const, (struct.pack("<d", number),), dtype, value=number)  # type: ignore[no-any-return]
    whole = bool(value) if dtype is BOOL else int(value)
    return _intern(Const, (whole,), dtype, value=whole)  # type: ignore[no-any-return]


def axis_var(name: str) -> Expr:
    """The index on an axis."""
    return _intern(AxisVar, (name,), INT64, names=frozenset((name,)), name=name)  # type: ignore[no-any-return]


def dim_value(dim: Dim | int) -> Expr:
    """A size as an int64 value; constants become ``Const``."""
    dim = Dim.of(dim)
    return constant(dim.const, INT64) if dim.is_const else _intern(DimValue, (dim,), INT64, dim=dim)


def load(buffer: str, dtype: DType, index: Iterable[Expr | int]) -> Expr:
    """An element of a buffer; the index has one int64 expression for each dim."""
    indices = tuple(_lift(part, INT64) for part in index)
    return _intern(Load, (buffer, *map(id, indices)), dtype, buffer=buffer, index=indices)  # type: ignore[no-any-return]


def call(op: str, *args: Expr | Scalar) -> Expr:
    """Applies a scalar operation; Python numbers take the type of the first expression operand.

    Simplifies only what is exact: constant integer arithmetic, ``x+0``, ``x*1``, ``0*x`` on
    integers, and selects on a constant condition.
    """
    spec = SCALAR_OPS[op]
    if len(args) != spec.arity:
        raise InternalError(f"{op} takes {spec.arity} operands")
    choice = spec.result is Result.BRANCH
    typed = args[1:] if choice else args
    like = next((arg.dtype for arg in typed if isinstance(arg, Expr)), None)
    if like is None:
        raise InternalError(f"{op} needs a typed operand")
    lifted = tuple(_lift(arg, BOOL if choice and i == 0 else like) for i, arg in enumerate(args))
    if any(arg.dtype is not like for arg in (lifted[1:] if choice else lifted)):
        raise InternalError(f"{op}: operands of types {[arg.dtype.name for arg in lifted]}")
    simple = _simplify(op, lifted)
    if simple is not None:
        return simple
    dtype = BOOL if spec.result is Result.BOOL else INT64 if spec.result is Result.INDEX else like
    return _intern(Call, (op, *map(id, lifted)), dtype, op=op, args=lifted)  # type: ignore[no-any-return]


def select(condition: Expr, then: Expr | Scalar, otherwise: Expr | Scalar) -> Expr:
    """``then`` where the condition holds, else ``otherwise``; only the chosen one is evaluated."""
    return call("select", condition, then, otherwise)


def cast(arg: Expr, dtype: DType, *, saturate: bool = True, bits: bool = False) -> Expr:
    """Converts (see ``Cast``); a cast to the same type is the operand itself."""
    if arg.dtype is dtype:
        return arg
    if isinstance(arg, Const) and dtype is INT64 and arg.dtype.is_integer and not bits:
        return constant(arg.value, INT64)
    key = (id(arg), saturate, bits)
    return _intern(Cast, key, dtype, arg=arg, saturate=saturate, bits=bits)  # type: ignore[no-any-return]


_numbers = count()


def fresh_name(prefix: str = "r") -> str:
    """The name of an axis that no other axis has."""
    return f"{prefix}{next(_numbers)}"


def reduce_over(
    combiner: str, extents: Sequence[Dim | int], body: Callable[..., Expr], prefix: str = "r"
) -> Expr:
    """Reduces ``body(*indices)`` over fresh axes of the given extents."""
    axes = tuple(Axis(fresh_name(prefix), Dim.of(extent)) for extent in extents)
    return reduce_axes(combiner, axes, body(*(axis.var for axis in axes)))


def reduce_axes(combiner: str, axes: tuple[Axis, ...], body: Expr) -> Expr:
    """Reduces an expression over named axes; without axes it is the body."""
    if combiner not in COMBINERS:
        raise InternalError(f"no combiner {combiner}")
    if not axes:
        return body
    return _intern(  # type: ignore[no-any-return]
        Reduce,
        (combiner, axes, id(body)),
        body.dtype,
        binds=[axis.name for axis in axes],
        combiner=combiner,
        axes=axes,
        body=body,
    )


def _lift(value: Expr | Scalar, dtype: DType) -> Expr:
    return value if isinstance(value, Expr) else constant(value, dtype)


def _simplify(op: str, args: tuple[Expr, ...]) -> Expr | None:
    first = args[0]
    if op in ("select", "blend") and isinstance(first, Const):
        return args[1] if first.value else args[2]
    if op == "and" and first.dtype is BOOL:
        for one, other in (args, args[::-1]):
            if isinstance(one, Const):
                return other if one.value else one
    if first.dtype is not INT64 or len(args) != 2:
        return None
    left, right = args
    if isinstance(left, Const) and isinstance(right, Const):
        return _fold(op, int(left.value), int(right.value))
    if op in ("add", "mul") and isinstance(left, Const):
        left, right = right, left
    if isinstance(right, Const):
        if right.value == 0 and op in ("add", "sub"):
            return left
        if right.value == 1 and op in ("mul", "div"):
            return left
        if (right.value == 0 and op == "mul") or (right.value == 1 and op == "mod"):
            return constant(0, INT64)
    return None


_FOLDS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "min": min,
    "max": max,
}
_COMPARES: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def _fold(op: str, left: int, right: int) -> Expr | None:
    if op in _COMPARES:
        return constant(_COMPARES[op](left, right), BOOL)
    if op not in _FOLDS or not -(2**62) < (value := _FOLDS[op](left, right)) < 2**62:
        return None
    return constant(value, INT64)


def identity_of(combiner: str, dtype: DType) -> Scalar:
    """The neutral element of a combiner."""
    if combiner in ("sum", "or"):
        return 0
    if combiner in ("prod", "and"):
        return 1
    high = combiner == "min"
    if dtype.is_float:
        return math.inf if high else -math.inf
    if dtype is BOOL:
        return high
    bits = dtype.bits - (1 if dtype.is_signed else 0)
    lowest = -(1 << bits) if dtype.is_signed else 0
    return (1 << bits) - 1 if high else lowest
