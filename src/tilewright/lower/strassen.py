"""Strassen: matrix products with constant weights by seven products of halves instead of eight.

Input -> Output: one kernel whose sum is a matrix product, or a convolution -> three: sums of
quarters of the left operand, seven products, sums of these with the epilogue.
    C = A B;  T[p] = sums of A's quarters;  P[p] = T[p] U[p];  C's quarters = sums of P
    Of a convolution, quarters are halves of channels in windows of halves of the rows; of one image
    the seven are images themselves, whose channels lie in blocks as others' do.
Requires: float32, constant weights, even and known numbers of columns and terms, and of rows along
one axis; along others, such as images, it may be unknown (a ``Refusal`` says what is missing).
Of one image no axis needs a known number: halves of an odd one share the middle row, which the
first half stores.
Applied where the saved multiplications take longer than moving the sums, with one of what is
unknown, as long as there is ``Room`` for the weights.
Guarantees: sums of weights are made in float64 and rounded once; the decision is recorded, as the
order of sums differs from the model's.
Source: Strassen, Gaussian Elimination is not Optimal (1969).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tilewright.core.dtypes import FLOAT32, INT64
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.kernel.affine import affine
from tilewright.kernel.ir import (
    Axis,
    AxisVar,
    Buffer,
    Call,
    Const,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    Store,
    constant,
    dim_value,
    load,
    reduce_axes,
    select,
    walk,
)
from tilewright.lower.reindex import Refusal
from tilewright.lower.replace_sum import rebuilt, still_read, with_sum

NAME = "seven products of halves"
Array = npt.NDArray[Any]
_T = TypeVar("_T")
_Terms = tuple[tuple[int, int, int], ...]  # (row half, column half, sign)
# T[p], U[p] and what of P[p] goes to which quarter of C.
_LEFT: tuple[_Terms, ...] = (
    ((0, 0, 1), (1, 1, 1)),
    ((1, 0, 1), (1, 1, 1)),
    ((0, 0, 1),),
    ((1, 1, 1),),
    ((0, 0, 1), (0, 1, 1)),
    ((1, 0, 1), (0, 0, -1)),
    ((0, 1, 1), (1, 1, -1)),
)
_RIGHT: tuple[_Terms, ...] = (
    ((0, 0, 1), (1, 1, 1)),
    ((0, 0, 1),),
    ((0, 1, 1), (1, 1, -1)),
    ((1, 0, 1), (0, 0, -1)),
    ((1, 1, 1),),
    ((0, 0, 1), (0, 1, 1)),
    ((1, 0, 1), (1, 1, 1)),
)
_BACK: Mapping[tuple[int, int], tuple[tuple[int, int], ...]] = {  # (product, sign)
    (0, 0): ((0, 1), (3, 1), (4, -1), (6, 1)),
    (0, 1): ((2, 1), (4, 1)),
    (1, 0): ((1, 1), (3, 1)),
    (1, 1): ((0, 1), (2, 1), (5, 1), (1, -1)),
}
_NUM = len(_LEFT)
_SEVEN = Dim.of(_NUM)
_LEAST = 64  # of terms and columns: below, tiles of halves are not worth a thought
# Of one core, for predictions; weights are fetched while others are multiplied.
_FLOPS_PER_US, _CACHE_BYTES_PER_US, _MEMORY_BYTES_PER_US = 110_000, 100_000, 60_000
_GATHERED_BYTES_PER_US = 25_000  # where channels lie in blocks, which sums have to gather
_NEAR_BYTES = 14 << 20  # written and read of an image's sums and products; of more, most come late
_LEAST_GAIN, _LEAST_GAIN_OF_IMAGES = 0.02, 0.035
_BLOCK = 16  # channels that lie beside each other, at most
_USUAL_SIZE = 40  # of an image along an axis of unknown size; it pays from about 10 on
_IMAGE = "/image"  # ends the names of values whose channels may lie in blocks
# The seven weights take 7/4 of the room. So much more may they take in a network: a network that
# runs out of memory is slow as well, and others keep their weights about once.
_MORE_WEIGHTS = 0.25
_MORE_BYTES = 96 << 20  # of a small network


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """A part of the left operand's index: ``stride * axis + step * tap + offset``."""

    position: int
    axis: Axis
    stride: int
    tap: Axis | None
    step: int
    offset: int

    def span(self, extent: Dim) -> Dim:
        """Elements that so many windows reach."""
        taps = 1 if self.tap is None else self.tap.extent.const
        return (extent - 1) * self.stride + self.step * (taps - 1) + 1

    @property
    def place(self) -> Expr:
        """Where a window's element lies from the first one on."""
        start = self.axis.var * self.stride
        return start if self.tap is None else start + self.tap.var * self.step


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """A product in a kernel: its sum, operands, windows, and the axes that are halved."""

    kernel: Kernel
    total: Reduce
    data: Load
    weight: Load
    windows: tuple[_Window, ...]
    row: Axis
    column: Axis

    @property
    def depth(self) -> Axis:
        return self.total.axes[0]

    @property
    def taps(self) -> tuple[Axis, ...]:
        return self.total.axes[1:]

    @property
    def rows(self) -> tuple[Axis, ...]:
        """The axes of the product but for the columns, in order, the halved one halved."""
        axes = (axis for axis in self.kernel.stages[0].axes if axis.name != self.column.name)
        return tuple(_halved(axis) if axis.name == self.row.name else axis for axis in axes)

    @property
    def is_image(self) -> bool:
        """One image, whose channels may lie in blocks: so may halves of them."""
        return _is_image(self.kernel.stages[0].axes, self.column, self.depth)

    def place(self, seven: _T, rows: Sequence[_T], channel: _T) -> tuple[_T, ...]:
        """The order of what is handed on: of images, which of the seven stands for which image."""
        return (seven, channel, *rows[1:]) if self.is_image else (seven, *rows, channel)

    @property
    def spans(self) -> tuple[Dim, ...]:
        """Elements of each window's dim that one half of the rows reaches."""
        extents = {axis.name: axis.extent for axis in self.rows}
        return tuple(window.span(extents[window.axis.name]) for window in self.windows)


