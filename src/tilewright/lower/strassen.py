"""Strassen: matrix products with constant weights by seven products of halves instead of eight.

Input -> Output: one kernel whose sum is a matrix product -> three: sums of quarters of the left
matrix, seven products, sums of these with the epilogue.
    C = A B;  T[p] = sums of A's quarters;  P[p] = T[p] U[p];  C's quarters = sums of P
Requires: float32, a constant right matrix, even and known numbers of rows, columns and depth
(``refusal`` says what is missing); applied where the saved multiplications take longer than moving
the sums.
Guarantees: sums of weights are made in float64 and rounded once; the decision is recorded, as the
order of sums differs from the model's.
Source: Strassen, Gaussian Elimination is not Optimal (1969).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.dtypes import FLOAT32
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.kernel.affine import affine
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Call,
    Const,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    Store,
    dim_value,
    load,
    reduce_axes,
    walk,
)
from tilewright.lower.reindex import Refusal
from tilewright.lower.replace_sum import rebuilt, still_read, with_sum

NAME = "seven products of halves"
Array = npt.NDArray[Any]
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
_LEAST = 64  # of depth and columns: below, tiles of halves are not worth a thought
# Of one core, for predictions; weights are fetched while others are multiplied.
_FLOPS_PER_US, _CACHE_BYTES_PER_US, _MEMORY_BYTES_PER_US = 110_000, 100_000, 60_000
_LEAST_GAIN = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """A matrix product in a kernel: its sum, operands, and the axes that are halved."""

    kernel: Kernel
    total: Reduce
    data: Load
    weight: Load
    row: Axis
    column: Axis

    @property
    def depth(self) -> Axis:
        return self.total.axes[0]

    @property
    def rows(self) -> tuple[Axis, ...]:
        """The axes of the product but for the columns, in order, the halved one halved."""
        axes = (axis for axis in self.kernel.stages[0].axes if axis.name != self.column.name)
        return tuple(_halved(axis) if axis.name == self.row.name else axis for axis in axes)


def apply_strassen(
    kernel: Kernel,
    constants: Mapping[str, Array],
    log: DecisionLog,
) -> tuple[list[Kernel], dict[str, Array]]:
    """Replaces a matrix product for which it pays; else the kernel stays."""
    found = _match(kernel, constants)
    if isinstance(found, Refusal):
        if found.reason:
            log.add("strassen", "+".join(kernel.sources), "one product", ((NAME, found.reason),))
        return [kernel], {}
    log.add("strassen", "+".join(kernel.sources), f"{NAME}, error up to 1e-5 of the largest")
    out = kernel.outputs[0].name
    seven = (Dim.of(_NUM), *(axis.extent for axis in found.rows))
    depth, column = _halved(found.depth), _halved(found.column)
    sums = Buffer(f"{out}/strassen.t", FLOAT32, (*seven, depth.extent))
    products = Buffer(f"{out}/strassen.p", FLOAT32, (*seven, column.extent))
    weights = Buffer(f"{out}/strassen.u", FLOAT32, (Dim.of(_NUM), depth.extent, column.extent))
    kernels = [
        _sums_kernel(found, sums),
        _products_kernel(found, sums, weights, products),
        _output_kernel(found, products),
    ]
    return kernels, {weights.name: _combined(found, constants[found.weight.buffer])}


# --- recognition ----------------------------------------------------------------------------------


def _match(kernel: Kernel, constants: Mapping[str, Array]) -> _Product | Refusal:
    """The product in a kernel; an empty reason means that there is none at all."""
    if not kernel.is_pure or kernel.stages[0].stores[0].guard is not None:
        return Refusal("")
    sums = [n for n in walk(kernel.stages[0].stores[0].value) if isinstance(n, Reduce)]
    if len(sums) != 1 or sums[0].combiner != "sum" or sums[0].dtype is not FLOAT32:
        return Refusal("")
    total = sums[0]
    if any(axis.extent != Dim.of(1) for axis in total.axes[1:]):
        return Refusal("")
    if not (isinstance(total.body, Call) and total.body.op == "mul"):
        return Refusal("")
    loads = [arg for arg in total.body.args if isinstance(arg, Load)]
    if len(loads) != 2 or sum(one.buffer in constants for one in loads) != 1:
        return Refusal("")
    data, weight = sorted(loads, key=lambda one: one.buffer in constants)
    axes = _halved_axes(kernel, total, data, weight)
    if isinstance(axes, Refusal):
        return axes
    if constants[weight.buffer].size != total.axes[0].extent.const * axes[1].extent.const:
        return Refusal("its weights are a part of a constant")
    found = _Product(
        kernel=kernel, total=total, data=data, weight=weight, row=axes[0], column=axes[1]
    )
    return _unprofitable(found) or found


def _halved_axes(
    kernel: Kernel, total: Reduce, data: Load, weight: Load
) -> tuple[Axis, Axis] | Refusal:
    """The axis of rows and that of columns."""
    depth, *taps = total.axes
    axes = kernel.stages[0].axes
    held = [_names(one.index) for one in (data, weight)]
    if any(names is None for names in held):
        return Refusal("")
    in_data, in_weight = ([name for name in names or () if name] for names in held)
    ones = {axis.name for axis in taps}
    columns = [axis for axis in axes if axis.name in in_weight]
    if sorted(set(in_weight) - ones) != sorted({depth.name, *(a.name for a in columns)}):
        return Refusal("")
    rows = [axis for axis in axes if axis.name not in in_weight]
    if len(columns) != 1 or in_data.count(depth.name) != 1:
        return Refusal("")
    if sorted(set(in_data) - ones) != sorted({depth.name, *(axis.name for axis in rows)}):
        return Refusal("")
    if not all(axis.extent.is_const for axis in (*rows, *columns, depth)):
        return Refusal("a number of rows or columns is not known")
    even = [axis for axis in rows if axis.extent.const % 2 == 0 and axis.extent.const > 1]
    if not even or columns[0].extent.const % 2 or depth.extent.const % 2:
        return Refusal("a number of rows, columns or terms is odd")
    return even[0], columns[0]


def _names(index: Sequence[Expr]) -> list[str] | None:
    """The axis of each part of an index, "" for a constant; None for anything else."""
    found: list[str] = []
    for part in index:
        form = affine(part)
        if form.rest or any(factor != Dim.of(1) for factor in form.terms.values()):
            return None
        if form.offset != Dim.of(0) and (form.terms or not isinstance(part, Const)):
            return None
        found += list(form.terms) or [""]
    return found


def _unprofitable(product: _Product) -> Refusal | None:
    """Why it does not pay, by a prediction."""
    m = prod(axis.extent.const for axis in product.rows) * 2
    k, n = product.depth.extent.const, product.column.extent.const
    if min(k, n) < _LEAST:
        return Refusal(f"{min(k, n)} terms or columns are too few")
    if product.column.name != product.kernel.stages[0].axes[-1].name:
        return Refusal("its columns are channels of images, which are stored in blocks")
    whole_us = 2 * m * n * k / _FLOPS_PER_US
    moved_us = 4 * 2 * _NUM / 4 * m * (k + n) / _CACHE_BYTES_PER_US
    weights_us = 4 * (_NUM / 4 - 1) * k * n / _MEMORY_BYTES_PER_US
    gain_us = whole_us / 8 - moved_us - weights_us
    if gain_us < _LEAST_GAIN * whole_us:
        return Refusal(f"it would save {gain_us:.0f} us of {whole_us:.0f} us")
    return None


# --- rewriting ------------------------------------------------------------------------------------


def _halved(axis: Axis) -> Axis:
    return replace(axis, extent=axis.extent // 2)


def _shifted(axis: Axis, half: int) -> Expr:
    return axis.var + dim_value(axis.extent // 2) if half else axis.var


def _sums_kernel(product: _Product, sums: Buffer) -> Kernel:
    """A store for each of the seven left matrices, whose rows lie one after the other."""
    depth = _halved(product.depth)
    place = [*(axis.var for axis in product.rows), depth.var]

    def quarter(row: int, column: int) -> Expr:
        names = {
            product.row.name: _shifted(product.row, row),
            product.depth.name: _shifted(product.depth, column),
            **{axis.name: dim_value(0) for axis in product.total.axes[1:]},
        }
        return rebuilt(product.data, names)

    stores = tuple(
        Store(sums.name, (dim_value(p), *place), _signed_sum(terms, quarter))
        for p, terms in enumerate(_LEFT)
    )
    source = next(b for b in product.kernel.inputs if b.name == product.data.buffer)
    return Kernel(
        name=f"{product.kernel.name}: sums of quarters",
        inputs=(source,),
        outputs=(sums,),
        stages=(Stage((*product.rows, depth), stores),),
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
    body = sums[(point.var, *rows, depth.var)] * weights[point.var, depth.var, column.var]
    index = (point.var, *rows, column.var)
    store = Store(products.name, index, reduce_axes("sum", (depth,), body))
    return Kernel(
        name=f"{product.kernel.name}: seven products",
        inputs=(sums, weights),
        outputs=(products,),
        stages=(Stage((point, *product.rows, column), (store,)),),
        sources=product.kernel.sources,
    )


def _output_kernel(product: _Product, products: Buffer) -> Kernel:
    """A store for each quarter of the results, each through the kernel's epilogue."""
    rows, column = product.rows, _halved(product.column)
    place = (*(axis.var for axis in rows), column.var)
    parts = [load(products.name, FLOAT32, (dim_value(p), *place)) for p in range(_NUM)]
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
        stores.append(Store(original.buffer, index, whole, None))
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
    """The seven right matrices (7, depth / 2, columns / 2)."""
    names = _names(product.weight.index) or []
    order = [names.index(axis.name) for axis in (product.depth, product.column)]
    rest = [k for k in range(len(names)) if k not in order]  # taps, of size 1
    sizes = [product.depth.extent.const, product.column.extent.const]
    matrix = weight.transpose(*order, *rest).reshape(sizes)
    k, n = (size // 2 for size in matrix.shape)
    wide = matrix.astype(np.float64)
    found = np.zeros((_NUM, k, n))
    for p, terms in enumerate(_RIGHT):
        for i, j, sign in terms:
            found[p] += sign * wide[i * k : (i + 1) * k, j * n : (j + 1) * n]
    return found.astype(np.float32)
