"""Reductions and running sums.

Guarantees: `axes` as attribute or input by opset, `noop_with_empty_axes`, `keepdims`; the input's
dtype; ReduceMax and ReduceMin keep NaN; reductions over nothing give the neutral element.
Not here: ArgMax, ArgMin (sort)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.runtime.reference.dtypes import Array, summed_in
from tilewright.runtime.reference.registry import Call, Outputs, operator

Axes = tuple[int, ...]
Kernel = Callable[[Array, Axes], Array]


def _sum(x: Array, axes: Axes) -> Array:
    total = np.sum(x, axis=axes, keepdims=True, dtype=summed_in(x.dtype))
    return np.asarray(total).astype(x.dtype)


def _count(x: Array, axes: Axes) -> int:
    return int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))


def _mean(x: Array, axes: Axes) -> Array:
    if x.dtype.kind not in "iu":
        total = np.sum(x, axis=axes, keepdims=True, dtype=summed_in(x.dtype))
        return np.asarray(total / total.dtype.type(_count(x, axes))).astype(x.dtype)
    total = np.sum(
        x, axis=axes, keepdims=True, dtype=np.int64 if x.dtype.kind == "i" else np.uint64
    )
    count = total.dtype.type(max(_count(x, axes), 1))
    return np.asarray(np.where(total < 0, -(-total // count), total // count)).astype(x.dtype)


def _real(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype.kind in "iu" else x


def _log_sum_exp(x: Array, axes: Axes) -> Array:
    values = _real(x)
    top = _extreme(values, axes, np.maximum)
    shift = np.where(np.isfinite(top), top, 0)
    return np.asarray(np.log(_sum(np.exp(values - shift), axes)) + shift)


def _extreme(x: Array, axes: Axes, function: np.ufunc) -> Array:
    if _count(x, axes):
        return np.asarray(function.reduce(x, axis=axes, keepdims=True))
    highest = function is np.minimum
    if x.dtype == bool:
        neutral: object = highest
    elif x.dtype.kind in "iu":
        limits = np.iinfo(x.dtype)
        neutral = limits.max if highest else limits.min
    else:
        neutral = np.inf if highest else -np.inf
    shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    return np.full(shape, neutral, x.dtype)


_KERNELS: dict[str, Kernel] = {
    "ReduceSum": _sum,
    "ReduceMean": _mean,
    "ReduceMax": lambda x, axes: _extreme(x, axes, np.maximum),
    "ReduceMin": lambda x, axes: _extreme(x, axes, np.minimum),
    "ReduceProd": lambda x, axes: np.prod(x, axis=axes, keepdims=True, dtype=x.dtype),
    "ReduceL1": lambda x, axes: _sum(np.abs(x), axes),
    "ReduceL2": lambda x, axes: np.sqrt(_sum(np.square(_real(x)), axes)),
    "ReduceLogSum": lambda x, axes: np.log(_sum(_real(x), axes)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceSumSquare": lambda x, axes: _sum(np.square(x), axes),
}


def _reduce(call: Call, x: Array, axes: Axes | None, kernel: Kernel) -> Outputs:
    if not axes:
        axes = () if call.integer("noop_with_empty_axes", 0) else tuple(range(x.ndim))
    axes = normalized_axes(call, axes, x.ndim)
    result = np.asarray(kernel(x, axes)).astype(x.dtype, copy=False)
    if not call.integer("keepdims", 1):
        result = np.squeeze(result, axis=axes)
    return (result,)


def normalized_axes(call: Call, axes: Axes, rank: int) -> Axes:
    """Axes counted from the front; an axis outside [-rank, rank) or given twice is an error."""
    if any(not -rank <= axis < rank for axis in axes):
        raise call.error(f"axes {list(axes)} are outside rank {rank}")
    positive = tuple(axis % rank for axis in axes)
    if len(set(positive)) != len(positive):
        raise call.error(f"axes {list(axes)} name an axis twice")
    return positive


def _register(name: str, kernel: Kernel) -> None:
    def from_attribute(call: Call, x: Array) -> Outputs:
        return _reduce(call, x, call.integers("axes"), kernel)

    def from_input(call: Call, x: Array, axes: Array | None = None) -> Outputs:
        chosen = None if axes is None else tuple(int(axis) for axis in axes.ravel())
        return _reduce(call, x, chosen, kernel)

    operator(name)(from_attribute)
    operator(name, since=13 if name == "ReduceSum" else 18)(from_input)


for _name, _kernel in _KERNELS.items():
    _register(_name, _kernel)


def _running(call: Call, x: Array, axis: Array, function: np.ufunc, neutral: int) -> Outputs:
    where = int(axis.reshape(-1)[0])
    if not -x.ndim <= where < x.ndim:
        raise call.error(f"axis {where} is outside rank {x.ndim}")
    moved = np.moveaxis(x, where, -1)
    if call.integer("reverse", 0):
        moved = moved[..., ::-1]
    if call.integer("exclusive", 0):
        first = np.full((*moved.shape[:-1], min(1, moved.shape[-1])), neutral, x.dtype)
        moved = np.concatenate([first, moved[..., :-1]], axis=-1)
    result = function.accumulate(moved, axis=-1, dtype=x.dtype)
    if call.integer("reverse", 0):
        result = result[..., ::-1]
    return (np.moveaxis(result, -1, where),)


@operator("CumSum")
def cumulative_sum(call: Call, x: Array, axis: Array) -> Outputs:
    return _running(call, x, axis, np.add, 0)


@operator("CumProd")
def cumulative_product(call: Call, x: Array, axis: Array) -> Outputs:
    return _running(call, x, axis, np.multiply, 1)
