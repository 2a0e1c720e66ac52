"""Reductions over axes.

    ReduceSum(x, axes=[1])  ->  out[i0] = sum(r0 < d1: x[i0, r0])
Guarantees: halves accumulate in float32; means of integers truncate; empty reductions give the
neutral element (NaN for means); LogSumExp does not overflow.
Requires: params ``reduced`` (1 for axes to reduce), ``reduce_extent``, ``keep_extent``, by axis.
Not here: running sums (lower.cumulative), softmax (lower.softmax).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.core.dtypes import INT64, UINT64, DType
from tilewright.core.shape import Dim, product
from tilewright.kernel.ir import Buffer, Expr, call, constant, reduce_over
from tilewright.lower.broadcast import refuse_opaque
from tilewright.lower.context import Lowering
from tilewright.lower.precision import compute_type, dim_as, finite_or_zero, real_type
from tilewright.lower.registry import lowers


@dataclass(frozen=True, slots=True)
class Slots:
    """Which part of a tensor one output element sees.

    Attributes:
        extents: sizes to reduce over.
        element: reduction indices -> the element, in the type of arithmetic.
        kind: that type.
    """

    extents: tuple[Dim, ...]
    element: Callable[..., Expr]
    kind: DType

    def reduce(self, combiner: str, change: Callable[[Expr], Expr] = lambda x: x) -> Expr:
        """Combines ``change(element)`` over everything seen."""
        return reduce_over(combiner, self.extents, lambda *r: change(self.element(*r)))

    @property
    def count(self) -> Expr:
        """The number of elements seen, in the type of arithmetic."""
        return dim_as(product(self.extents), self.kind)


def mean_of(slots: Slots, change: Callable[[Expr], Expr] = lambda x: x) -> Expr:
    """The arithmetic mean; integers truncate."""
    return slots.reduce("sum", change) / slots.count


def log_sum_exp(slots: Slots) -> Expr:
    """log(sum(exp(x))) around the largest finite element."""
    largest = finite_or_zero(slots.reduce("max"))
    total = slots.reduce("sum", lambda x: call("exp", x - largest))
    return call("log", total) + largest


def _square(x: Expr) -> Expr:
    return x * x


@dataclass(frozen=True, slots=True)
class _Reduction:
    """How an operator reduces, and which type it computes in."""

    kind: Callable[[DType], DType]
    value: Callable[[Slots], Expr]


def _mean_type(dtype: DType) -> DType:
    if dtype.is_integer:
        return INT64 if dtype.is_signed else UINT64
    return compute_type(dtype)


_REDUCTIONS = {
    "ReduceSum": _Reduction(compute_type, lambda s: s.reduce("sum")),
    "ReduceProd": _Reduction(compute_type, lambda s: s.reduce("prod")),
    "ReduceMax": _Reduction(compute_type, lambda s: s.reduce("max")),
    "ReduceMin": _Reduction(compute_type, lambda s: s.reduce("min")),
    "ReduceMean": _Reduction(_mean_type, mean_of),
    "ReduceL1": _Reduction(compute_type, lambda s: s.reduce("sum", lambda x: call("abs", x))),
    "ReduceSumSquare": _Reduction(compute_type, lambda s: s.reduce("sum", _square)),
    "ReduceL2": _Reduction(real_type, lambda s: call("sqrt", s.reduce("sum", _square))),
    "ReduceLogSum": _Reduction(real_type, lambda s: call("log", s.reduce("sum"))),
    "ReduceLogSumExp": _Reduction(real_type, log_sum_exp),
}


@lowers(*_REDUCTIONS)
def reduction(ctx: Lowering) -> None:
    out, x = ctx.output(), ctx.input(0)
    if out is None:
        return
    refuse_opaque(x, out)
    rule = _REDUCTIONS[ctx.node.op_type]
    kind = rule.kind(x.dtype)
    reduced = ctx.param("reduced")
    if all(entry.is_const for entry in reduced):
        axes = [axis for axis, entry in enumerate(reduced) if entry.const]
        emit_static(ctx, out, x, axes, kind, rule.value)
    else:
        _emit_dynamic(ctx, out, x, kind, rule.value)


def emit_static(
    ctx: Lowering,
    out: Buffer,
    x: Buffer,
    axes: Sequence[int],
    kind: DType,
    value: Callable[[Slots], Expr],
) -> None:
    """Emits a reduction over known axes; ``out`` has them as ones or not at all."""
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    keepdims = len(out.shape) == len(x.shape)
    extents = tuple(x.shape[axis] for axis in axes)

    def body(*index: Expr) -> Expr:
        own = [index[axis] for axis in kept] if keepdims else list(index)
        outer = dict(zip(kept, own, strict=True))

        def element(*inner: Expr) -> Expr:
            parts = {**outer, **dict(zip(axes, inner, strict=True))}
            return x[tuple(parts[axis] for axis in range(len(x.shape)))].cast(kind)

        return value(Slots(extents, element, kind)).cast(out.dtype)

    ctx.pure(out, body)


def _emit_dynamic(
    ctx: Lowering, out: Buffer, x: Buffer, kind: DType, value: Callable[[Slots], Expr]
) -> None:
    """Axes known at run time: of each axis either the kept or the reduced extent is 1."""
    extents, kept = ctx.param("reduce_extent"), ctx.param("keep_extent")
    whole = out if out.shape == kept else ctx.temporary(out.dtype, kept)

    def body(*index: Expr) -> Expr:
        def element(*inner: Expr) -> Expr:
            return x[tuple(o + r for o, r in zip(index, inner, strict=True))].cast(kind)

        return value(Slots(extents, element, kind)).cast(out.dtype)

    ctx.pure(whole, body)
    if whole is not out:
        ctx.view(out, whole)


# --- positions of extremes ------------------------------------------------------------------------


def extreme_position(slots: Slots, size: Dim, combiner: str, last: bool) -> Expr:
    """The first (or last) index of the extreme along one axis; a NaN counts as the extreme."""
    best = slots.reduce(combiner)
    beyond = constant(-1, INT64) if last else dim_as(size, INT64)

    def position(index: Expr) -> Expr:
        element = slots.element(index)
        found = element.eq(best)
        if slots.kind.is_float:
            found = found | call("isnan", element)
        return call("select", found, index, beyond)

    return reduce_over("max" if last else "min", (size,), position)


@lowers("ArgMax", "ArgMin")
def arg_extreme(ctx: Lowering) -> None:
    out, x = ctx.output(), ctx.input(0)
    if out is None:
        return
    refuse_opaque(x)
    axis = int(ctx.node.attribute("axis", 0)) % len(x.shape)
    last = bool(ctx.node.attribute("select_last_index", 0))
    combiner = "max" if ctx.node.op_type == "ArgMax" else "min"
    size = x.shape[axis]
    emit_static(
        ctx,
        out,
        x,
        [axis],
        compute_type(x.dtype),
        lambda slots: extreme_position(slots, size, combiner, last),
    )
