"""Unary element-wise functions and activations.

Guarantees: the input's dtype and shape; NaN propagates (but for
ThresholdedRelu and Shrink, which give 0 for what is on neither side of a threshold); erf to the
last bits of float64.
Source of erf: W. J. Cody, "Rational Chebyshev approximations for the error function" (1969).
Not here: binary operators (elementwise), softmax (normalization)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.runtime.reference.dtypes import Array
from tilewright.runtime.reference.registry import Call, Outputs, operator

# Highest power first, as numpy.polyval reads them.
_ERF_NEAR = (
    [
        1.85777706184603153e-1,
        3.16112374387056560e0,
        1.13864154151050156e2,
        3.77485237685302021e2,
        3.20937758913846947e3,
    ],
    [
        1.0,
        2.36012909523441209e1,
        2.44024637934444173e2,
        1.28261652607737228e3,
        2.84423683343917062e3,
    ],
)
_ERFC_MIDDLE = (
    [
        2.15311535474403846e-8,
        5.64188496988670089e-1,
        8.88314979438837594e0,
        6.61191906371416295e1,
        2.98635138197400131e2,
        8.81952221241769090e2,
        1.71204761263407058e3,
        2.05107837782607147e3,
        1.23033935479799725e3,
    ],
    [
        1.0,
        1.57449261107098347e1,
        1.17693950891312499e2,
        5.37181101862009858e2,
        1.62138957456669019e3,
        3.29079923573345963e3,
        4.36261909014324716e3,
        3.43936767414372164e3,
        1.23033935480374942e3,
    ],
)


def erf(x: Array) -> Array:
    """The error function of a float array, computed in float64 and returned in its dtype."""
    values = np.asarray(x, np.float64)
    size = np.abs(values)
    square = np.minimum(size, 0.5) ** 2
    near = values * np.polyval(_ERF_NEAR[0], square) / np.polyval(_ERF_NEAR[1], square)
    bounded = np.clip(size, 0.46875, 6.0)  # erf(6) is 1 in float64
    tail = np.exp(-bounded * bounded)
    tail *= np.polyval(_ERFC_MIDDLE[0], bounded) / np.polyval(_ERFC_MIDDLE[1], bounded)
    far = np.copysign(1.0 - np.where(size >= 6.0, 0.0, tail), values)
    return np.asarray(
        np.where(size <= 0.46875, near, np.where(np.isnan(values), values, far))
    ).astype(x.dtype)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow."""
    decay = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + decay), decay / (1 + decay))


def softplus(x: Array) -> Array:
    """log(1 + exp(x)) without overflow."""
    return np.asarray(np.logaddexp(x, np.zeros((), x.dtype)))


def _register(name: str, function: Callable[[Any], Any]) -> None:
    def run(_call: Call, x: Array) -> Outputs:
        return (function(x),)

    operator(name)(run)


_UNARY: dict[str, Callable[[Any], Any]] = {
    "Abs": np.abs,
    "Acos": np.arccos,
    "Acosh": np.arccosh,
    "Asin": np.arcsin,
    "Asinh": np.arcsinh,
    "Atan": np.arctan,
    "Atanh": np.arctanh,
    "Ceil": np.ceil,
    "Cos": np.cos,
    "Cosh": np.cosh,
    "Erf": erf,
    "Exp": np.exp,
    "Floor": np.floor,
    "IsNaN": np.isnan,
    "Log": np.log,
    "Mish": lambda x: x * np.tanh(softplus(x)),
    "Neg": np.negative,
    "Reciprocal": lambda x: 1 / x,
    "Relu": lambda x: np.maximum(x, x.dtype.type(0)),
    "Round": np.rint,
    "Sigmoid": sigmoid,
    "Sign": np.sign,
    "Sin": np.sin,
    "Sinh": np.sinh,
    "Softplus": softplus,
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Sqrt": np.sqrt,
    "Tan": np.tan,
    "Tanh": np.tanh,
}
for _name, _function in _UNARY.items():
    _register(_name, _function)


