"""Optimiser steps of ai.onnx.preview.training: Adagrad, Adam, Momentum.

Inputs (R, T, all X, all G, all states ...) -> (all new X, all new states ...).
Source: ONNX specification, ai.onnx.preview.training version 1. Not here: Gradient, a statement
about a whole graph rather than a function of its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.runtime.reference.dtypes import Array
from tilewright.runtime.reference.registry import Call, Outputs, operator

_DOMAIN = "ai.onnx.preview.training"


def _groups(call: Call, tensors: tuple[Array, ...], parts: int) -> list[tuple[Array, ...]]:
    """One (X, G, states ...) a tensor that is optimised."""
    if not tensors or len(tensors) % parts:
        raise call.error(f"{len(tensors)} tensors do not form groups of {parts}")
    count = len(tensors) // parts
    return [tensors[index::count] for index in range(count)]


def _flat(results: Sequence[tuple[Array, ...]]) -> Outputs:
    return tuple(value for kind in zip(*results, strict=True) for value in kind)


@operator("Adagrad", domain=_DOMAIN)
def adagrad(call: Call, rate: Array, count: Array, *tensors: Array) -> Outputs:
    step = rate / (1 + count.astype(rate.dtype) * call.number("decay_factor", 0.0))
    results = []
    for x, g, h in _groups(call, tensors, 3):
        gradient = call.number("norm_coefficient", 0.0) * x + g
        squares = h + gradient * gradient
        moved = x - step * gradient / (np.sqrt(squares) + call.number("epsilon", 1e-6))
        results.append((moved, squares))
    return _flat(results)


@operator("Adam", domain=_DOMAIN)
def adam(call: Call, rate: Array, count: Array, *tensors: Array) -> Outputs:
    alpha, beta = call.number("alpha", 0.9), call.number("beta", 0.999)
    updates = int(count.reshape(()))
    step = rate
    if updates > 0:
        step = rate * ((1 - beta**updates) ** 0.5 / (1 - alpha**updates))
    results = []
    for x, g, v, h in _groups(call, tensors, 4):
        gradient = call.number("norm_coefficient", 0.0) * x + g
        mean = alpha * v + (1 - alpha) * gradient
        square = beta * h + (1 - beta) * gradient * gradient
        moved = x - step * mean / (np.sqrt(square) + call.number("epsilon", 1e-6))
        results.append(((1 - call.number("norm_coefficient_post", 0.0)) * moved, mean, square))
    return _flat(results)


@operator("Momentum", domain=_DOMAIN)
def momentum(call: Call, rate: Array, count: Array, *tensors: Array) -> Outputs:
    alpha = call.number("alpha")
    beta = call.number("beta") if int(count.reshape(())) > 0 else 1.0
    nesterov = call.choice("mode", "", ("standard", "nesterov")) == "nesterov"
    results = []
    for x, g, v in _groups(call, tensors, 3):
        gradient = call.number("norm_coefficient") * x + g
        velocity = alpha * v + beta * gradient
        moved = x - rate * (gradient + alpha * velocity if nesterov else velocity)
        results.append((moved, velocity))
    return _flat(results)
