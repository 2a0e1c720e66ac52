"""Constants, ranges, casts and other tensors made from attributes or types.

Guarantees: element types as the attributes say; in wide mode float32 and narrower types still
round where Cast says so, and are then returned as float64.
Not here: random tensors (random), quantisation (quantization)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.runtime.reference.dtypes import HALF, Array, accumulator, cast, dtype_of
from tilewright.runtime.reference.registry import Call, Outputs, as_text, operator


@operator("Constant", own_precision=True)
def constant(call: Call) -> Outputs:
    given = {name: value for name, value in call.attributes.items() if value is not None}
    if len(given) != 1:
        raise call.error(f"exactly one value attribute is needed, got {sorted(given)}")
    name, value = next(iter(given.items()))
    single = np.float32
    builders: dict[str, Any] = {
        "value": np.asarray,
        "sparse_value": np.asarray,
        "value_float": lambda v: np.array(v, single),
        "value_floats": lambda v: np.array(list(v), single),
        "value_int": lambda v: np.array(v, np.int64),
        "value_ints": lambda v: np.array(list(v), np.int64),
        "value_string": lambda v: np.array(as_text(v), object),
        "value_strings": lambda v: np.array([as_text(item) for item in v], object),
    }
    if name not in builders:
        raise call.error(f"unknown attribute {name!r}")
    return (builders[name](value),)


@operator("ConstantOfShape", since=9, own_precision=True)
def constant_of_shape(call: Call, shape: Array) -> Outputs:
    value = np.asarray(call.get("value", np.zeros(1, np.float32)))
    sizes = call.room([int(v) for v in shape.ravel()], value.dtype)
    return (np.full(sizes, value.reshape(-1)[0], value.dtype),)


@operator("EyeLike", since=9, own_precision=True)
def eye_like(call: Call, x: Array) -> Outputs:
    code = call.get("dtype")
    if x.ndim != 2:
        raise call.error(f"input {x.shape} is not a matrix")
    dtype = x.dtype if code is None else dtype_of(int(code))
    return (cast(np.eye(x.shape[0], x.shape[1], call.integer("k", 0)), dtype),)


def _scalar(call: Call, value: Array) -> Any:
    if value.size != 1:
        raise call.error(f"{value.shape} is not a scalar")
    return value.reshape(-1)[0].item()


@operator("Range", since=11)
def range_of(call: Call, start: Array, limit: Array, delta: Array) -> Outputs:
    first, last, step = (_scalar(call, value) for value in (start, limit, delta))
    if step == 0:
        raise call.error("delta is 0")
    if start.dtype.kind in "iu":
        count = max(0, -((first - last) // step))
    else:
        count = max(0, math.ceil((last - first) / step))
    call.room([count], np.dtype(np.float64))
    return ((first + np.arange(count) * step).astype(start.dtype),)


@operator("Cast", own_precision=True)
def cast_to(call: Call, x: Array) -> Outputs:
    target = dtype_of(call.integer("to"))
    return (_cast(call, x, target),)


@operator("CastLike", since=15, own_precision=True)
def cast_like(call: Call, x: Array, like: Array) -> Outputs:
    return (_cast(call, x, like.dtype),)


def _cast(call: Call, x: Array, target: np.dtype[Any]) -> Array:
    if call.wide and target == np.float32:
        target = np.dtype(np.float64)  # float32 stands for "as precise as possible" here
    saturate = bool(call.integer("saturate", 1))
    return cast(x, target, saturate=saturate, round_mode=call.text("round_mode", "up"))


@operator("BitCast", since=26, own_precision=True)
def bit_cast(call: Call, x: Array) -> Outputs:
    target = dtype_of(call.integer("to"))
    if np.dtype(object) in (x.dtype, target):
        raise call.error("text has no bit pattern")
    if call.wide and x.dtype == np.float64 and target.itemsize < 8:
        x = x.astype(np.float32 if target.itemsize == 4 else np.float16)
    if _bits(x.dtype) != _bits(target):
        raise call.error(f"{x.dtype} and {target} differ in width")
    return (np.ascontiguousarray(x).view(target).reshape(x.shape),)


def _bits(dtype: np.dtype[Any]) -> int:
    narrow = {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2}
    return narrow.get(dtype.name, dtype.itemsize * 8)


@operator("AffineGrid", since=20)
def affine_grid(call: Call, theta: Array, size: Array) -> Outputs:
    extents = tuple(int(v) for v in size.ravel())[2:]
    rank = len(extents)
    if rank not in (2, 3) or theta.shape[1:] != (rank, rank + 1):
        raise call.error(f"theta {theta.shape} does not fit size {size.tolist()}")
    axes = []
    for extent in extents:
        if call.integer("align_corners", 0):
            axes.append(np.linspace(-1, 1, extent))
        else:
            axes.append((2 * np.arange(extent) + 1) / extent - 1)
    grid = np.meshgrid(*axes, indexing="ij")
    points = np.stack([*grid[::-1], np.ones(extents)], axis=-1).reshape(-1, rank + 1)
    moved = points @ theta.astype(np.float64).transpose(0, 2, 1)
    return (moved.reshape(theta.shape[0], *extents, rank).astype(accumulator(theta.dtype)),)


@operator("OneHot", since=9, own_precision=True)
def one_hot(call: Call, indices: Array, depth: Array, values: Array) -> Outputs:
    classes = int(_scalar(call, depth))
    rank = indices.ndim + 1
    axis = call.integer("axis", -1)
    if not -rank <= axis < rank:
        raise call.error(f"axis {axis} is outside rank {rank}")
    if values.shape != (2,):
        raise call.error(f"values {values.shape} must be [off, on]")
    whole = indices.astype(np.float32) if indices.dtype in HALF else indices
    at = np.expand_dims(whole.astype(np.int64), axis % rank)
    at = np.where(at < 0, at + classes, at)
    call.room([indices.size, classes], np.dtype(np.int64))
    steps = np.arange(classes).reshape([-1 if i == axis % rank else 1 for i in range(rank)])
    return (np.where(at == steps, values[1], values[0]).astype(values.dtype),)
