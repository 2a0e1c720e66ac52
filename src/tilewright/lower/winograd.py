"""Winograd: 3x3 convolutions of stride 1 with a quarter (or 4/9) of the multiplications.

Input -> Output: one convolution kernel -> three: input tiles transformed, 36 (or 16) matrix
products, outputs.
    V[t, c] = B^T d B;  M[t, m] = sum(c: V[t, c] * U[c, m]);  Y = A^T M A, then the epilogue
Requires: float32, constant weights, one group, enough channels (``refusal`` says what is
missing).
Guarantees: weights are transformed in float64 and rounded once; the decision records by how much
results may differ from direct sums; borders of tiles never store outside.
Not here: the algebra of tiles (winograd_schemes).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

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
    constant,
    dim_value,
    load,
    reduce_axes,
    select,
    walk,
)
from tilewright.lower.reindex import Refusal
from tilewright.lower.replace_sum import still_read, with_sum
from tilewright.lower.winograd_schemes import F2, F4, SCHEMES, TAPS, Array, Scheme, both_ways

_MIN_CHANNELS = 16
_MAX_RELATIVE_COST = 0.8
# Predicted microseconds use these rates (one core): operations and bytes a microsecond.
_FLOPS_PER_US, _CACHE_BYTES_PER_US, _DRAM_BYTES_PER_US = 100_000, 50_000, 25_000
_LARGE_WEIGHTS_BYTES = 8 << 20
ONE = Dim.of(1)
_SINGLE_STORE_US = 0.005  # of one result, with its share of the transform, in scalar code
_USUAL_SIZE = 40  # of a symbolic height or width, for predictions
_LARGER_IS_WORTH = 1.1  # what smaller tiles have to save, as predictions are rough


@dataclass(frozen=True, slots=True, kw_only=True)
class _Convolution:
    """A 3x3 convolution found in a kernel: its sum, operands and axes (n, m, h, w)."""

    kernel: Kernel
    total: Reduce
    data: Load
    weight: Load
    before: tuple[int, int]
    sizes: tuple[Dim, Dim]
    scheme: Scheme = F4

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
                log.add("winograd", "+".join(kernel.sources), "direct", ((F4.name, found.reason),))
            continue
        scheme = found.scheme
        bound = f"{scheme.name}, error up to {scheme.error} of the largest"
        log.add("winograd", "+".join(kernel.sources), bound)
        kernels_made, name, array = _rewrite(found, constants)
        result.extend(kernels_made)
        added[name] = array
    return result, added


def is_profitable(
    kernel: Kernel, constants: Mapping[str, Array], row_major: Collection[str] = ()
) -> bool:
    """True where ``apply_winograd`` would replace a convolution."""
    return not isinstance(_match(kernel, constants, row_major), Refusal)


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
    scheme = _profitable(found, singly)
    return scheme if isinstance(scheme, Refusal) else replace(found, scheme=scheme)


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


def _profitable(conv: _Convolution, singly: bool) -> Scheme | Refusal:
    """The fastest scheme, if one is faster; ``singly``: results are stored one by one."""
    depth, filters = conv.total.axes[0].extent, conv.axes[1].extent
    if not depth.is_const or not filters.is_const:
        return Refusal("the number of channels is not known")
    c, m = depth.const, filters.const
    if min(c, m) < _MIN_CHANNELS:
        return Refusal(f"{min(c, m)} channels are too few")
    n, h, w = (
        _size(conv.axes[k].extent, usual)
        for k, usual in ((0, 1), (2, _USUAL_SIZE), (3, _USUAL_SIZE))
    )
    direct = 2 * n * h * w * c * m * TAPS * TAPS / _FLOPS_PER_US + _read_us(TAPS * TAPS * c * m)
    times: list[float] = []
    for scheme in SCHEMES:
        tiles = n * -(-h // scheme.tile) * -(-w // scheme.tile)
        points = scheme.points * scheme.points
        us = 2 * points * tiles * c * m / _FLOPS_PER_US + _read_us(points * c * m)
        us += 2 * 4 * points * tiles * (c + m) / _CACHE_BYTES_PER_US
        times.append(us + (n * h * w * m * _SINGLE_STORE_US if singly else 0))
    large, small = times
    us, scheme = (large, F4) if large <= _LARGER_IS_WORTH * small else (small, F2)
    if us > _MAX_RELATIVE_COST * direct:
        return Refusal(f"it would take {us:.0f} us, direct sums {direct:.0f} us")
    return scheme


def _read_us(weights: int) -> float:
    """Time to read float32 weights, which other layers' push out of the caches if they are many."""
    size = 4 * weights
    return size / (_DRAM_BYTES_PER_US if size > _LARGE_WEIGHTS_BYTES else _CACHE_BYTES_PER_US)