@dataclass(slots=True)
class Room:
    """Bytes that weights may take beyond those of the model."""

    num_bytes: float

    @classmethod
    def beside(cls, constants: Mapping[str, Array]) -> Room:
        """The room of a network with these constants."""
        total = sum(array.nbytes for array in constants.values())
        return cls(max(_MORE_WEIGHTS * total, _MORE_BYTES))

    def take(self, weight: Array) -> Refusal | None:
        """Takes what the seven weights need beyond the one that they replace."""
        more = (_NUM / 4 - 1) * weight.nbytes
        if more > self.num_bytes:
            return Refusal(
                f"its weights would take {more / 2**20:.1f} MiB more, and others take the room"
            )
        self.num_bytes -= more
        return None


def apply_strassen(
    kernel: Kernel, constants: Mapping[str, Array], log: DecisionLog, room: Room
) -> tuple[list[Kernel], dict[str, Array]]:
    """Replaces a product for which it pays and there is room; else the kernel stays."""
    found = _match(kernel, constants)
    if isinstance(found, _Product):
        found = room.take(constants[found.weight.buffer]) or found
    if isinstance(found, Refusal):
        if found.reason:
            log.add("strassen", "+".join(kernel.sources), "one product", ((NAME, found.reason),))
        return [kernel], {}
    log.add("strassen", "+".join(kernel.sources), f"{NAME}, error up to 1e-5 of the largest")
    out, kind = kernel.outputs[0].name, _IMAGE if found.is_image else ""
    depth, column = _halved(found.depth).extent, _halved(found.column).extent
    taps, rows = ([axis.extent for axis in axes] for axes in (found.taps, found.rows))
    sums = Buffer(f"{out}/strassen.t{kind}", FLOAT32, found.place(_SEVEN, found.spans, depth))
    products = Buffer(f"{out}/strassen.p{kind}", FLOAT32, found.place(_SEVEN, rows, column))
    weights = Buffer(f"{out}/strassen.u", FLOAT32, (_SEVEN, *taps, depth, column))
    kernels = [
        _sums_kernel(found, sums),
        _products_kernel(found, sums, weights, products),
        _output_kernel(found, products),
    ]
    return kernels, {weights.name: _combined(found, constants[found.weight.buffer])}


def is_image(name: str) -> bool:
    """True for values handed on whose channels may lie in blocks."""
    return name.endswith(_IMAGE)