@operator("IsInf")
def is_inf(call: Call, x: Array) -> Outputs:
    infinite = np.isinf(x)
    negative, positive = call.integer("detect_negative", 1), call.integer("detect_positive", 1)
    return (infinite & (((x < 0) & bool(negative)) | ((x > 0) & bool(positive))),)


@operator("LeakyRelu")
def leaky_relu(call: Call, x: Array) -> Outputs:
    return (np.where(x < 0, x * call.number("alpha", 0.01), x),)


@operator("Elu")
def elu(call: Call, x: Array) -> Outputs:
    return (np.where(x < 0, call.number("alpha", 1.0) * np.expm1(x), x),)


@operator("Selu")
def selu(call: Call, x: Array) -> Outputs:
    alpha = call.number("alpha", 1.67326319217681884765625)
    gamma = call.number("gamma", 1.05070102214813232421875)
    return (np.where(x <= 0, gamma * (alpha * np.expm1(x)), gamma * x),)


@operator("Celu")
def celu(call: Call, x: Array) -> Outputs:
    alpha = call.number("alpha", 1.0)
    return (np.maximum(x, 0) + np.minimum(alpha * np.expm1(x / alpha), 0),)


@operator("HardSigmoid")
def hard_sigmoid(call: Call, x: Array) -> Outputs:
    alpha, beta = call.number("alpha", 0.2), call.number("beta", 0.5)
    return (np.clip(alpha * x + beta, 0, 1),)


@operator("HardSwish")
def hard_swish(_call: Call, x: Array) -> Outputs:
    return (x * np.clip(x / 6 + 0.5, 0, 1),)


@operator("ThresholdedRelu")
def thresholded_relu(call: Call, x: Array) -> Outputs:
    above = x > call.number("alpha", 1.0)
    return (np.where(above, x, x.dtype.type(0)),)


@operator("Shrink")
def shrink(call: Call, x: Array) -> Outputs:
    bias, lambd = call.number("bias", 0.0), call.number("lambd", 0.5)
    moved = np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0))
    return (moved.astype(x.dtype),)


@operator("Gelu")
def gelu(call: Call, x: Array) -> Outputs:
    if call.choice("approximate", "none", ("none", "tanh")) == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        return (0.5 * x * (1 + np.tanh(inner)),)
    return (0.5 * x * (1 + erf(x / math.sqrt(2))),)


@operator("Swish")
def swish(call: Call, x: Array) -> Outputs:
    return (x * sigmoid(call.number("alpha", 1.0) * x),)


@operator("SwiGLU")
def swiglu(call: Call, gate: Array, value: Array) -> Outputs:
    if gate.shape != value.shape:
        raise call.error(f"A {gate.shape} and B {value.shape} must have the same shape")
    return (gate * sigmoid(call.number("alpha", 1.0) * gate) * value,)


def activation(name: str, alpha: float | None, beta: float | None) -> Callable[[Array], Array]:
    """An activation of the recurrent operators by (case-insensitive) name."""
    first = {"leakyrelu": 0.01, "thresholdedrelu": 1.0, "hardsigmoid": 0.2, "elu": 1.0}
    a = first.get(name.lower(), 1.0) if alpha is None else alpha
    second = {"hardsigmoid": 0.5, "scaledtanh": 1.0}
    b = second.get(name.lower(), 0.0) if beta is None else beta
    table: dict[str, Callable[[Array], Array]] = {
        "relu": lambda x: np.maximum(x, 0),
        "tanh": np.tanh,
        "sigmoid": sigmoid,
        "affine": lambda x: a * x + b,
        "leakyrelu": lambda x: np.where(x >= 0, x, a * x),
        "thresholdedrelu": lambda x: np.where(x >= a, x, x.dtype.type(0)),
        "scaledtanh": lambda x: a * np.tanh(b * x),
        "hardsigmoid": lambda x: np.clip(a * x + b, 0, 1),
        "elu": lambda x: np.where(x >= 0, x, a * np.expm1(x)),
        "softsign": lambda x: x / (1 + np.abs(x)),
        "softplus": softplus,
    }
    if name.lower() not in table:
        raise ValueError(f"unknown activation {name!r}")
    return table[name.lower()]
