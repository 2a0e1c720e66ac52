"""Winograd F(4x4, 3x3): 3x3 convolutions of stride 1 with a quarter of the multiplications.

Input -> Output: one convolution kernel -> three: input tiles transformed, 36 matrix products,
outputs.
    V[t, c] = B^T d B;  M[t, m] = sum(c: V[t, c] * U[c, m]);  Y = A^T M A, then the epilogue
Requires: float32, constant weights, one group, enough channels (``refusal`` says what is
missing).
Guarantees: weights are transformed in float64 and rounded once; results differ from direct sums
by up to 2e-5 of the largest value, which the decision records; borders of tiles never store
outside.
Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2015), section 4.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.dtypes import FLOAT32
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
    rebuild,
    reduce_axes,
    select,
    walk,
)
from tilewright.lower.reindex import Refusal

TILE, TAPS, POINTS = 4, 3, 6
_MIN_CHANNELS = 16
_MAX_RELATIVE_COST = 0.8
# Predicted microseconds use these rates (one core): operations and bytes a microsecond.
_FLOPS_PER_US, _CACHE_BYTES_PER_US, _DRAM_BYTES_PER_US = 100_000, 50_000, 25_000
_LARGE_WEIGHTS_BYTES = 8 << 20
_G = np.array(
    [
        [1 / 4, 0, 0],
        [-1 / 6, -1 / 6, -1 / 6],
        [-1 / 6, 1 / 6, -1 / 6],
        [1 / 24, 1 / 12, 1 / 6],
        [1 / 24, -1 / 12, 1 / 6],
        [0, 0, 1],
    ]
)
ONE = Dim.of(1)
_CHOSEN = "F(4x4, 3x3), error up to 2e-5 of the largest value"
_SINGLE_STORE_US = 0.005  # of one result, with its share of the transform, in scalar code
_USUAL_SIZE = 40  # of a symbolic height or width, for predictions
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Convolution:
    """A 3x3 convolution found in a kernel: its sum, operands and axes (n, m, h, w)."""

    kernel: Kernel
    total: Reduce
    data: Load
    weight: Load
    before: tuple[int, int]
    sizes: tuple[Dim, Dim]

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.kernel.stages[0].axes


def apply_winograd(
    kernels: Sequence[Kernel],
    constants: Mapping[str, Array],
    log: DecisionLog,
    row_major: Collection[str] = (),
) -> tuple[list[Kernel], dict[str, Array]]:
    """Replaces every convolution for which it pays.

    Args:
        row_major: names of buffers that are stored row by row, where tiles are written singly.
    """
    result: list[Kernel] = []
    added: dict[str, Array] = {}
    for kernel in kernels:
        found = _match(kernel, constants, row_major)
        if isinstance(found, Refusal):
            result.append(kernel)
            if found.reason:
                log.add("winograd", "+".join(kernel.sources), "direct", (("F(4x4)", found.reason),))
            continue
        log.add(
            "winograd", "+".join(kernel.sources), "F(4x4, 3x3), error up to 2e-5 of the largest"
        )
        kernels_made, name, array = _rewrite(found, constants)
        result.extend(kernels_made)
        added[name] = array
    return result, added


# --- recognition ----------------------------------------------------------------------------------


def _match(
    kernel: Kernel, constants: Mapping[str, Array], row_major: Collection[str]
) -> _Convolution | Refusal:
    """The convolution in a kernel; an empty reason means that there is none at all."""
    if not kernel.is_pure or len(kernel.stages[0].axes) != 4:
        return Refusal("")
    value = kernel.stages[0].stores[0].value
    sums = [node for node in walk(value) if isinstance(node, Reduce)]
    if len(sums) != 1 or len(sums[0].axes) != 3 or sums[0].combiner != "sum":
        return Refusal("")
    total = sums[0]
    if [axis.extent for axis in total.axes[1:]] != [Dim.of(TAPS)] * 2 or total.dtype is not FLOAT32:
        return Refusal("")
    if not (isinstance(total.body, Call) and total.body.op == "mul"):
        return Refusal("")
    left, weight = total.body.args
    data = left.args[1] if isinstance(left, Call) and left.op == "select" else left
    if isinstance(left, Call) and left.op == "select" and not _is_zero(left.args[2]):
        return Refusal("padding is not zero")
    if not (isinstance(data, Load) and isinstance(weight, Load)):
        return Refusal("")
    found = _windows(kernel, total, data, weight)
    if isinstance(found, Refusal):
        return found
    if weight.buffer not in constants:
        return Refusal("the weights are not constant")
    singly = kernel.outputs[0].name in row_major
    return found if (reason := _unprofitable(found, singly)) is None else Refusal(reason)


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.value == 0


def _windows(kernel: Kernel, total: Reduce, data: Load, weight: Load) -> _Convolution | Refusal:
    n, m, *spatial = kernel.stages[0].axes
    c, *taps = total.axes
    if weight.index != (m.var, c.var, *(tap.var for tap in taps)):
        return Refusal("")
    if data.index[:2] != (n.var, c.var):
        return Refusal("the convolution has groups")
    before: list[int] = []
    for axis, tap, index in zip(spatial, taps, data.index[2:], strict=True):
        form = affine(index)
        if form.rest or form.terms != {axis.name: ONE, tap.name: ONE}:
            return Refusal("stride or dilation is not 1")
        if not form.offset.is_const:
            return Refusal("the padding is not known")
        before.append(-form.offset.const)
    shape = next(buffer.shape for buffer in kernel.inputs if buffer.name == data.buffer)
    return _Convolution(
        kernel=kernel,
        total=total,
        data=data,
        weight=weight,
        before=(before[0], before[1]),
        sizes=(shape[2], shape[3]),
    )


def _unprofitable(conv: _Convolution, singly: bool) -> str | None:
    """The reason against the transform, or None; ``singly``: results are stored one by one."""
    depth, filters = conv.total.axes[0].extent, conv.axes[1].extent
    if not depth.is_const or not filters.is_const:
        return "the number of channels is not known"
    c, m = depth.const, filters.const
    if min(c, m) < _MIN_CHANNELS:
        return f"{min(c, m)} channels are too few"
    batch, height, width = (conv.axes[k].extent for k in (0, 2, 3))
    n, h, w = (
        d.const if d.is_const else default for d, default in ((batch, 1), (height, 40), (width, 40))
    )
    tiles = n * -(-h // TILE) * -(-w // TILE)
    points = POINTS * POINTS
    weights = points * c * m * 4
    rate = _DRAM_BYTES_PER_US if weights > _LARGE_WEIGHTS_BYTES else _CACHE_BYTES_PER_US
    moved = 2 * 4 * points * tiles * (c + m)
    direct = 2 * n * h * w * c * m * TAPS * TAPS / _FLOPS_PER_US
    ours = 2 * points * tiles * c * m / _FLOPS_PER_US + weights / rate + moved / _CACHE_BYTES_PER_US
    if singly:
        ours += n * h * w * m * _SINGLE_STORE_US
    if ours > _MAX_RELATIVE_COST * direct:
        return f"it would take {ours:.0f} us, direct sums {direct:.0f} us"
    return None


def _size(dim: Dim, usual: int) -> int:
    return dim.const if dim.is_const else usual


# --- rewriting ------------------------------------------------------------------------------------


def _rewrite(conv: _Convolution, constants: Mapping[str, Array]) -> tuple[list[Kernel], str, Array]:
    n, m, h, w = conv.axes
    c = conv.total.axes[0]
    rows = Axis("th", h.extent.ceildiv(TILE))
    columns = Axis("tw", w.extent.ceildiv(TILE))
    points = Dim.of(POINTS * POINTS)
    out = conv.kernel.outputs[0]
    label = f"{out.name}/winograd"
    shape = (points, n.extent, rows.extent, columns.extent)
    tiles = Buffer(f"{label}.v", FLOAT32, (*shape, c.extent))
    products = Buffer(f"{label}.m", FLOAT32, (*shape, m.extent))
    weights = Buffer(f"{label}.u", FLOAT32, (points, c.extent, m.extent))
    transformed = _G @ constants[conv.weight.buffer].astype(np.float64) @ _G.T
    array = transformed.transpose(2, 3, 1, 0).reshape(
        POINTS * POINTS, c.extent.const, m.extent.const
    )
    kernels = [
        _input_kernel(conv, tiles, (n, rows, columns, Axis("c", c.extent))),
        _product_kernel(conv, tiles, weights, products),
        _output_kernel(conv, products, (n, m, rows, columns)),
    ]
    return kernels, weights.name, np.ascontiguousarray(array.astype(np.float32))


def _input_kernel(conv: _Convolution, tiles: Buffer, axes: tuple[Axis, ...]) -> Kernel:
    """36 stores of one tile: ``B^T d B`` with guarded loads of a 6x6 patch."""
    n, rows, columns, c = axes
    patch: list[list[Expr]] = []
    for i in range(POINTS):
        y = rows.var * TILE + (i - conv.before[0])
        line: list[Expr] = []
        for j in range(POINTS):
            x = columns.var * TILE + (j - conv.before[1])
            value = load(conv.data.buffer, FLOAT32, (n.var, c.var, y, x))
            inside = y.ge(0) & y.lt(dim_value(conv.sizes[0]))
            inside = inside & x.ge(0) & x.lt(dim_value(conv.sizes[1]))
            line.append(select(inside, value, constant(0, FLOAT32)))
        patch.append(line)
    done = _both_ways(patch, _input_transform)
    stores = tuple(
        Store(
            tiles.name,
            (dim_value(i * POINTS + j), n.var, rows.var, columns.var, c.var),
            done[i][j],
        )
        for i in range(POINTS)
        for j in range(POINTS)
    )
    source = next(b for b in conv.kernel.inputs if b.name == conv.data.buffer)
    return Kernel(
        name=f"{conv.kernel.name}: input tiles",
        inputs=(source,),
        outputs=(tiles,),
        stages=(Stage((n, rows, columns, c), stores),),
        sources=conv.kernel.sources,
    )


def _product_kernel(conv: _Convolution, tiles: Buffer, weights: Buffer, products: Buffer) -> Kernel:
    axes = tuple(Axis(f"i{k}", size) for k, size in enumerate(products.shape))
    point, *tile, m = axes
    c = conv.total.axes[0]
    body = (
        tiles[(point.var, *(axis.var for axis in tile), c.var)] * weights[point.var, c.var, m.var]
    )
    value = reduce_axes("sum", (c,), body)
    store = Store(products.name, tuple(axis.var for axis in axes), value)
    return Kernel(
        name=f"{conv.kernel.name}: products",
        inputs=(tiles, weights),
        outputs=(products,),
        stages=(Stage(axes, (store,)),),
        sources=conv.kernel.sources,
    )


def _output_kernel(conv: _Convolution, products: Buffer, axes: tuple[Axis, ...]) -> Kernel:
    """16 stores of one tile: ``A^T M A``, each through the convolution's epilogue."""
    n, m, rows, columns = axes
    grid = [
        [
            products[dim_value(i * POINTS + j), n.var, rows.var, columns.var, m.var]
            for j in range(POINTS)
        ]
        for i in range(POINTS)
    ]
    done = _both_ways(grid, _output_transform)
    height, width = conv.axes[2].extent, conv.axes[3].extent
    original = conv.kernel.stages[0].stores[0]
    stores: list[Store] = []
    for i in range(TILE):
        y = rows.var * TILE + i
        for j in range(TILE):
            x = columns.var * TILE + j
            names = {conv.axes[2].name: y, conv.axes[3].name: x}
            guards = [
                at.lt(dim_value(size))
                for at, size, k in ((y, height, i), (x, width, j))
                if not _always(size, k)
            ]
            stores.append(
                Store(
                    original.buffer,
                    (n.var, m.var, y, x),
                    _with_sum(original.value, conv.total, done[i][j], names),
                    None
                    if not guards
                    else guards[0]
                    if len(guards) == 1
                    else guards[0] & guards[1],
                )
            )
    others = tuple(b for b in conv.kernel.inputs if _still_read(b.name, stores))
    return replace(
        conv.kernel,
        name=f"{conv.kernel.name}: output tiles",
        inputs=(products, *others),
        stages=(Stage((n, m, rows, columns), tuple(stores)),),
    )


