"""Activation functions.

    Softplus(x)  ->  out[i] = max(x[i], 0) + log1p(exp(-|x[i]|))
Guarantees: no overflow where the result is finite; NaN propagates, but for
ThresholdedRelu and Shrink, which give 0 for what is on neither side of a threshold.
Not here: softmax (lower.softmax); activations inside recurrent operators.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.kernel.ir import Expr, call, select
from tilewright.lower.broadcast import elementwise
from tilewright.lower.context import Lowering
from tilewright.lower.precision import number, real_type, text_attribute
from tilewright.lower.registry import lowers


def softplus(x: Expr) -> Expr:
    """log(1 + exp(x)) without overflow."""
    return x.max(0.0) + call("log1p", call("exp", -call("abs", x)))


def gelu(x: Expr, approximate: bool) -> Expr:
    """x times the normal distribution function, or its tanh approximation."""
    return call("gelu_tanh" if approximate else "gelu", x)


@lowers("Relu")
def relu(ctx: Lowering) -> None:
    elementwise(ctx, lambda x: x.max(0))


@lowers("Sigmoid")
def sigmoid(ctx: Lowering) -> None:
    elementwise(ctx, lambda x: call("sigmoid", x))


@lowers("LeakyRelu")
def leaky_relu(ctx: Lowering) -> None:
    alpha = number(ctx, "alpha", 0.01)
    elementwise(ctx, lambda x: select(x.lt(0.0), x * alpha, x))


@lowers("PRelu")
def prelu(ctx: Lowering) -> None:
    elementwise(ctx, lambda x, slope: select(x.lt(0), x * slope, x))


@lowers("Elu")
def elu(ctx: Lowering) -> None:
    alpha = number(ctx, "alpha", 1.0)
    elementwise(ctx, lambda x: select(x.gt(0.0), x, call("expm1", x) * alpha))


@lowers("Selu")
def selu(ctx: Lowering) -> None:
    alpha = number(ctx, "alpha", 1.67326319217681884765625)
    gamma = number(ctx, "gamma", 1.05070102214813232421875)
    elementwise(ctx, lambda x: select(x.gt(0.0), x * gamma, call("expm1", x) * (alpha * gamma)))


@lowers("Celu")
def celu(ctx: Lowering) -> None:
    alpha = number(ctx, "alpha", 1.0)
    elementwise(ctx, lambda x: select(x.gt(0.0), x, call("expm1", x / alpha) * alpha))


@lowers("HardSigmoid")
def hard_sigmoid(ctx: Lowering) -> None:
    alpha, beta = number(ctx, "alpha", 0.2), number(ctx, "beta", 0.5)
    elementwise(ctx, lambda x: (x * alpha + beta).max(0.0).min(1.0))


@lowers("ThresholdedRelu")
def thresholded_relu(ctx: Lowering) -> None:
    alpha = number(ctx, "alpha", 1.0)
    elementwise(ctx, lambda x: select(x.gt(alpha), x, 0.0))


@lowers("Gelu")
def gelu_operator(ctx: Lowering) -> None:
    approximate = text_attribute(ctx, "approximate", "none") == "tanh"
    elementwise(ctx, lambda x: gelu(x, approximate))


@lowers("Swish")
def swish(ctx: Lowering) -> None:
    alpha = number(ctx, "alpha", 1.0)
    elementwise(ctx, lambda x: x * _gate(x, alpha))


@lowers("SwiGLU")
def swiglu(ctx: Lowering) -> None:
    alpha = number(ctx, "alpha", 1.0)
    elementwise(ctx, lambda gate, value: gate * _gate(gate, alpha) * value)


def _gate(x: Expr, alpha: float) -> Expr:
    return call("sigmoid", x if alpha == 1.0 else x * alpha)


@lowers("Shrink")
def shrink(ctx: Lowering) -> None:
    bias, limit = number(ctx, "bias", 0.0), number(ctx, "lambd", 0.5)

    def move(x: Expr) -> Expr:
        return select(x.lt(-limit), x + bias, select(x.gt(limit), x - bias, 0.0))

    elementwise(ctx, move, kind=real_type(ctx.input(0).dtype))


_PLAIN: dict[str, Callable[[Expr], Expr]] = {
    "Softplus": softplus,
    "Softsign": lambda x: x / (1.0 + call("abs", x)),
    "Mish": lambda x: x * call("tanh", softplus(x)),
    # (A product with a choice of 1 becomes a comparison and a choice of products.)
    "HardSwish": lambda x: x * (x * (1.0 / 6.0) + 0.5).min(1.0).max(0.0),
}


@lowers(*_PLAIN)
def plain(ctx: Lowering) -> None:
    """Activations without parameters."""
    elementwise(ctx, _PLAIN[ctx.node.op_type])