# --- recognition ----------------------------------------------------------------------------------


def _match(kernel: Kernel, constants: Mapping[str, Array]) -> _Product | Refusal:
    """The product in a kernel; an empty reason means that there is none at all."""
    if not kernel.is_pure or kernel.stages[0].stores[0].guard is not None:
        return Refusal("")
    sums = [n for n in walk(kernel.stages[0].stores[0].value) if isinstance(n, Reduce)]
    if len(sums) != 1 or sums[0].combiner != "sum" or sums[0].dtype is not FLOAT32:
        return Refusal("")
    total = sums[0]
    if not (isinstance(total.body, Call) and total.body.op == "mul"):
        return Refusal("")
    loads = [one for arg in total.body.args if (one := _operand(arg)) is not None]
    if len(loads) != 2 or sum(one.buffer in constants for one in loads) != 1:
        return Refusal("")
    data, weight = sorted(loads, key=lambda one: one.buffer in constants)
    in_weight = _plain(weight.index, constants[weight.buffer].shape)
    columns = [axis for axis in kernel.stages[0].axes if axis.name in (in_weight or ())]
    used = sorted(name for name in in_weight or () if name)
    if len(columns) != 1 or used != sorted(axis.name for axis in (*total.axes, *columns)):
        return Refusal("")
    rows = [axis for axis in kernel.stages[0].axes if axis is not columns[0]]
    if not all(axis.extent.is_const for axis in (*columns, *total.axes)):
        return Refusal("a number of columns or terms is not known")
    is_image = _is_image(kernel.stages[0].axes, columns[0], total.axes[0])
    known = [axis for axis in rows if axis.extent.is_const or is_image]
    if not known:
        return Refusal("a number of rows is not known")
    windows = _windows(data, total, rows)
    if windows is None:
        return Refusal("")
    even = [axis for axis in known if not axis.extent.is_const or _is_even(axis.extent.const)]
    if not even or columns[0].extent.const % 2 or total.axes[0].extent.const % 2:
        return Refusal("a number of rows, columns or terms is odd")
    found = _Product(
        kernel=kernel,
        total=total,
        data=data,
        weight=weight,
        windows=windows,
        # Images stay apart where something else can be halved, so that chains go image by image.
        row=next((axis for axis in even if axis is not rows[0]), even[0]),
        column=columns[0],
    )
    return _unprofitable(found) or found


def _is_image(axes: Sequence[Axis], column: Axis, depth: Axis) -> bool:
    """One image whose channels, and halves of them, may lie in blocks."""
    whole = all(axis.extent.const % (2 * _BLOCK) == 0 for axis in (depth, column))
    return whole and len(axes) == 4 and axes[1] is column and axes[0].extent == Dim.of(1)


def _is_even(count: int) -> bool:
    return count > 1 and count % 2 == 0


def _operand(factor: Expr) -> Load | None:
    """A load, or one with zeros around it."""
    if isinstance(factor, Call) and factor.op == "select":
        otherwise = factor.args[2]
        if not (isinstance(otherwise, Const) and otherwise.value == 0):
            return None
        factor = factor.args[1]
    return factor if isinstance(factor, Load) else None


def _plain(index: Sequence[Expr], shape: Sequence[int]) -> list[str] | None:
    """The axes of an index whose parts are axes, "" for the only element of a dim."""
    found: list[str] = []
    for part, size in zip(index, shape, strict=True):
        if isinstance(part, AxisVar):
            found.append(part.name)
        elif isinstance(part, Const) and part.value == 0 and size == 1:
            found.append("")
        else:
            return None
    return found