def _always(size: Dim, offset: int) -> bool:
    """True when ``4*t + offset`` is inside for every tile."""
    return size.is_const and (size.const % TILE == 0 or offset < size.const % TILE)


def _still_read(name: str, stores: Sequence[Store]) -> bool:
    return any(isinstance(n, Load) and n.buffer == name for s in stores for n in walk(s.value))


def _with_sum(root: Expr, total: Reduce, value: Expr, names: Mapping[str, Expr]) -> Expr:
    """The epilogue at another place, with the sum replaced by a value."""
    done: dict[int, Expr] = {}
    inside = {id(node) for node in walk(total)}
    for node in walk(root):
        if node is total:
            done[id(node)] = value
        elif isinstance(node, AxisVar):
            done[id(node)] = names.get(node.name, node)
        elif id(node) in inside and any(id(child) not in done for child in node.children):
            continue
        else:
            done[id(node)] = rebuild(node, [done[id(child)] for child in node.children])
    return done[id(root)]


def _both_ways(grid: list[list[Expr]], one: Any) -> list[list[Expr]]:
    """A transform over columns, then over rows."""
    across = [one(row) for row in grid]
    down = [one([row[j] for row in across]) for j in range(len(across[0]))]
    return [[down[j][i] for j in range(len(down))] for i in range(len(down[0]))]


def _input_transform(d: Sequence[Expr]) -> list[Expr]:
    """``B^T d`` for six values."""
    even, odd = d[4] - d[2] * 4.0, d[3] - d[1] * 4.0
    near, far = d[4] - d[2], (d[3] - d[1]) * 2.0
    return [
        d[0] * 4.0 - d[2] * 5.0 + d[4],
        even + odd,
        even - odd,
        near + far,
        near - far,
        d[1] * 4.0 - d[3] * 5.0 + d[5],
    ]


def _output_transform(m: Sequence[Expr]) -> list[Expr]:
    """``A^T m`` for six values."""
    sum1, difference1 = m[1] + m[2], m[1] - m[2]
    sum2, difference2 = m[3] + m[4], m[3] - m[4]
    return [
        m[0] + sum1 + sum2,
        difference1 + difference2 * 2.0,
        sum1 + sum2 * 4.0,
        difference1 + difference2 * 8.0 + m[5],
    ]
