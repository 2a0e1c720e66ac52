"""Sizes that depend on data: small functions that set an engine's symbols at run time.

Input -> Output: tensor contents, sizes and literals -> one integer for each symbol of the
binding.
Guarantees: values are data, hence hostile: negative, absurd or contradicting sizes raise
``ShapeMismatch``, axes and counts outside of their range raise ``OutOfRange``.
Requires: an argument is an array, a sequence of integers, a number, a text or None (absent).
Not here: when a binding runs (the executors), which one an operator needs (graph.shapes).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.errors import OutOfRange, ShapeMismatch
from tilewright.runtime.reshape import inferred_size

MAX_ELEMENTS = 2**40
Ints = tuple[int, ...]
Array = npt.NDArray[Any]
Function = Callable[..., Ints]
BINDINGS: dict[str, Function] = {}


def binding(name: str) -> Callable[[Function], Function]:
    """Registers a function under a name that shape rules use."""

    def register(function: Function) -> Function:
        BINDINGS[name] = function
        return function

    return register


def run(name: str, *args: Any) -> Ints:
    """Calls a binding by name.

    Raises:
        ShapeMismatch: there is no such binding, or the sizes do not fit.
        OutOfRange: a value is outside of what the operator allows.
    """
    function = BINDINGS.get(name)
    if function is None:
        raise ShapeMismatch(f"unknown binding {name!r}", remedy="rebuild the engine")
    return function(*args)


_FIT = "feed inputs whose sizes and shapes fit each other"
_ALLOWED = "feed values that the operator allows"


def _unfit(message: str, remedy: str = _FIT) -> ShapeMismatch:
    return ShapeMismatch(message, remedy=remedy)


def _outside(message: str, remedy: str = _ALLOWED) -> OutOfRange:
    return OutOfRange(message, remedy=remedy)


# --- reading arguments --------------------------------------------------------------------------


def _numbers(value: Any, what: str) -> Array:
    """An argument as a flat array of a few numbers."""
    array = np.asarray(value).reshape(-1)
    if array.size > 4096:
        raise _unfit(f"{what}: {array.size} numbers where a few are expected")
    if array.dtype.kind in "OUST":
        raise _unfit(f"{what}: a number is needed")
    return array


def _ints(value: Any, what: str = "value") -> list[int]:
    """An argument as plain integers; numbers that are no integers are refused."""
    found: list[int] = []
    for part in _numbers(value, what).tolist():
        if isinstance(part, float) and (not math.isfinite(part) or part != int(part)):
            raise _outside(f"{what}: {part} is no integer")
        found.append(int(part))
    return found


def _integer(value: Any, what: str) -> int:
    found = _ints(value, what)
    if len(found) != 1:
        raise _unfit(f"{what}: one number is needed, {len(found)} are given")
    return found[0]


def _sizes(shape: Sequence[int], what: str) -> Ints:
    """A shape that can exist."""
    total = 1
    for size in shape:
        if size < 0:
            raise _unfit(f"{what}: size {size} is negative", "feed sizes of at least 0")
        total *= max(size, 1)
    if total > MAX_ELEMENTS:
        raise _unfit(f"{what}: {list(shape)} is more than 2**40 elements", "feed smaller sizes")
    return tuple(int(size) for size in shape)


def _axis(axis: int, rank: int, what: str) -> int:
    if not -rank <= axis < rank:
        raise _outside(
            f"{what}: axis {axis} is outside of rank {rank}", f"feed axes of {-rank} to {rank - 1}"
        )
    return axis % rank


def _axes(value: Any, rank: int, what: str) -> list[int]:
    found = [_axis(axis, rank, what) for axis in _ints(value, what)]
    if len(set(found)) != len(found):
        raise _unfit(f"{what}: an axis is repeated in {found}")
    return found


# --- checks: they set no symbol -----------------------------------------------------------------


@binding("require_equal")
def require_equal(left: Any, right: Any, what: str) -> Ints:
    """Two sizes must be equal."""
    if _ints(left) != _ints(right):
        raise _unfit(f"{what}: {_ints(left)} differs from {_ints(right)}")
    return ()


@binding("require_at_most")
def require_at_most(left: Any, right: Any, what: str) -> Ints:
    """A size must not exceed another."""
    small, large = _integer(left, what), _integer(right, what)
    if small > large:
        raise _unfit(f"{what}: {small} exceeds {large}")
    return ()


@binding("require_broadcast")
def require_broadcast(size: Any, target: Any) -> Ints:
    """A size must be 1 or equal to the target's."""
    own, wanted = _integer(size, "broadcast"), _integer(target, "broadcast")
    if own not in (1, wanted):
        raise _unfit(f"size {own} does not broadcast to {wanted}")
    return ()


