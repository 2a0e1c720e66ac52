"""Building blocks of contractions: types to compute in, broadcast indices, sums without idle axes.

Input -> Output: buffers and index expressions -> expressions that contraction tactics recognise.
Guarantees: low-precision floats are widened before arithmetic, so a result is rounded once, at the
end.
Not here: operators (matmul, einsum, conv ...).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.core.dtypes import FLOAT64, INT64, DType
from tilewright.core.shape import Dim
from tilewright.graph.shapes.broadcast import Relation, relation
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Expr,
    constant,
    dim_value,
    reduce_over,
    select,
)
from tilewright.lower.precision import compute_type

ZERO = constant(0, INT64)


def common_compute_type(*buffers: Buffer) -> DType:
    """The type for arithmetic between buffers of different float types."""
    types = {compute_type(buffer.dtype) for buffer in buffers}
    return FLOAT64 if FLOAT64 in types else next(iter(types))


def widen(value: Expr) -> Expr:
    """The value in its compute type."""
    return value.cast(compute_type(value.dtype))


def is_one(dim: Dim) -> bool:
    """Whether a dim is the constant 1."""
    return dim.is_const and dim.const == 1


def dim_index(var: Expr, own: Dim, target: Dim) -> Expr:
    """The index along a dim that broadcasts against ``target``."""
    match relation(own, target):
        case Relation.ONE:
            return ZERO
        case Relation.SAME:
            return var
        case _:
            return select(dim_value(own).eq(1), ZERO, var)


def scalar(buffer: Buffer) -> Expr:
    """The only element of a buffer with one element, of any rank."""
    return buffer[(0,) * len(buffer.shape)]


def known_extent(*dims: Dim) -> Dim:
    """One of several equal dims, a constant one if there is any."""
    return next((dim for dim in dims if dim.is_const), dims[0])


def sum_over(extents: Sequence[Dim | int], body: Callable[..., Expr]) -> Expr:
    """Sums ``body(*indices)``; axes of extent 1 are dropped (their index is 0)."""
    return fold_over("sum", extents, body)


def fold_over(combiner: str, extents: Sequence[Dim | int], body: Callable[..., Expr]) -> Expr:
    """Reduces ``body(*indices)``; axes of extent 1 are dropped (their index is 0)."""
    dims = [Dim.of(extent) for extent in extents]
    kept = [position for position, dim in enumerate(dims) if not is_one(dim)]

    def inner(*indices: Expr) -> Expr:
        full = [ZERO] * len(dims)
        for position, index in zip(kept, indices, strict=True):
            full[position] = index
        return body(*full)

    return reduce_over(combiner, [dims[position] for position in kept], inner)


def all_of(conditions: Sequence[Expr]) -> Expr | None:
    """The conjunction of conditions, None if there is none."""
    result: Expr | None = None
    for condition in conditions:
        result = condition if result is None else result & condition
    return result


def guarded(conditions: Sequence[Expr], value: Expr, otherwise: Expr | float) -> Expr:
    """``value`` where all conditions hold, else another or a constant."""
    condition = all_of(conditions)
    return value if condition is None else select(condition, value, otherwise)


def axes_of(shape: Sequence[Dim], prefix: str = "i") -> tuple[Axis, ...]:
    """Parallel axes over a shape."""
    return tuple(Axis(f"{prefix}{k}", dim) for k, dim in enumerate(shape))