def _size(dim: Dim, usual: int) -> int:
    return dim.const if dim.is_const else usual


# --- rewriting ------------------------------------------------------------------------------------


def _rewrite(conv: _Convolution, constants: Mapping[str, Array]) -> tuple[list[Kernel], str, Array]:
    n, m, h, w = conv.axes
    c = conv.total.axes[0]
    scheme = conv.scheme
    rows = Axis("th", h.extent.ceildiv(scheme.tile))
    columns = Axis("tw", w.extent.ceildiv(scheme.tile))
    points = Dim.of(scheme.points * scheme.points)
    out = conv.kernel.outputs[0]
    label = f"{out.name}/winograd"
    shape = (points, n.extent, rows.extent, columns.extent)
    tiles = Buffer(f"{label}.v", FLOAT32, (*shape, c.extent))
    products = Buffer(f"{label}.m", FLOAT32, (*shape, m.extent))
    weights = Buffer(f"{label}.u", FLOAT32, (points, c.extent, m.extent))
    kernels = [
        _input_kernel(conv, tiles, (n, rows, columns, Axis("c", c.extent))),
        _product_kernel(conv, tiles, weights, products),
        _output_kernel(conv, products, (n, m, rows, columns)),
    ]
    return kernels, weights.name, scheme.transformed(constants[conv.weight.buffer])


def _input_kernel(conv: _Convolution, tiles: Buffer, axes: tuple[Axis, ...]) -> Kernel:
    """A store for each point of a tile: ``B^T d B`` with guarded loads of a patch."""
    n, rows, columns, c = axes
    tile, points = conv.scheme.tile, conv.scheme.points
    patch: list[list[Expr]] = []
    for i in range(points):
        y = rows.var * tile + (i - conv.before[0])
        line: list[Expr] = []
        for j in range(points):
            x = columns.var * tile + (j - conv.before[1])
            value = load(conv.data.buffer, FLOAT32, (n.var, c.var, y, x))
            inside = y.ge(0) & y.lt(dim_value(conv.sizes[0]))
            inside = inside & x.ge(0) & x.lt(dim_value(conv.sizes[1]))
            line.append(select(inside, value, constant(0, FLOAT32)))
        patch.append(line)
    done = both_ways(patch, conv.scheme.into)
    stores = tuple(
        Store(
            tiles.name,
            (dim_value(i * points + j), n.var, rows.var, columns.var, c.var),
            done[i][j],
        )
        for i in range(points)
        for j in range(points)
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
    """A store for each result of a tile: ``A^T M A``, each through the convolution's epilogue."""
    n, m, rows, columns = axes
    tile, points = conv.scheme.tile, conv.scheme.points
    grid = [
        [
            products[dim_value(i * points + j), n.var, rows.var, columns.var, m.var]
            for j in range(points)
        ]
        for i in range(points)
    ]
    done = both_ways(grid, conv.scheme.back)
    height, width = conv.axes[2].extent, conv.axes[3].extent
    original = conv.kernel.stages[0].stores[0]
    stores: list[Store] = []
    for i in range(tile):
        y = rows.var * tile + i
        for j in range(tile):
            x = columns.var * tile + j
            names = {conv.axes[2].name: y, conv.axes[3].name: x}
            guards = [
                at.lt(dim_value(size))
                for at, size, k in ((y, height, i), (x, width, j))
                if not _always(size, k, tile)
            ]
            stores.append(
                Store(
                    original.buffer,
                    (n.var, m.var, y, x),
                    with_sum(original.value, conv.total, done[i][j], names),
                    None
                    if not guards
                    else guards[0]
                    if len(guards) == 1
                    else guards[0] & guards[1],
                )
            )
    others = tuple(b for b in conv.kernel.inputs if still_read(b.name, stores))
    return replace(
        conv.kernel,
        name=f"{conv.kernel.name}: output tiles",
        inputs=(products, *others),
        stages=(Stage((n, rows, columns, m), tuple(stores)),),
    )


def _always(size: Dim, offset: int, tile: int) -> bool:
    """True when ``tile*t + offset`` is inside for every tile."""
    return size.is_const and (size.const % tile == 0 or offset < size.const % tile)