@binding("require_same_count")
def require_same_count(left: Any, right: Any) -> Ints:
    """Two shapes must have the same number of elements."""
    before, after = _ints(left), _ints(right)
    if any(size < 0 for size in after) or math.prod(before) != math.prod(after):
        raise _unfit(f"a tensor of shape {before} cannot become {after}")
    return ()


@binding("require_no_copies")
def require_no_copies(own: Any, sizes: Any) -> Ints:
    """Sizes for a reshape that turn out to be 0 must be 0 in the data: ONNX copies them there."""
    for before, size in zip(_ints(own), _ints(sizes), strict=True):
        if size == 0 != before:
            raise _unfit(f"a computed size of 0 means the data's to a Reshape, which is {before}")
    return ()


# --- sizes from sizes ---------------------------------------------------------------------------


@binding("broadcast")
def broadcast(left: Any, right: Any) -> Ints:
    """The common size of two sizes."""
    one, other = _integer(left, "broadcast"), _integer(right, "broadcast")
    if one != other and 1 not in (one, other):
        raise _unfit(f"sizes {one} and {other} do not broadcast")
    return (other if one == 1 else one,)


@binding("reshape")
def reshape(target: Any, shape: Any, allow_zero: Any) -> Ints:
    """The sizes of a reshape: 0 copies (unless allowed as a size), one -1 is what is left."""
    own, sizes = _ints(shape, "shape"), _ints(target, "reshape")
    allowed = _integer(allow_zero, "allowzero") != 0
    for axis, size in enumerate(sizes):
        if size == 0 and not allowed:
            if axis >= len(own):
                raise _unfit(f"reshape: a 0 at axis {axis} of data {own}")
            sizes[axis] = own[axis]
    if allowed and 0 in sizes and -1 in sizes:
        raise _unfit(f"reshape: -1 beside a size of 0 in {sizes}")
    if sizes.count(-1) > 1:
        raise _unfit(f"reshape: more than one -1 in {sizes}")
    if -1 in sizes:
        rest = inferred_size(own, [size for size in sizes if size != -1])
        if rest is None:
            raise _unfit(f"reshape: {own} cannot become {sizes}")
        sizes[sizes.index(-1)] = rest
    found = _sizes(sizes, "reshape")
    if math.prod(found) != math.prod(own):
        raise _unfit(f"reshape: {own} cannot become {list(found)}")
    return found


@binding("expand")
def expand(target: Any, shape: Any) -> Ints:
    """The common shape of the data and the wanted sizes."""
    wanted, own = _ints(target, "expand"), _ints(shape, "shape")
    rank = max(len(wanted), len(own))
    left, right = [1] * (rank - len(wanted)) + wanted, [1] * (rank - len(own)) + own
    found = [broadcast(one, other)[0] for one, other in zip(left, right, strict=True)]
    return _sizes(found, "expand")


@binding("tile")
def tile(repeats: Any, shape: Any) -> Ints:
    """Each size times its repeat."""
    counts, own = _ints(repeats, "repeats"), _ints(shape, "shape")
    if len(counts) != len(own):
        raise _unfit(f"tile: {len(counts)} repeats for {len(own)} axes")
    _sizes(counts, "repeats")
    return _sizes([a * b for a, b in zip(counts, own, strict=True)], "tile")


@binding("squeeze")
def squeeze(axes: Any, shape: Any) -> Ints:
    """The shape without these axes of size 1."""
    own = _ints(shape, "shape")
    dropped = _axes(axes, len(own), "squeeze")
    for axis in dropped:
        if own[axis] != 1:
            raise _unfit(f"squeeze: axis {axis} has size {own[axis]}")
    return tuple(size for axis, size in enumerate(own) if axis not in dropped)


@binding("unsqueeze")
def unsqueeze(axes: Any, shape: Any) -> Ints:
    """The shape with new axes of size 1."""
    own, given = _ints(shape, "shape"), _ints(axes, "unsqueeze")
    rank = len(own) + len(given)
    added, rest = _axes(given, rank, "unsqueeze"), iter(own)
    return tuple(1 if axis in added else next(rest) for axis in range(rank))


@binding("sizes")
def sizes(values: Any, count: Any) -> Ints:
    """Sizes as they stand in a tensor."""
    found = _ints(values, "sizes")
    if len(found) != _integer(count, "count"):
        raise _unfit(f"{count} sizes are needed, {len(found)} are given")
    return _sizes(found, "sizes")


@binding("constant_of_shape")
def constant_of_shape(values: Any, count: Any) -> Ints:
    """The shape of a filled tensor."""
    return sizes(values, count)


