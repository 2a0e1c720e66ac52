"""What two bytes add up to, rounded: two multiply-adds instead of two roundings and a division.

    round(limits((a * s + b * t) / u))   ->   round(limits(fma(a, s / u, fma(b, t / u, c))))
Input -> Output: a number between limits that is about to be rounded -> ``ByteSum``, or None.
Guarantees: both ways round to the same integers for all values that a and b may have, at most 2^18
pairs, each of which was tried: factors are found that way. Nothing follows from formulas alone.
Not here: sums of more than two such numbers; instructions (codegen).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.dtypes import FLOAT32
from tilewright.core.errors import InternalError
from tilewright.kernel.bounds import bounds
from tilewright.kernel.ir import Call, Cast, Const, Expr
from tilewright.kernel.limits import limited

Floats = npt.NDArray[Any]

_BYTE = 8
_WHOLE = 256.0  # at most, of a number with 9 bits
_PAIR = 2
_LEAST, _MOST = 2.0**-8, 2.0**12  # of a factor: between them, float64 has every bit of an fma
STEPS = (0, 1, -1, 2, -2)
LINEAR = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
}


@dataclass(frozen=True, slots=True)
class ByteSum:
    """``fma(leaves[0], factors[0], fma(leaves[1], factors[1], offset))``."""

    leaves: tuple[Expr, Expr]
    factors: tuple[float, float]
    offset: float


@lru_cache(maxsize=1 << 10)
def sum_of_bytes(number: Expr) -> ByteSum | None:
    """The sum that a number between two limits is, as multiply-adds."""
    found = limited(number)
    leaves = None if found is None or found[0].dtype is not FLOAT32 else _leaves(found[0])
    if found is None or leaves is None or len(leaves) != _PAIR:
        return None
    inner, low, high = found
    first, second = leaves
    grid = {first: _values(first)[:, None], second: _values(second)[None, :]}
    wanted = _rounded(_exactly(inner, grid), low, high)
    near, far = (grid[leaf].astype(np.float64) for leaf in leaves)
    for *factors, offset in _candidates(inner, first, second):
        rest = (factors[1] * far + offset).astype(np.float32)
        total = (factors[0] * near + rest).astype(np.float32)
        if np.array_equal(_rounded(total, low, high), wanted):
            return ByteSum((first, second), (factors[0], factors[1]), offset)
    return None


def _candidates(inner: Expr, first: Expr, second: Expr) -> Iterator[tuple[float, ...]]:
    """Two factors and an offset: the nearest float32 to what they are, then those beside it."""
    places = ({first: x, second: y} for x, y in ((0, 0), (1, 0), (0, 1)))
    offset, *ends = (float(_exactly(inner, at, np.float64)) for at in places)
    exact = (*(end - offset for end in ends), offset)
    moves = list(product(STEPS, STEPS, STEPS if offset else (0,)))
    if all(_LEAST < abs(one) < _MOST for one in exact if one):
        for steps in sorted(moves, key=lambda steps: sum(map(abs, steps))):
            yield tuple(moved(one, count) for one, count in zip(exact, steps, strict=True))


def _leaves(inner: Expr) -> list[Expr] | None:
    """The whole numbers that linear operations of constants combine; None for other operations."""
    found: list[Expr] = []
    stack = [inner]
    while stack:
        node = stack.pop()
        if isinstance(node, Const):
            continue
        if _is_whole(node):
            found += [] if node in found else [node]
        elif isinstance(node, Call) and node.op in LINEAR and _has_constant(node):
            stack.extend(node.args)
        else:
            return None
    return found


def _has_constant(node: Call) -> bool:
    """True for a sum, and for a product or a quotient of which a factor is known."""
    if node.op == "div":
        return isinstance(node.args[1], Const)
    return node.op != "mul" or any(isinstance(arg, Const) for arg in node.args)


def _is_whole(node: Expr) -> bool:
    if isinstance(node, Cast):
        source = node.arg.dtype
        return not node.bits and source.is_integer and source.bits <= _BYTE
    if not isinstance(node, Call) or node.op != "round":
        return False
    found = bounds(node)
    return not found.maybe_nan and found.low >= -_WHOLE and found.high <= _WHOLE


def _values(leaf: Expr) -> Floats:
    found = bounds(leaf)
    return np.arange(np.floor(found.low), np.ceil(found.high) + 1).astype(np.float32)


def _exactly(inner: Expr, at: dict[Expr, Any], kind: type = np.float32) -> Floats:
    """The value of linear operations, each rounded to the type."""
    if inner in at:
        return np.asarray(at[inner], kind)
    if isinstance(inner, Const):
        return np.asarray(np.float32(inner.value), kind)
    args = [_exactly(arg, at, kind) for arg in inner.children]
    if not isinstance(inner, Call):
        raise InternalError(f"{inner} is not linear")
    return np.asarray(LINEAR[inner.op](*args))


def _rounded(value: Floats, low: float, high: float) -> Floats:
    return np.asarray(np.rint(np.clip(value, np.float32(low), np.float32(high))))


def moved(number: float, steps: int) -> float:
    """The float32 that lies so many numbers further from 0."""
    near = np.float32(number)
    return float(np.int32(near.view(np.int32) + steps).view(np.float32))
