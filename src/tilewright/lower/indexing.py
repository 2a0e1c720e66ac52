"""Index arithmetic and element types shared by the lowerings that move data.

Input -> Output: index expressions, dims, dtypes -> expressions for ``kernel.ir``.
Guarantees: nothing here assumes that a dim is constant.
Not here: the operators themselves (one file a family).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.core.dtypes import (
    BOOL,
    FLOAT32,
    FLOAT64,
    INT8,
    INT64,
    UINT8,
    DType,
    Kind,
)
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Buffer, Expr, call, cast, constant, dim_value, select
from tilewright.lower.context import Lowering, Unlowerable

_SOFT = frozenset(("float16", "bfloat16"))


def refuse_opaque(ctx: Lowering) -> None:
    """Refuses tensors that kernels cannot hold.

    Raises:
        Unlowerable: an operand or result has strings, complex numbers, or is no tensor.
    """
    for info in ctx.info.outputs:
        if info is not None and info.container != "tensor":
            raise Unlowerable(f"{info.container}s")
    for buffer in (*ctx.inputs, *ctx.outputs):
        if buffer is not None and buffer.dtype.kind is Kind.STRING:
            raise Unlowerable("strings")
        if buffer is not None and buffer.dtype.kind is Kind.COMPLEX:
            raise Unlowerable("complex numbers")


def axis_of(value: int, rank: int) -> int:
    """An axis attribute as a non-negative axis.

    Raises:
        Unlowerable: it lies outside of the rank (the shape rule reports it to the user).
    """
    if not -rank <= value < max(rank, 1):
        raise Unlowerable(f"axis {value} of a tensor of rank {rank}")
    return value % rank if rank else 0


def as_index(value: Expr) -> Expr:
    """An integer expression as an int64 index."""
    return cast(value, INT64)


def checked(index: Expr, dim: Dim) -> Expr:
    """A data-dependent index: negative ones wrap once, others outside raise at run time."""
    return call("checked_index", as_index(index), dim_value(dim))


def checked_forward(index: Expr, dim: Dim) -> Expr:
    """A data-dependent index that must not be negative either."""
    whole = as_index(index)
    return checked(select(whole.lt(0), dim_value(dim), whole), dim)


def within(index: Expr, low: Expr | int, high: Expr | Dim | int) -> Expr:
    """Whether ``low <= index < high``."""
    bound = high if isinstance(high, Expr) else dim_value(high)
    return index.ge(low) & index.lt(bound)


def nonempty(dims: Sequence[Dim]) -> Expr:
    """Whether all dims are at least one; constant where they are."""
    condition = constant(True, BOOL)
    for dim in dims:
        condition = condition & dim_value(dim).gt(0)
    return condition


def clamp(index: Expr, dim: Dim) -> Expr:
    """The nearest position in ``0 .. dim-1`` (0 for an empty dim)."""
    return index.min(dim_value(dim) - 1).max(0)


def flatten(index: Sequence[Expr], dims: Sequence[Dim]) -> Expr:
    """Row-major position of an index in an array of the given dims."""
    position = constant(0, INT64)
    for part, dim in zip(index, dims, strict=True):
        position = position * dim_value(dim) + part
    return position


def unflatten(position: Expr, dims: Sequence[Dim]) -> tuple[Expr, ...]:
    """Row-major index of a position in an array of the given dims."""
    parts: list[Expr] = []
    for place, dim in reversed(list(enumerate(dims))):
        parts.append(position % dim_value(dim) if place else position)
        position = position / dim_value(dim)
    return tuple(reversed(parts))


def broadcast_load(buffer: Buffer, index: Sequence[Expr], shape: Sequence[Dim]) -> Expr:
    """The element of ``buffer`` that NumPy's broadcasting puts at ``index`` of ``shape``."""
    skipped = len(shape) - len(buffer.shape)
    parts: list[Expr] = []
    for dim, part, size in zip(buffer.shape, index[skipped:], shape[skipped:], strict=True):
        if dim == size:
            parts.append(part)
        else:
            parts.append(call("select", dim_value(dim).eq(1), 0, part))
    return buffer[tuple(parts)]


def replaced(index: Sequence[Expr], axis: int, part: Expr) -> tuple[Expr, ...]:
    """The index with another expression on one axis."""
    return (*index[:axis], part, *index[axis + 1 :])


def zero(dtype: DType) -> Expr:
    """Zero, or False."""
    return constant(0, dtype)


def computed(dtype: DType) -> DType:
    """The type to compute in for elements of ``dtype``: wide enough, and one with arithmetic."""
    if dtype.is_float:
        return FLOAT64 if dtype is FLOAT64 else FLOAT32
    if dtype.is_integer and dtype.bits < 8:
        return INT8 if dtype.is_signed else UINT8
    return dtype


def interpolated(dtype: DType) -> DType:
    """The type to interpolate elements of ``dtype`` in: exact for integers up to 2**53."""
    return FLOAT32 if dtype is FLOAT32 or dtype.name in _SOFT else FLOAT64


def from_real(value: Expr, dtype: DType) -> Expr:
    """A float as ``dtype``: integers round half to even and saturate."""
    if dtype.is_integer:
        return cast(call("round", value), dtype)
    return cast(value, dtype)
