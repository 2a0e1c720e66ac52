"""Fold two columns of an image of few channels into one of 8, for windows that move two at a time.

    x[n, h, w, c < 3], sum over kh, kw, c of x[n, i*s + kh - p, j*2 + kw - q, c] * v[o, kh, kw, c]
    ->  y[n, h + p, (w + q) / 2, (w + q) % 2 * 4 + c], with what pads it around the image,
        sum over kh, k < ceil(kw / 2), e < 8 of y[n, i*s + kh, j + k, e] * v'[o, kh, k, e]
    of bytes, two rows are folded alike: e < 16
Input -> Output: a fused draft, edited in place; weights join the constants again, laid out so.
Why: half of what tensor cores would multiply is no padding of channels, and no copy is guarded.
Requires: narrow types and channels last; an image that a kernel makes element by element.
Guarantees: what is computed does not change: products with zeros are added.
Not here: images that windows move over one by one (pad_channels).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.codegen.cuda.elements import is_narrow
from tilewright.compiler.build_program import DraftProgram, DraftSegment
from tilewright.compiler.pad_channels import private_copies
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
_PART, _PAIR = 4, 8  # channels of a column, and of two
_CHUNK_BYTES = 16
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
        fold: rows that are folded into one.
        fill: what there is around the image.
    """

    sum: Reduce
    factor: Expr
    image: Load
    weight: Load
    kernel: tuple[Axis, Axis]
    output: tuple[Axis, Axis]
    stride: int
    before: tuple[int, int]
    fold: int
    fill: int

    @property
    def rows(self) -> int:
        """Folded rows of the image with what is around it."""
        step = self.stride // self.fold
        return step * (self.output[0].extent.const - 1) + self.taps[0]

    @property
    def pairs(self) -> int:
        """Pairs of columns of it."""
        return self.output[1].extent.const - 1 + self.taps[1]

    @property
    def taps(self) -> tuple[int, int]:
        """Folded rows and pairs of columns of a window."""
        rows, columns = (axis.extent.const for axis in self.kernel)
        return -(-rows // self.fold), -(-columns // 2)

    @property
    def width(self) -> int:
        """Channels of a folded column."""
        return self.fold * _PAIR


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
        constants[weight + _SUFFIX] = _folded_weight(constants[weight], window)
        made = {id(copy): _folded_copy(copy, window), id(readers[0]): _folded(readers[0], window)}
        step.items = [made.get(id(item), item) for item in step.items]
        rows = f"{window.fold} rows and " if window.fold > 1 else ""
        chosen = f"{rows}two columns of {image.name} folded into {window.width} channels"
        log.add("layout", copy.name, chosen)


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
    if weight.buffer not in constants or not is_narrow(weight.dtype.numpy):
        return f"{weight.buffer} is no constant of a narrow type"
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
    fill, fold = _fill(factor, source, image), _CHUNK_BYTES // image.dtype.storage_bytes // _PAIR
    if fill is None:
        return "around the image there is something else than one number"
    if places[0][1] % fold:
        return f"windows do not move by {fold} rows"
    return _Window(
        sum=node,
        factor=factor,
        image=source,
        weight=weight,
        kernel=(rows, columns),
        output=(places[0][0], places[1][0]),
        stride=places[0][1],
        before=(places[0][2], places[1][2]),
        fold=fold,
        fill=fill,
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


def _fill(factor: Expr, source: Load, image: Buffer) -> int | None:
    """What is around the image where a factor is the image inside of it; None: something else."""
    if isinstance(factor, Cast) and factor.arg.dtype is image.dtype and not factor.bits:
        factor = factor.arg
    if factor is source:
        return 0
    if not isinstance(factor, Call) or factor.op != "select":
        return None
    condition, value, other = factor.args
    if isinstance(value, Cast) and value.arg is source:
        value = source
    if value is not source or not isinstance(other, Const):
        return None
    if image.dtype.is_float and other.value != 0:
        return None
    allowed = set()
    for index, size in zip(source.index[1:3], image.shape[1:3], strict=True):
        allowed |= {index.ge(0), index.lt(size.const)}
    return int(other.value) if all(part in allowed for part in _parts(condition)) else None


def _parts(condition: Expr) -> list[Expr]:
    if isinstance(condition, Call) and condition.op == "and":
        return [part for arg in condition.args for part in _parts(arg)]
    return [condition]


# --- what becomes of them -------------------------------------------------------------------------


def _folded_weight(array: Array, window: _Window) -> Array:
    filters, rows, columns, channels = array.shape
    high, across = window.taps
    wide = np.zeros((filters, window.fold * high, 2 * across, _PART), array.dtype)
    wide[:, :rows, :columns, :channels] = array
    parts = wide.reshape(filters, high, window.fold, across, 2, _PART)
    moved = parts.transpose(0, 1, 3, 2, 4, 5).reshape(filters, high, across, window.width)
    return np.ascontiguousarray(moved)


def _grown(buffer: Buffer, window: _Window) -> Buffer:
    """What becomes of a buffer: the image and the weights are laid out anew."""
    rows, pairs = buffer.shape[1:3] if len(buffer.shape) == 4 else (Dim.of(0), Dim.of(0))
    if buffer.name == window.image.buffer:
        rows, pairs = Dim.of(window.rows), Dim.of(window.pairs)
    elif buffer.name == window.weight.buffer:
        rows, pairs = (Dim.of(taps) for taps in window.taps)
    else:
        return buffer
    shape = (buffer.shape[0], rows, pairs, Dim.of(window.width))
    return replace(buffer, name=buffer.name + _SUFFIX, shape=shape)


def _folded_copy(copy: Kernel, window: _Window) -> Kernel:
    (stage,), (image,) = copy.stages, copy.outputs
    (store,) = stage.stores
    lead, *_ = store.index
    target = _grown(image, window)
    rows, pairs, channels = (Axis(f"{image.name}_{k}", target.shape[k]) for k in (1, 2, 3))
    part = channels.var / _PART
    second = part - part / 2 * 2
    row = rows.var * window.fold + part / 2 - window.before[0]
    column = pairs.var * 2 + second - window.before[1]
    channel = channels.var - part * _PART
    names = [index.name for index in store.index if isinstance(index, AxisVar)]
    value = substitute(store.value, dict(zip(names[1:], (row, column, channel), strict=True)))
    inside = row.ge(0) & row.lt(image.shape[1].const)
    inside = inside & column.ge(0) & column.lt(image.shape[2].const)
    inside = inside & channel.lt(image.shape[3].const)
    first = next(axis for axis in stage.axes if axis.name == names[0])
    made = Store(
        target.name,
        (lead, rows.var, pairs.var, channels.var),
        select(inside, value, constant(window.fill, image.dtype)),
    )
    return replace(
        copy, outputs=(target,), stages=(Stage((first, rows, pairs, channels), (made,)),)
    )


def _folded(kernel: Kernel, window: _Window) -> Kernel:
    rows, columns = window.kernel
    rows = replace(rows, extent=Dim.of(window.taps[0]))
    pairs = replace(columns, extent=Dim.of(window.taps[1]))
    channels = replace(window.sum.axes[2], extent=Dim.of(window.width))
    high, wide = window.output
    index = (
        window.image.index[0],
        high.var * (window.stride // window.fold) + rows.var,
        wide.var + pairs.var,
        channels.var,
    )
    image, weight = window.image, window.weight
    left = load(image.buffer + _SUFFIX, image.dtype, index)
    right = load(weight.buffer + _SUFFIX, weight.dtype, weight.index)
    dtype = window.sum.dtype
    body = left.cast(dtype) * right.cast(dtype)
    total = reduce_axes("sum", (rows, pairs, channels), body)

    def rule(node: Expr) -> Expr | None:
        return total if node is window.sum else None

    (stage,) = kernel.stages
    stores = tuple(store.mapped(lambda root: rewrite(root, rule)) for store in stage.stores)
    inputs = tuple(_grown(own, window) for own in kernel.inputs)
    return replace(kernel, inputs=inputs, stages=(replace(stage, stores=stores),))
