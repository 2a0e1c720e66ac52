"""Activation functions of recurrent cells, by name, with their alpha and beta.

Input -> Output: attributes ``activations``, ``activation_alpha``, ``activation_beta`` ->
functions.
Guarantees: as many alphas (betas) as functions belong to them by position, fewer are consumed in
order by those functions that take one; missing ones have the operators' defaults.
Not here: the operators of the same names (activation).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.graph.view import NodeView
from tilewright.kernel.ir import Expr, call, select
from tilewright.lower.context import Unlowerable

Function = Callable[[Expr, float, float], Expr]

_FUNCTIONS: Mapping[str, Function] = {
    "relu": lambda x, _a, _b: x.max(0),
    "tanh": lambda x, _a, _b: call("tanh", x),
    "sigmoid": lambda x, _a, _b: call("sigmoid", x),
    "affine": lambda x, a, b: x * a + b,
    "leakyrelu": lambda x, a, _b: select(x.ge(0), x, x * a),
    "thresholdedrelu": lambda x, a, _b: select(x.ge(a), x, 0),
    "scaledtanh": lambda x, a, b: call("tanh", x * b) * a,
    "hardsigmoid": lambda x, a, b: (x * a + b).max(0).min(1),
    "elu": lambda x, a, _b: select(x.ge(0), x, call("expm1", x) * a),
    "softsign": lambda x, _a, _b: x / (call("abs", x) + 1),
    "softplus": lambda x, _a, _b: call("log1p", call("exp", -call("abs", x))) + x.max(0),
}
_ALPHA = {
    "affine": 1.0,
    "leakyrelu": 0.01,
    "thresholdedrelu": 1.0,
    "scaledtanh": 1.0,
    "hardsigmoid": 0.2,
    "elu": 1.0,
}
_BETA = {"affine": 0.0, "scaledtanh": 1.0, "hardsigmoid": 0.5}


@dataclass(frozen=True, slots=True)
class Activation:
    """A function with its parameters."""

    name: str
    alpha: float
    beta: float

    def apply(self, value: Expr) -> Expr:
        """The function of a float32 or float64 value."""
        return _FUNCTIONS[self.name](value, self.alpha, self.beta)


def activations_of(
    node: NodeView, defaults: tuple[str, ...], directions: int
) -> tuple[tuple[Activation, ...], ...]:
    """The activations of each direction.

    Raises:
        Unlowerable: an unknown function, or a wrong number of them.
    """
    names = [str(name).lower() for name in node.attribute("activations", ())]
    names = names or [name.lower() for name in defaults]
    if len(names) == len(defaults):
        names = names * directions
    if len(names) != len(defaults) * directions:
        raise Unlowerable(f"{len(names)} activations for {directions} directions")
    unknown = sorted(set(names) - set(_FUNCTIONS))
    if unknown:
        raise Unlowerable(f"unknown activations {', '.join(unknown)}")
    alphas = _parameters(node.attribute("activation_alpha", ()), names, _ALPHA)
    betas = _parameters(node.attribute("activation_beta", ()), names, _BETA)
    found = [Activation(*parts) for parts in zip(names, alphas, betas, strict=True)]
    count = len(defaults)
    return tuple(tuple(found[k * count : (k + 1) * count]) for k in range(directions))


def _parameters(
    values: Sequence[float], names: Sequence[str], defaults: Mapping[str, float]
) -> list[float]:
    """One value for each function: by position, or in order to those that take one."""
    given = [float(value) for value in values]
    if len(given) == len(names):
        return given
    return [
        given.pop(0) if name in defaults and given else defaults.get(name, 0.0) for name in names
    ]
