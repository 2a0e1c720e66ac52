"""Random tensors and dropout.

Guarantees: the same `seed` attribute gives the same values; without one every call differs. ONNX
fixes the distributions, not the values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.runtime.reference.dtypes import Array, accumulator, cast, dtype_of
from tilewright.runtime.reference.normalization import softmax
from tilewright.runtime.reference.registry import Call, Outputs, operator


def _generator(call: Call) -> np.random.Generator:
    seed = call.get("seed")
    return np.random.default_rng(None if seed is None else int(np.float32(seed).view(np.uint32)))


def _dtype(call: Call, default: np.dtype[Any]) -> np.dtype[Any]:
    code = call.get("dtype")
    return default if code is None else dtype_of(int(code))


def _shape(call: Call) -> tuple[int, ...]:
    shape = call.integers("shape")
    if shape is None:
        raise call.error("attribute 'shape' is required")
    return call.room(shape, np.dtype(np.float64))


def _normal(call: Call, shape: tuple[int, ...]) -> Array:
    return _generator(call).normal(call.number("mean", 0.0), call.number("scale", 1.0), shape)


def _uniform(call: Call, shape: tuple[int, ...]) -> Array:
    return _generator(call).uniform(call.number("low", 0.0), call.number("high", 1.0), shape)


_FLOAT = np.dtype(np.float32)


@operator("RandomNormal", own_precision=True)
def random_normal(call: Call) -> Outputs:
    return (cast(_normal(call, _shape(call)), _dtype(call, _FLOAT)),)


@operator("RandomUniform", own_precision=True)
def random_uniform(call: Call) -> Outputs:
    return (cast(_uniform(call, _shape(call)), _dtype(call, _FLOAT)),)


@operator("RandomNormalLike", own_precision=True)
def random_normal_like(call: Call, x: Array) -> Outputs:
    return (cast(_normal(call, x.shape), _dtype(call, x.dtype)),)


@operator("RandomUniformLike", own_precision=True)
def random_uniform_like(call: Call, x: Array) -> Outputs:
    return (cast(_uniform(call, x.shape), _dtype(call, x.dtype)),)


@operator("Bernoulli", since=15, own_precision=True)
def bernoulli(call: Call, x: Array) -> Outputs:
    drawn = _generator(call).uniform(size=x.shape) < x.astype(np.float64)
    return (cast(drawn, _dtype(call, x.dtype)),)


@operator("Multinomial", since=7, own_precision=True)
def multinomial(call: Call, x: Array) -> Outputs:
    if x.ndim != 2:
        raise call.error(f"input {x.shape} is not [batch, classes]")
    edges = np.cumsum(softmax(x.astype(np.float64)), axis=1)
    drawn = _generator(call).uniform(size=(x.shape[0], call.integer("sample_size", 1)))
    index = (drawn[:, :, None] >= edges[:, None, :-1]).sum(axis=2)
    return (cast(index, _dtype(call, np.dtype(np.int32))),)


@operator("Dropout", own_precision=True)
def dropout_inference(call: Call, x: Array) -> Outputs:
    """Before opset 12 the operator is the identity; its mask has the data's type until opset 10."""
    return x, np.ones(x.shape, bool if call.opset >= 10 else x.dtype)


@operator("Dropout", since=12, own_precision=True)
def dropout(
    call: Call, x: Array, ratio: Array | None = None, training: Array | None = None
) -> Outputs:
    rate = 0.5 if ratio is None else float(ratio.astype(np.float64).reshape(()))
    if not 0 <= rate < 1:
        raise call.error(f"ratio {rate} is outside [0, 1)")
    if training is None or not bool(training.reshape(())) or rate == 0:
        return x, np.ones(x.shape, bool)
    seed = call.get("seed")
    state = np.random.RandomState(None if seed is None else int(seed) & 0xFFFFFFFF)
    keep = state.uniform(0, 1, x.shape) >= rate
    scaled = x.astype(accumulator(x.dtype)) / (1 - rate)
    return np.where(keep, scaled, 0).astype(x.dtype), np.asarray(keep)
