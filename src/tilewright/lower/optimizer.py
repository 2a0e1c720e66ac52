"""Training steps of ai.onnx.preview.training: Adagrad, Adam, Momentum.

Guarantees: each updated tensor is one pure elementwise kernel over the old ones; step count and
learning rate are loaded, so they may change between runs.
Not here: Gradient (host_only).
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.kernel.ir import Buffer, Expr, call, constant, select
from tilewright.lower.context import Lowering
from tilewright.lower.contraction import scalar, widen
from tilewright.lower.registry import lowers

_DOMAIN = "ai.onnx.preview.training"
Update = Callable[[list[Expr]], tuple[Expr, ...]]


def _emit(ctx: Lowering, states: int, update: Update) -> None:
    """Emits the outputs of all tensors.

    Args:
        states: inputs a tensor has (the tensor, its gradient, its accumulators).
        update: new values (the tensor first, then its accumulators), given the old ones.
    """
    count = (len(ctx.inputs) - 2) // states
    for tensor in range(count):
        buffers = [ctx.input(2 + state * count + tensor) for state in range(states)]
        for position in range(states - 1):
            out = ctx.output(position * count + tensor)
            if out is not None:
                _emit_one(ctx, out, buffers, position, update)


def _emit_one(
    ctx: Lowering, out: Buffer, buffers: list[Buffer], position: int, update: Update
) -> None:
    def body(*index: Expr) -> Expr:
        return update([widen(buffer[index]) for buffer in buffers])[position].cast(out.dtype)

    ctx.pure(out, body)


def _number(ctx: Lowering, name: str, default: float) -> float:
    return float(ctx.node.attribute(name, default))


@lowers("Adagrad", domain=_DOMAIN)
def adagrad(ctx: Lowering) -> None:
    """Inputs: R, T, then all X, all gradients, all accumulated squares."""
    rate, step = scalar(ctx.input(0)), scalar(ctx.input(1))
    decay, epsilon = _number(ctx, "decay_factor", 0.0), _number(ctx, "epsilon", 0.0)
    norm = _number(ctx, "norm_coefficient", 0.0)

    def update(old: list[Expr]) -> tuple[Expr, ...]:
        x, gradient, squares = old
        adjusted = rate.cast(x.dtype) / (step.cast(x.dtype) * decay + 1.0)
        regular = x * norm + gradient
        new_squares = squares + regular * regular
        return x - adjusted * regular / (call("sqrt", new_squares) + epsilon), new_squares

    _emit(ctx, 3, update)


@lowers("Adam", domain=_DOMAIN)
def adam(ctx: Lowering) -> None:
    """Inputs: R, T, then all X, all gradients, all first and all second moments."""
    rate, step = scalar(ctx.input(0)), scalar(ctx.input(1))
    alpha, beta = _number(ctx, "alpha", 0.9), _number(ctx, "beta", 0.999)
    epsilon = _number(ctx, "epsilon", 0.0)
    norm = _number(ctx, "norm_coefficient", 0.0)
    norm_post = _number(ctx, "norm_coefficient_post", 0.0)

    def update(old: list[Expr]) -> tuple[Expr, ...]:
        x, gradient, first, second = old
        regular = x * norm + gradient
        new_first = first * alpha + regular * (1 - alpha)
        new_second = second * beta + regular * regular * (1 - beta)
        plain, count = rate.cast(x.dtype), step.cast(x.dtype)
        bias = call("sqrt", 1.0 - _power(beta, count)) / (1.0 - _power(alpha, count))
        adjusted = select(step.gt(0), plain * bias, plain)
        new_x = x - adjusted * (new_first / (call("sqrt", new_second) + epsilon))
        return new_x * (1 - norm_post), new_first, new_second

    _emit(ctx, 4, update)


def _power(base: float, exponent: Expr) -> Expr:
    return call("pow", constant(base, exponent.dtype), exponent)


@lowers("Momentum", domain=_DOMAIN)
def momentum(ctx: Lowering) -> None:
    """Inputs: R, T, then all X, all gradients, all velocities; modes standard and nesterov."""
    rate, step = scalar(ctx.input(0)), scalar(ctx.input(1))
    alpha, beta = _number(ctx, "alpha", 0.0), _number(ctx, "beta", 0.0)
    norm = _number(ctx, "norm_coefficient", 0.0)
    nesterov = ctx.node.attribute("mode", "standard") == "nesterov"

    def update(old: list[Expr]) -> tuple[Expr, ...]:
        x, gradient, velocity = old
        regular = x * norm + gradient
        first_step = velocity * alpha + regular
        new_velocity = select(step.gt(0), velocity * alpha + regular * beta, first_step)
        direction = regular + new_velocity * alpha if nesterov else new_velocity
        return x - rate.cast(x.dtype) * direction, new_velocity

    _emit(ctx, 3, update)
