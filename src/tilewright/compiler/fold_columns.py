"""Fold two columns of an image of few channels into one of 8, for windows that move two at a time.

    x[n, h, w, c < 3], sum over kh, kw, c of x[n, i*s + kh - p, j*2 + kw - q, c] * v[o, kh, kw, c]
    ->  y[n, h + p, (w + q) / 2, (w + q) % 2 * 4 + c], with zeros around the image,
        sum over kh, k < ceil(kw / 2), e < 8 of y[n, i*s + kh, j + k, e] * v'[o, kh, k, e]
Input -> Output: a fused draft, edited in place; weights join the constants again, laid out so.
Why: half of what tensor cores would multiply is no padding of channels, and no copy is guarded.
Requires: float16 and channels last; an image that a kernel copies from outside of the segment.
Guarantees: what is computed does not change: products with zeros are added.
Not here: images that windows move over one by one (pad_channels).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compiler.build_program import DraftProgram, DraftSegment
from tilewright.compiler.pad_channels import private_copies
from tilewright.core.dtypes import FLOAT16, INT64
from tilewright.core.plural import plural
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.kernel.affine import affine
from tilewright.kernel.ir import (
    Axis,
    AxisVar,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    Store,
    constant,
    load,
    reduce_axes,
    select,
    substitute,
    walk,
)
from tilewright.kernel.ir import transform as rewrite

Array = npt.NDArray[Any]
_PART, _WIDTH = 4, 8  # channels of a column, and of two
_SUFFIX = "$folded"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """A convolution over the image.

    Attributes:
        sum, factor: the sum, and its factor that reads the image, guarded or not.
        kernel: axes of the window's rows and columns.
        output: axes of the output's rows and columns.
        stride: rows from one window to the next.
        before: rows and columns before the image.
    """

    sum: Reduce
    factor: Expr
    image: Load
    weight: Load
    kernel: tuple[Axis, Axis]
    output: tuple[Axis, Axis]
    stride: int
    before: tuple[int, int]

    @property
    def rows(self) -> int:
        """Rows of the image with what is around it."""
        return self.stride * (self.output[0].extent.const - 1) + self.kernel[0].extent.const

    @property
    def pairs(self) -> int:
        """Pairs of columns of it."""
        return self.output[1].extent.const - 1 + self.taps

    @property
    def taps(self) -> int:
        """Pairs of columns of a window."""
        return -(-self.kernel[1].extent.const // 2)


def fold_columns_program(
    program: DraftProgram, constants: dict[str, Array], log: DecisionLog
) -> None:
    """Folds in every segment, those of sub-programs too."""
    for segment in program.segments():
        _segment(segment, constants, log)


def _segment(step: DraftSegment, constants: dict[str, Array], log: DecisionLog) -> None:
    for copy, image, readers in private_copies(step):
        if not _is_small(image):
            continue
        window: _Window | str = f"{plural(len(readers), 'kernel')} read it"
        if len(readers) == 1:
            window = _window(readers[0], image, constants)
        if isinstance(window, str):
            log.add("layout", copy.name, "columns not folded", (("two in 8 channels", window),))
            continue
        weight = window.weight.buffer
        constants[weight + _SUFFIX] = _folded_weight(constants[weight], window.taps)
        made = {id(copy): _folded_copy(copy, window), id(readers[0]): _folded(readers[0], window)}
        step.items = [made.get(id(item), item) for item in step.items]
        log.add("layout", copy.name, f"two columns of {image.name} folded into 8 channels")


# --- legality -------------------------------------------------------------------------------------


def _is_small(image: Buffer) -> bool:
    """Whether it is an image of few channels, and of a known size."""
    known = len(image.shape) == 4 and all(dim.is_const for dim in image.shape[1:])
    return known and image.shape[3].const <= _PART


def _window(kernel: Kernel, image: Buffer, constants: Mapping[str, Array]) -> _Window | str:
    """What the only reader of an image does with it, or why it cannot be folded."""
    if len(kernel.stages) != 1 or kernel.steps is not None:
        return f"{kernel.name} computes in several stages"
    loads = [n for n in walk(*kernel.roots) if isinstance(n, Load) and n.buffer == image.name]
    sums = [n for n in walk(*kernel.roots) if isinstance(n, Reduce)]
    if len(loads) != 1 or len(sums) != 1 or len(sums[0].axes) != 3:
        return f"{kernel.name} is no sum over rows, columns and channels of a window"
    (node,), (source,) = sums, loads
    body = node.body
    if node.combiner != "sum" or not (isinstance(body, Call) and body.op == "mul"):
        return f"{kernel.name} sums no products"
    factor, other = body.args
    if not isinstance(other, Cast) or not isinstance(other.arg, Load):
        return f"the other factor in {kernel.name} is no weight as it is stored"
    weight = other.arg
    if weight.buffer not in constants or constants[weight.buffer].dtype != np.float16:
        return f"{weight.buffer} is no constant of float16"
    rows, columns, channels = node.axes
    if weight.index[1:] != (rows.var, columns.var, channels.var) or len(weight.index) != 4:
        return f"the dims of {weight.buffer} are no filters, rows, columns and channels"
    if source.index[3] is not channels.var or channels.extent != image.shape[3]:
        return "a window takes some of the channels"
    places = [
        _place(index, axis, kernel.stages[0].axes)
        for index, axis in zip(source.index[1:3], (rows, columns), strict=True)
    ]
    if places[0] is None or places[1] is None or places[1][1] != 2:
        return "windows do not move by whole rows and by two columns"
    inner = {axis.name for axis in (*node.axes, places[0][0], places[1][0])}
    if source.index[0].free_axes & inner or weight.index[0].free_axes & inner:
        return "the image or the filter changes within a window"
    if not _is_guarded(factor, source, image):
        return "around the image there is something else than zeros"
    return _Window(
        sum=node,
        factor=factor,
        image=source,
        weight=weight,
        kernel=(rows, columns),
        output=(places[0][0], places[1][0]),
        stride=places[0][1],
        before=(places[0][2], places[1][2]),
    )


def _place(index: Expr, tap: Axis, axes: tuple[Axis, ...]) -> tuple[Axis, int, int] | None:
    """The output axis, its stride and the offset of ``axis * stride + tap - offset``."""
    form = affine(index)
    own = [axis for axis in axes if axis.name in form.terms]
    if form.rest or len(own) != 1 or set(form.terms) != {own[0].name, tap.name}:
        return None
    sizes = (form.terms[own[0].name], form.offset, own[0].extent, tap.extent)
    if form.terms[tap.name] != Dim.of(1) or not all(size.is_const for size in sizes):
        return None
    stride, offset = sizes[0].const, -sizes[1].const
    return (own[0], stride, offset) if stride > 0 and offset >= 0 else None


def _is_guarded(factor: Expr, source: Load, image: Buffer) -> bool:
    """Whether a factor is the image inside of it and zero around it."""
    if isinstance(factor, Cast):
        return factor.arg is source
    if not isinstance(factor, Call) or factor.op != "select":
        return False
    condition, value, other = factor.args
    if not isinstance(other, Const) or other.value != 0:
        return False
    if not isinstance(value, Cast) or value.arg is not source:
        return False
    allowed = set()
    for index, size in zip(source.index[1:3], image.shape[1:3], strict=True):
        allowed |= {index.ge(0), index.lt(size.const)}
    return all(part in allowed for part in _parts(condition))


def _parts(condition: Expr) -> list[Expr]:
    if isinstance(condition, Call) and condition.op == "and":
        return [part for arg in condition.args for part in _parts(arg)]
    return [condition]


# --- what becomes of them -------------------------------------------------------------------------


def _folded_weight(array: Array, taps: int) -> Array:
    filters, rows, columns, channels = array.shape
    wide = np.zeros((filters, rows, 2 * taps, _PART), array.dtype)
    wide[:, :, :columns, :channels] = array
    return wide.reshape(filters, rows, taps, _WIDTH)


def _grown(buffer: Buffer, window: _Window) -> Buffer:
    """What becomes of a buffer: the image and the weights are laid out anew."""
    rows, pairs = buffer.shape[1:3] if len(buffer.shape) == 4 else (Dim.of(0), Dim.of(0))
    if buffer.name == window.image.buffer:
        rows, pairs = Dim.of(window.rows), Dim.of(window.pairs)
    elif buffer.name == window.weight.buffer:
        pairs = Dim.of(window.taps)
    else:
        return buffer
    shape = (buffer.shape[0], rows, pairs, Dim.of(_WIDTH))
    return replace(buffer, name=buffer.name + _SUFFIX, shape=shape)


def _folded_copy(copy: Kernel, window: _Window) -> Kernel:
    (stage,), (image,) = copy.stages, copy.outputs
    (store,) = stage.stores
    lead, *_ = store.index
    target = _grown(image, window)
    rows, pairs, channels = (Axis(f"{image.name}_{k}", target.shape[k]) for k in (1, 2, 3))
    second = select(channels.var.ge(_PART), constant(1, INT64), constant(0, INT64))
    row = rows.var - window.before[0]
    column = pairs.var * 2 + second - window.before[1]
    channel = channels.var - second * _PART
    names = [index.name for index in store.index if isinstance(index, AxisVar)]
    value = substitute(store.value, dict(zip(names[1:], (row, column, channel), strict=True)))
    inside = row.ge(0) & row.lt(image.shape[1].const)
    inside = inside & column.ge(0) & column.lt(image.shape[2].const)
    inside = inside & channel.lt(image.shape[3].const)
    first = next(axis for axis in stage.axes if axis.name == names[0])
    made = Store(
        target.name,
        (lead, rows.var, pairs.var, channels.var),
        select(inside, value, constant(0.0, FLOAT16)),
    )
    return replace(
        copy, outputs=(target,), stages=(Stage((first, rows, pairs, channels), (made,)),)
    )


def _folded(kernel: Kernel, window: _Window) -> Kernel:
    rows, columns = window.kernel
    pairs = replace(columns, extent=Dim.of(window.taps))
    channels = replace(window.sum.axes[2], extent=Dim.of(_WIDTH))
    high, wide = window.output
    index = (
        window.image.index[0],
        high.var * window.stride + rows.var,
        wide.var + pairs.var,
        channels.var,
    )
    left = load(window.image.buffer + _SUFFIX, FLOAT16, index)
    right = load(window.weight.buffer + _SUFFIX, FLOAT16, window.weight.index)
    dtype = window.sum.dtype
    body = left.cast(dtype) * right.cast(dtype)
    total = reduce_axes("sum", (rows, pairs, channels), body)

    def rule(node: Expr) -> Expr | None:
        return total if node is window.sum else None

    (stage,) = kernel.stages
    stores = tuple(store.mapped(lambda root: rewrite(root, rule)) for store in stage.stores)
    inputs = tuple(_grown(own, window) for own in kernel.inputs)
    return replace(kernel, inputs=inputs, stages=(replace(stage, stores=stores),))