@binding("integer")
def integer(value: Any) -> Ints:
    """A number of either sign."""
    return (_integer(value, "value"),)


@binding("positive")
def positive(value: Any) -> Ints:
    """A number above 0."""
    found = _integer(value, "value")
    if found < 1:
        raise _outside(f"{found} must be positive", "feed a number of at least 1")
    return (found,)


# --- parts of tensors ---------------------------------------------------------------------------


@binding("slice")
def slice_axes(starts: Any, ends: Any, axes: Any, steps: Any, shape: Any, listed: Any) -> Ints:
    """Clamped starts, then steps, then lengths of the listed axes."""
    own, first, last = _ints(shape, "shape"), _ints(starts, "starts"), _ints(ends, "ends")
    where = list(range(len(first))) if axes is None else _ints(axes, "axes")
    strides = [1] * len(first) if steps is None else _ints(steps, "steps")
    if not len(first) == len(last) == len(where) == len(strides):
        raise _unfit("slice: starts, ends, axes and steps differ in length")
    found = {axis: (0, 1, size) for axis, size in enumerate(own)}
    for number, axis in enumerate(_axes(where, len(own), "slice")):
        found[axis] = slice_bounds(first[number], last[number], strides[number], own[axis])
    parts = [found[axis] for axis in _ints(listed, "listed")]
    return tuple(part[k] for k in range(3) for part in parts)


