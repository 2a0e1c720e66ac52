"""Batch, layer, group, instance, RMS, Lp and local response normalisation; softmax.

Guarantees: statistics of half-precision inputs are taken in float32 or better; softmax subtracts
the maximum; before opset 13 softmax coerces its input to two dimensions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.runtime.reference.dtypes import Array, accumulator, dtype_of, mean_over, summed_in
from tilewright.runtime.reference.registry import Call, Outputs, operator


def _channels(parameter: Array, rank: int) -> Array:
    return parameter.reshape((-1,) + (1,) * max(rank - 2, 0))


def _moments(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    precise = summed_in(x.dtype)
    center = mean_over(x, axes, precise).astype(x.dtype)
    return center, mean_over(np.square(x - center), axes, precise).astype(x.dtype)


def _batch(
    call: Call, x: Array, scale: Array, bias: Array, mean: Array, var: Array, training: bool
) -> Outputs:
    compute = np.result_type(*(accumulator(v.dtype) for v in (x, scale, mean)))
    data = x.astype(compute)
    statistics = mean.dtype
    scale, bias, mean, var = (v.astype(compute) for v in (scale, bias, mean, var))
    extra: list[Array] = []
    if training:
        axes = (0, *range(2, x.ndim))
        now_mean, now_var = (v.reshape(-1) for v in _moments(data, axes))
        momentum = call.number("momentum", 0.9)
        running = [
            old * momentum + now * (1 - momentum) for old, now in ((mean, now_mean), (var, now_var))
        ]
        extra = [v.astype(statistics) for v in running]
        mean, var = now_mean, now_var
    if not call.integer("spatial", 1):
        shape: Any = x.shape[1:]
        scale, bias, mean, var = (v.reshape(shape) for v in (scale, bias, mean, var))
    else:
        scale, bias, mean, var = (_channels(v, x.ndim) for v in (scale, bias, mean, var))
    factor = scale / np.sqrt(var + call.number("epsilon", 1e-5))
    result = ((data - mean) * factor + bias).astype(x.dtype)
    return (result, *extra)


@operator("BatchNormalization", own_precision=True)
def batch_normalization_inference(
    call: Call, x: Array, scale: Array, bias: Array, mean: Array, var: Array
) -> Outputs:
    """Before opset 14; more than one output asks for training, whose statistics update."""
    outputs = _batch(call, x, scale, bias, mean, var, call.num_outputs > 1)
    return outputs if len(outputs) == 1 else (*outputs, *outputs[1:])


@operator("BatchNormalization", since=14, own_precision=True)
def batch_normalization(
    call: Call, x: Array, scale: Array, bias: Array, mean: Array, var: Array
) -> Outputs:
    return _batch(call, x, scale, bias, mean, var, bool(call.integer("training_mode", 0)))


@operator("InstanceNormalization")
def instance_normalization(call: Call, x: Array, scale: Array, bias: Array) -> Outputs:
    mean, var = _moments(x, tuple(range(2, x.ndim)))
    normal = (x - mean) / np.sqrt(var + call.number("epsilon", 1e-5))
    return (normal * _channels(scale, x.ndim) + _channels(bias, x.ndim),)


def _group(call: Call, x: Array) -> Array:
    groups = call.integer("num_groups")
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise call.error(f"{x.shape[1]} channels do not form {groups} groups")
    grouped = x.reshape(x.shape[0], groups, -1)
    mean, var = _moments(grouped, (2,))
    return np.asarray((grouped - mean) / np.sqrt(var + call.number("epsilon", 1e-5)))


@operator("GroupNormalization", since=18)
def group_normalization_per_group(call: Call, x: Array, scale: Array, bias: Array) -> Outputs:
    normal = _group(call, x)
    return ((normal * scale[:, None] + bias[:, None]).reshape(x.shape),)


@operator("GroupNormalization", since=21)
def group_normalization(call: Call, x: Array, scale: Array, bias: Array) -> Outputs:
    normal = _group(call, x).reshape(x.shape)
    return (normal * _channels(scale, x.ndim) + _channels(bias, x.ndim),)


def _trailing(call: Call, rank: int) -> tuple[int, ...]:
    axis = call.integer("axis", -1)
    if not -rank <= axis < rank:
        raise call.error(f"axis {axis} is outside rank {rank}")
    return tuple(range(axis % rank, rank))


@operator("LayerNormalization", own_precision=True)
def layer_normalization(call: Call, x: Array, scale: Array, bias: Array | None = None) -> Outputs:
    stash = call.float_dtype(dtype_of(call.integer("stash_type", 1)))
    compute = np.result_type(accumulator(x.dtype), accumulator(stash))
    data = x.astype(compute)
    mean, var = _moments(data, _trailing(call, x.ndim))
    inverse = 1 / np.sqrt(var + call.number("epsilon", 1e-5))
    result = (data - mean) * inverse * scale.astype(compute)
    if bias is not None:
        result = result + bias.astype(compute)
    return result.astype(x.dtype), mean.astype(stash), inverse.astype(stash)


@operator("RMSNormalization", own_precision=True)
def rms_normalization(call: Call, x: Array, scale: Array) -> Outputs:
    compute = np.result_type(accumulator(x.dtype), accumulator(scale.dtype))
    data = x.astype(compute)
    square = mean_over(np.square(data), _trailing(call, x.ndim))
    normal = data / np.sqrt(square + call.number("epsilon", 1e-5))
    return ((normal * scale.astype(compute)).astype(scale.dtype),)


@operator("MeanVarianceNormalization")
def mean_variance_normalization(call: Call, x: Array) -> Outputs:
    axes = call.integers("axes") or (0, 2, 3)
    mean, var = _moments(x, axes)
    return ((x - mean) / (np.sqrt(var) + 1e-9),)


@operator("LpNormalization")
def lp_normalization(call: Call, x: Array) -> Outputs:
    p, axis = call.integer("p", 2), call.integer("axis", -1)
    if p not in (1, 2):
        raise call.error(f"p={p} is not 1 or 2")
    power = np.abs(x) if p == 1 else np.square(x)
    norm = np.sum(power, axis=axis, keepdims=True)
    norm = norm if p == 1 else np.sqrt(norm)
    return (np.where(norm == 0, x.dtype.type(0), x / norm),)


@operator("LRN")
def local_response_normalization(call: Call, x: Array) -> Outputs:
    size = call.integer("size")
    before, after = (size - 1) // 2, size // 2
    square = np.square(x)
    padded = np.pad(square, [(0, 0), (before, after)] + [(0, 0)] * (x.ndim - 2))
    total = np.zeros_like(square)
    for shift in range(size):
        total += padded[:, shift : shift + x.shape[1]]
    alpha, beta, bias = (
        call.number("alpha", 1e-4),
        call.number("beta", 0.75),
        call.number("bias", 1),
    )
    return (x / (bias + alpha / size * total) ** beta,)


def softmax(x: Array, axis: int = -1) -> Array:
    """Softmax of a float array along one axis; a row of -inf gives NaN."""
    if x.size == 0:
        return x
    power = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return np.asarray(power / np.sum(power, axis=axis, keepdims=True))


def log_softmax(x: Array, axis: int = -1) -> Array:
    """Logarithm of softmax, computed without taking the logarithm of small numbers."""
    if x.size == 0:
        return x
    shifted = x - np.max(x, axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True)))


def _hardmax(x: Array, axis: int = -1) -> Array:
    result = np.zeros_like(x)
    if x.size:
        top = np.expand_dims(np.argmax(x, axis=axis), axis)
        np.put_along_axis(result, top, x.dtype.type(1), axis=axis)
    return result


def _register(name: str, function: Any) -> None:
    def coerced(call: Call, x: Array) -> Outputs:
        axis = call.integer("axis", 1)
        axis = axis + x.ndim if axis < 0 else axis
        rows = int(np.prod(x.shape[:axis], dtype=np.int64))
        flat = x.reshape(rows, -1) if x.size else x
        return (function(flat, -1).reshape(x.shape),)

    def along(call: Call, x: Array) -> Outputs:
        return (function(x, call.integer("axis", -1)),)

    operator(name)(coerced)
    operator(name, since=13)(along)


_register("Softmax", softmax)
_register("LogSoftmax", log_softmax)
_register("Hardmax", _hardmax)