def _windows(data: Load, total: Reduce, rows: Sequence[Axis]) -> tuple[_Window, ...] | None:
    """How the left operand is read: the depth by itself, each axis of rows in a window."""
    by_name = {axis.name: axis for axis in rows}
    taps = {axis.name: axis for axis in total.axes[1:]}
    found: list[_Window] = []
    depths = 0
    for position, part in enumerate(data.index):
        form = affine(part)
        factors = (*form.terms.values(), form.offset)
        if form.rest or not all(factor.is_const for factor in factors):
            return None
        if isinstance(part, AxisVar) and part.name == total.axes[0].name:
            depths += 1
            continue
        if isinstance(part, Const):
            continue
        outer = [name for name in form.terms if name in by_name]
        inner = [name for name in form.terms if name in taps]
        if len(outer) != 1 or len(inner) > 1 or len(outer) + len(inner) != len(form.terms):
            return None
        found.append(
            _Window(
                position=position,
                axis=by_name[outer[0]],
                stride=form.terms[outer[0]].const,
                tap=taps[inner[0]] if inner else None,
                step=form.terms[inner[0]].const if inner else 0,
                offset=form.offset.const,
            )
        )
    read = [window.axis.name for window in found]
    moved = [window.tap.name for window in found if window.tap is not None]
    is_whole = depths == 1 and sorted(read) == sorted(by_name) and sorted(moved) == sorted(taps)
    positive = all(window.stride > 0 and window.step >= 0 for window in found)
    return tuple(found) if is_whole and positive else None


def _unprofitable(product: _Product) -> Refusal | None:
    """Why it does not pay, by a prediction."""
    k, n = product.depth.extent.const, product.column.extent.const
    if min(k, n) < _LEAST:
        return Refusal(f"{min(k, n)} terms or columns are too few")
    least = _LEAST_GAIN_OF_IMAGES if product.is_image else _LEAST_GAIN
    rows = _points(product, (axis.extent for axis in product.rows))
    spans = _points(product, product.spans)
    taps = prod(axis.extent.const for axis in product.taps)
    whole_us = 2 * 2 * rows * n * k * taps / _FLOPS_PER_US
    moved_us = _moved_us(product, 4 * 2 * _NUM / 2 * (spans * k + rows * n))
    weights_us = 4 * (_NUM / 4 - 1) * k * n * taps / _MEMORY_BYTES_PER_US
    gain_us = whole_us / 8 - moved_us - weights_us
    if gain_us < least * whole_us:
        return Refusal(f"it would save {gain_us:.0f} us of {whole_us:.0f} us")
    return None


def _moved_us(product: _Product, num_bytes: float) -> float:
    """Time to write and read so much of sums and products."""
    if product.is_image:
        near = num_bytes <= _NEAR_BYTES
        return num_bytes / (_CACHE_BYTES_PER_US if near else _MEMORY_BYTES_PER_US)
    is_gathered = product.column.name != product.kernel.stages[0].axes[-1].name
    return num_bytes / (_GATHERED_BYTES_PER_US if is_gathered else _CACHE_BYTES_PER_US)


def _points(product: _Product, sizes: Iterable[Dim]) -> int:
    """The product of sizes after halving; those of images are usual ones where they are unknown,
    others 1.
    """
    usual = _USUAL_SIZE if product.is_image else 1
    points = prod(size.const if size.is_const else usual for size in sizes)
    return points if product.row.extent.is_const else points // 2


# --- rewriting ------------------------------------------------------------------------------------