def slice_bounds(start: int, end: int, step: int, size: int) -> tuple[int, int, int]:
    """The clamped start, the step and the length of a slice of one axis (ONNX Slice-13)."""
    if step == 0:
        raise _outside("slice: a step of 0", "feed steps other than 0")
    start, end = (index + size if index < 0 else index for index in (start, end))
    if step > 0:
        start, end = min(max(start, 0), size), min(max(end, 0), size)
    else:
        start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    span = end - start if step > 0 else start - end
    return max(start, 0), step, max(-(-span // abs(step)), 0)


@binding("split")
def split(parts: Any, size: Any, count: Any) -> Ints:
    """Offsets, then sizes of the parts of an axis."""
    found, whole = _ints(parts, "split"), _integer(size, "size")
    if len(found) != _integer(count, "count"):
        raise _unfit(f"split: {len(found)} parts for {count} outputs")
    if sum(_sizes(found, "split")) != whole:
        raise _unfit(f"split: {found} does not add up to {whole}")
    offsets = [sum(found[:number]) for number in range(len(found))]
    return (*offsets, *found)


@binding("pad")
def pad(pads: Any, axes: Any, shape: Any) -> Ints:
    """Begins, then ends for every axis; negative ones cut."""
    own, given = _ints(shape, "shape"), _ints(pads, "pads")
    rank = len(own)
    where = list(range(rank)) if axes is None else _axes(axes, rank, "pad")
    if len(given) != 2 * len(where):
        raise _unfit(f"pad: {len(given)} pads for {len(where)} axes")
    found = [0] * (2 * rank)
    for number, axis in enumerate(where):
        found[axis], found[rank + axis] = given[number], given[len(where) + number]
    _sizes([own[axis] + found[axis] + found[rank + axis] for axis in range(rank)], "pad")
    return tuple(found)


@binding("topk")
def topk(count: Any, size: Any) -> Ints:
    """How many extremes are kept of an axis."""
    k, whole = _integer(count, "k"), _integer(size, "size")
    if not 0 <= k <= whole:
        raise _outside(f"k = {k} of {whole} elements", f"feed a k of 0 to {whole}")
    return (k,)


@binding("onehot")
def onehot(depth: Any) -> Ints:
    """The size of a one-hot axis; a number of any type, rounded towards zero."""
    values = _numbers(depth, "depth")
    if values.size != 1 or not np.isfinite(float(values[0])):
        raise _outside("the depth must be one finite number", "feed one finite depth")
    return _sizes([int(values[0])], "depth")


# --- axes known only at run time ----------------------------------------------------------------


@binding("reduce_axes")
def reduce_axes(axes: Any, rank: Any, noop: Any) -> Ints:
    """1 for each reduced axis, 0 for each kept one."""
    count = _integer(rank, "rank")
    chosen = _axes([] if axes is None else axes, count, "axes")
    if not chosen:
        return (0 if noop else 1,) * count
    return tuple(int(axis in chosen) for axis in range(count))


@binding("reduce_shape")
def reduce_shape(axes: Any, rank: Any, noop: Any, shape: Any) -> Ints:
    """The sizes of the kept axes."""
    flags = reduce_axes(axes, rank, noop)
    kept = zip(_ints(shape, "shape"), flags, strict=True)
    return tuple(size for size, flag in kept if not flag)


@binding("axis_split")
def axis_split(axis: Any, shape: Any) -> Ints:
    """The sizes before, at and after an axis."""
    own = _ints(shape, "shape")
    number = _axis(_integer(axis, "axis"), len(own), "axis")
    return math.prod(own[:number]), own[number], math.prod(own[number + 1 :])


@binding("dft")
def dft(axis: Any, length: Any, signal: Any, inverse: Any, one_sided: Any) -> Ints:
    """Sizes before, at and after the axis, the transform's length, then the result's sizes."""
    own = _ints(signal, "shape")
    # The axis counts the trailing complex axis too, which cannot be transformed.
    number = _axis(_integer(axis, "axis"), len(own) + 1, "DFT")
    if number == len(own):
        raise _outside("DFT: the last axis holds the complex parts")
    around = axis_split(number, own)
    if length is not None:
        points = _integer(length, "dft_length")
    else:
        points = 2 * (own[number] - 1) if inverse and one_sided else own[number]
    _sizes([points], "dft_length")
    bins = points // 2 + 1 if one_sided and not inverse else points
    return (*around, points, *_sizes([*own[:number], bins, *own[number + 1 :]], "DFT"))


# --- lengths found in data ----------------------------------------------------------------------


@binding("range")
def range_length(start: Any, limit: Any, delta: Any) -> Ints:
    """``max(ceil((limit - start) / delta), 0)``; exact for integers."""
    parts = [_numbers(part, "range") for part in (start, limit, delta)]
    if any(part.size != 1 for part in parts):
        raise _unfit("range: start, limit and delta must be scalars")
    first, last, step = (part[0].item() for part in parts)
    if step == 0 or not all(math.isfinite(float(value)) for value in (first, last, step)):
        raise _outside(
            f"range: from {first} to {last} by {step}",
            "feed finite numbers and a step other than 0",
        )
    if all(isinstance(value, int) for value in (first, last, step)):
        count = -((first - last) // step) if step else 0
    else:
        ratio = (float(last) - float(first)) / float(step)
        count = math.ceil(ratio) if math.isfinite(ratio) else MAX_ELEMENTS + 1
    return _sizes([max(count, 0)], "range")


@binding("nonzero_count")
def nonzero_count(values: Any) -> Ints:
    """How many elements are not zero (not empty, for strings)."""
    return (int(np.count_nonzero(np.asarray(values))),)


@binding("tensor_rank")
def tensor_rank(values: Any) -> Ints:
    """The rank of a tensor."""
    return (np.asarray(values).ndim,)


@binding("compress_count")
def compress_count(condition: Any, size: Any) -> Ints:
    """How many slices a condition keeps; it may be shorter than the axis."""
    flags = np.asarray(condition, dtype=bool).reshape(-1)
    if size is not None and flags.size > _integer(size, "size"):
        raise _unfit(f"compress: {flags.size} conditions for a size of {size}")
    return (int(np.count_nonzero(flags)),)


@binding("resize_sizes")
def resize_sizes(wanted: Any, shape: Any, axes: Any, policy: str) -> Ints:
    """Sizes of the resized axes under an aspect ratio policy."""
    target, own = _ints(wanted, "sizes"), _ints(shape, "shape")
    where = _axes(axes, len(own), "resize")
    if len(target) != len(where):
        raise _unfit(f"resize: {len(target)} sizes for {len(where)} axes")
    _sizes(target, "sizes")
    if policy == "stretch":
        return tuple(target)
    if any(own[axis] == 0 for axis in where):
        raise _unfit("resize: an empty tensor has no aspect ratio")
    ratios = [size / own[axis] for size, axis in zip(target, where, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return _sizes([math.floor(scale * own[axis] + 0.5) for axis in where], "resize")


@binding("resize_scales")
def resize_scales(scales: Any, shape: Any, axes: Any) -> Ints:
    """Sizes times scales, rounded down, in the scales' float32."""
    factors, own = _numbers(scales, "scales").astype(np.float32), _ints(shape, "shape")
    where = _axes(axes, len(own), "resize")
    if factors.size != len(where):
        raise _unfit(f"resize: {factors.size} scales for {len(where)} axes")
    if not np.all(np.isfinite(factors)) or np.any(factors <= 0):
        raise _outside(
            f"resize: scales {factors.tolist()} must be positive", "feed finite scales above 0"
        )
    found = [
        int(np.floor(np.float32(own[axis]) * factor))
        for factor, axis in zip(factors, where, strict=True)
    ]
    return _sizes(found, "resize")
