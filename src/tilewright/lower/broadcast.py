"""NumPy broadcasting in kernels: where an operand is read for an output index.

Input -> Output: an operand, the output's shape and index -> the operand's index, or its element.
Guarantees: a dim that may turn out to be 1 at run time is read at ``select(dim == 1, 0, i)``.
Not here: the broadcast shape itself (graph.shapes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.core.dtypes import INT64, DType, Kind
from tilewright.core.errors import InternalError
from tilewright.core.shape import Dim
from tilewright.graph.shapes.broadcast import Relation, relation
from tilewright.kernel.ir import Buffer, Expr, call, constant, dim_value, select
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.precision import compute_type


def broadcast_index(
    operand: Buffer, out_shape: Sequence[Dim], index: Sequence[Expr]
) -> tuple[Expr, ...]:
    """The index into ``operand`` for ``index`` into a result of shape ``out_shape``."""
    skipped = len(out_shape) - len(operand.shape)
    if skipped < 0:
        raise InternalError(f"{operand.name} has more dims than the result that it broadcasts to")
    zero = constant(0, INT64)
    parts: list[Expr] = []
    for dim, part, size in zip(operand.shape, index[skipped:], out_shape[skipped:], strict=True):
        match relation(dim, size):
            case Relation.SAME:
                parts.append(part)
            case Relation.ONE:
                parts.append(zero)
            case Relation.UNKNOWN:
                parts.append(select(dim_value(dim).eq(1), zero, part))
    return tuple(parts)


def broadcast_load(operand: Buffer, out_shape: Sequence[Dim], index: Sequence[Expr]) -> Expr:
    """The element of ``operand`` for ``index`` into a result of shape ``out_shape``."""
    return operand[broadcast_index(operand, out_shape, index)]


def position_in(index: Expr, dim: Dim) -> Expr:
    """An index that may not be negative; outside of ``0 .. dim-1`` it raises at run time."""
    size = dim_value(dim)
    return call("checked_index", select(index.lt(0), size, index), size)


def elementwise(
    ctx: Lowering,
    function: Callable[..., Expr],
    operands: Sequence[Buffer] | None = None,
    kind: DType | None = None,
) -> None:
    """Emits ``out[i] = function(operand[i], ...)`` with broadcasting, if the output is wanted.

    Args:
        ctx: the node.
        function: of the operands' elements, in the type that is computed in; any type is returned.
        operands: default: all inputs that are present.
        kind: the type that operands are converted to; default: that of the first operand.

    Raises:
        Unlowerable: elements without arithmetic (strings, complex numbers).
    """
    out = ctx.output()
    if out is None:
        return
    loaded = (
        [buffer for buffer in ctx.inputs if buffer is not None] if operands is None else operands
    )
    refuse_opaque(*loaded, out)
    wanted = kind if kind is not None else compute_type(loaded[0].dtype)

    def body(*index: Expr) -> Expr:
        values = [broadcast_load(operand, out.shape, index).cast(wanted) for operand in loaded]
        return function(*values).cast(out.dtype)

    ctx.pure(out, body)


def refuse_opaque(*buffers: Buffer) -> None:
    """Refuses elements that kernels cannot hold.

    Raises:
        Unlowerable: strings or complex numbers.
    """
    for buffer in buffers:
        if buffer.dtype.kind is Kind.STRING:
            raise Unlowerable("string elements")
        if buffer.dtype.kind is Kind.COMPLEX:
            raise Unlowerable("complex elements")