def _halved(axis: Axis) -> Axis:
    return replace(axis, extent=(axis.extent + 1) // 2)


def _shifted(axis: Axis, half: int) -> Expr:
    """A place in one of the halves: the second one ends where the axis ends."""
    return axis.var + dim_value(axis.extent // 2) if half else axis.var


def _sums_kernel(product: _Product, sums: Buffer) -> Kernel:
    """A store for each of the seven left operands, with zeros around them."""
    source = next(b for b in product.kernel.inputs if b.name == product.data.buffer)
    depth = _halved(product.depth)
    axes = [Axis(f"t{k}", span) for k, span in enumerate(product.spans)]
    variables = [axis.var for axis in axes]
    if product.is_image:
        variables[0] = constant(0, INT64)

    def quarter(row: int, column: int) -> Expr:
        index = list(product.data.index)
        index[index.index(product.depth.var)] = _shifted(product.depth, column)
        guards: list[Expr] = []
        for window, axis, place in zip(product.windows, axes, variables, strict=True):
            first = Dim.of(window.offset)
            if row and window.axis.name == product.row.name:
                first += product.row.extent // 2 * window.stride
            at = place + dim_value(first)
            index[window.position] = at
            size = source.shape[window.position]
            if (first.const if first.is_const else window.offset) < 0:
                guards.append(at.ge(0))
            ends = (axis.extent + first, window.span(window.axis.extent) + window.offset)
            if not any((end - size).is_const and (end - size).const <= 0 for end in ends):
                guards.append(at.lt(dim_value(size)))
        value = load(source.name, FLOAT32, tuple(index))
        if not guards:
            return value
        inside = reduce(lambda left, right: left & right, guards)
        return select(inside, value, constant(0, FLOAT32))

    stores = tuple(
        Store(
            sums.name,
            product.place(dim_value(p), variables, depth.var),
            _signed_sum(terms, quarter),
        )
        for p, terms in enumerate(_LEFT)
    )
    return Kernel(
        name=f"{product.kernel.name}: sums of quarters",
        inputs=(source,),
        outputs=(sums,),
        stages=(Stage((depth, *axes[1:]) if product.is_image else (*axes, depth), stores),),
        sources=product.kernel.sources,
    )


def _signed_sum(terms: _Terms, quarter: Callable[[int, int], Expr]) -> Expr:
    """The first term's sign is always 1."""
    total = quarter(*terms[0][:2])
    for i, j, sign in terms[1:]:
        total = total + quarter(i, j) if sign == 1 else total - quarter(i, j)
    return total


def _products_kernel(product: _Product, sums: Buffer, weights: Buffer, products: Buffer) -> Kernel:
    point, depth, column = Axis("p", Dim.of(_NUM)), _halved(product.depth), _halved(product.column)
    rows = tuple(axis.var for axis in product.rows)
    taps = tuple(axis.var for axis in product.taps)
    left = sums[product.place(point.var, [w.place for w in product.windows], depth.var)]
    body = left * weights[(point.var, *taps, depth.var, column.var)]
    total = reduce_axes("sum", (*product.taps, depth), body)
    return Kernel(
        name=f"{product.kernel.name}: seven products",
        inputs=(sums, weights),
        outputs=(products,),
        stages=(
            Stage(
                product.place(point, product.rows, column),
                (Store(products.name, product.place(point.var, rows, column.var), total),),
            ),
        ),
        sources=product.kernel.sources,
    )


def _output_kernel(product: _Product, products: Buffer) -> Kernel:
    """A store for each quarter of the results, each through the kernel's epilogue."""
    rows, column = product.rows, _halved(product.column)
    variables = [axis.var for axis in rows]
    parts = [products[product.place(dim_value(p), variables, column.var)] for p in range(_NUM)]
    original = product.kernel.stages[0].stores[0]
    stores = []
    for (i, j), ((first, _), *rest) in _BACK.items():
        value = parts[first]
        for p, sign in rest:
            value = value + parts[p] if sign == 1 else value - parts[p]
        names = {
            product.row.name: _shifted(product.row, i),
            product.column.name: _shifted(product.column, j),
        }
        index = tuple(rebuilt(part, names) for part in original.index)
        whole = with_sum(original.value, product.total, value, names)
        is_twice = i == 1 and not product.row.extent.is_const  # where the number is odd
        begin = dim_value(_halved(product.row).extent - product.row.extent // 2)
        guard = product.row.var.ge(begin) if is_twice else None
        stores.append(Store(original.buffer, index, whole, guard))
    others = tuple(b for b in product.kernel.inputs if still_read(b.name, stores))
    halved = {product.column.name: column, **{axis.name: axis for axis in rows}}
    axes = tuple(halved[axis.name] for axis in product.kernel.stages[0].axes)
    return replace(
        product.kernel,
        name=f"{product.kernel.name}: sums of products",
        inputs=(products, *others),
        stages=(Stage(axes, tuple(stores)),),
    )


def _combined(product: _Product, weight: Array) -> Array:
    """The seven right operands (7, taps .., depth / 2, columns / 2)."""
    names = _plain(product.weight.index, weight.shape) or []
    order = [names.index(axis.name) for axis in (*product.taps, product.depth, product.column)]
    rest = [k for k in range(len(names)) if k not in order]
    wide = weight.transpose(*rest, *order).reshape([weight.shape[k] for k in order])
    wide = wide.astype(np.float64)
    k, n = (size // 2 for size in wide.shape[-2:])
    found = np.zeros((_NUM, *wide.shape[:-2], k, n))
    for p, terms in enumerate(_RIGHT):
        for i, j, sign in terms:
            found[p] += sign * wide[..., i * k : (i + 1) * k, j * n : (j + 1) * n]
    return found.astype(np.float32)
