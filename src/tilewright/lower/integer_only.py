"""Nonlinear functions in int32 alone: operators of the domain ``tilewright``.

    IntegerSoftmax(x)  ->  out[i, j] = f(x[i, j], max(r: ..), sum(r: ..))      all of it in int32
Guarantees: the same integers as the reference, of which the functions are the very same
(runtime.reference.fixed_point); no float anywhere in a kernel.
Not here: which parts of a graph become these operators (graph.passes.make_integer_only).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.core.dtypes import INT32
from tilewright.kernel.ir import Buffer, Expr, call, constant
from tilewright.lower.broadcast import broadcast_load
from tilewright.lower.context import Lowering
from tilewright.lower.normalize import axes_slots, trailing_axes
from tilewright.lower.reduce import Slots
from tilewright.lower.registry import lowers
from tilewright.runtime.reference import fixed_point
from tilewright.runtime.reference.fixed_point import Reduce, Scales
from tilewright.runtime.reference.integer_only import DOMAIN, ELEMENTWISE, affine_of, scales_of


class ExprIntegers:
    """``Integers`` of expressions of int32."""

    def right(self, x: Any, count: Any) -> Any:
        return call("shr", x, count)

    def left(self, x: Any, count: Any) -> Any:
        return call("shl", x, count)

    def low(self, x: Any, bits: int) -> Any:
        return x & constant((1 << bits) - 1, INT32)

    def less(self, x: Any, y: Any) -> Any:
        return x.lt(y)

    def choose(self, condition: Any, x: Any, y: Any) -> Any:
        return call("blend", condition, x, y)

    def lesser(self, x: Any, y: Any) -> Any:
        return x.min(y)

    def greater(self, x: Any, y: Any) -> Any:
        return x.max(y)

    def over(self, x: Any, divisor: int) -> Any:
        return x / divisor


def _emit(ctx: Lowering, value: Callable[[Buffer, tuple[Expr, ...], Expr, Scales], Expr]) -> None:
    """Emits ``out[i] = value(out, i, v[i], scales)`` with ``v`` the centred input."""
    out, x = ctx.output(), ctx.input(0)
    if out is None:
        return
    scales = scales_of(ctx.node.attributes, x.dtype.numpy)

    def body(*index: Expr) -> Expr:
        return value(out, index, _centred(ctx, x[index]), scales).cast(out.dtype)

    ctx.pure(out, body)


def _centred(ctx: Lowering, element: Expr) -> Expr:
    zero = int(ctx.node.attribute("x_zero", 0))
    return element.cast(INT32) - zero if zero else element.cast(INT32)


def _reduce(ctx: Lowering, index: tuple[Expr, ...], axes: list[int]) -> Reduce:
    x = ctx.input(0)
    slots: Slots = axes_slots(x, index, axes, INT32)
    return lambda combiner, change: slots.reduce(
        combiner, lambda element: change(_centred(ctx, element))
    )


def _define(op_type: str, function: Callable[[fixed_point.Integers, Any, Scales], Any]) -> None:
    @lowers(op_type, domain=DOMAIN)
    def lower(ctx: Lowering) -> None:
        _emit(ctx, lambda out, index, v, scales: function(ExprIntegers(), v, scales))  # noqa: ARG005


for _op_type, _function in ELEMENTWISE.items():
    _define(_op_type, _function)


@lowers("IntegerSoftmax", domain=DOMAIN)
def integer_softmax(ctx: Lowering) -> None:
    x = ctx.input(0)
    axis = int(ctx.node.attribute("axis", -1)) % len(x.shape)
    size = x.shape[axis].const

    def value(_out: Buffer, index: tuple[Expr, ...], v: Expr, scales: Scales) -> Any:
        row = _reduce(ctx, index, [axis])
        return fixed_point.softmax(ExprIntegers(), v, row, size, scales)

    _emit(ctx, value)


@lowers("IntegerLayerNormalization", domain=DOMAIN)
def integer_layer_normalization(ctx: Lowering) -> None:
    axes = trailing_axes(ctx, ctx.input(0))
    attributes = ctx.node.attributes
    weights = (ctx.input(1), ctx.input(2))

    def value(out: Buffer, index: tuple[Expr, ...], v: Expr, scales: Scales) -> Any:
        gamma, beta = (broadcast_load(part, out.shape, index) for part in weights)
        return fixed_point.layer_norm(
            ExprIntegers(),
            v,
            _reduce(ctx, index, axes),
            int(attributes["size"]),
            scales,
            affine_of(attributes),
            (gamma, beta),
            float(attributes["epsilon"]),
        )

    _emit(ctx, value)
