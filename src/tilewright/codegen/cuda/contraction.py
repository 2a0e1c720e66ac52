"""Contractions of half-precision values on tensor cores, with whatever surrounds the sum.

    out[m, n] = f(sum_k a(m, k) * b(n, k), ..)
    ->  blocks of outputs; operands go through shared memory in chunks of 8, sums stay in registers
Matrix products, batched ones, and convolutions (whose operand is read with a guard: an implicit
matrix) are the same here: rows are the axes of one operand alone, columns those of the other.
Requires: factors that float16 holds exactly: values that are stored so, zeros around them.
Guarantees: sums are float32, in an order that does not depend on the run.
Not here: the code of a block (tensor_core.cuh).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from tilewright.codegen.cuda.layout import layout_of
from tilewright.codegen.cuda.plan import ONE, Draft, Refusal, Shape
from tilewright.codegen.cuda.tile import Tile, choose_tile
from tilewright.codegen.cuda.writer import Writer
from tilewright.core.dtypes import FLOAT16, FLOAT32
from tilewright.core.shape import Dim, product
from tilewright.kernel.affine import Affine
from tilewright.kernel.ir import (
    Axis,
    Call,
    Cast,
    Const,
    Expr,
    Kernel,
    Load,
    Reduce,
    constant,
    select,
    walk,
)
from tilewright.kernel.nest import prepare

NAME = "tensor_core"
_CHUNK = 8
_SHORT, FEW = 16, 8
_AXES = 4  # of a place in tensor_core.cuh


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One factor: its value in float16, the axes that only it depends on.

    Attributes:
        deep: chunks run along the depth, else along ``axes``.
        source: the load that a chunk copies, where its 8 elements lie side by side; else None, and
            each element is computed.
    """

    value: Expr
    axes: tuple[Axis, ...]
    deep: bool
    source: Load | None


def contraction(draft: Draft, writer: Writer, disabled: Collection[str]) -> Shape | Refusal:
    """Writes the stage, or says why not."""
    if NAME in disabled:
        return Refusal(NAME, "disabled")
    found = _match(draft, writer)
    if isinstance(found, str):
        return Refusal(NAME, found)
    node, left, right = found
    extents = [product(a.extent for a in side.axes) for side in (left, right)]
    depth = product(axis.extent for axis in draft.nest.reduce_axes[id(node)])
    own = {axis.name for side in (left, right) for axis in side.axes}
    batch = [axis for axis in draft.nest.axes if axis.name not in own]
    count = product(axis.extent for axis in batch)
    if depth.is_const and depth.const < _SHORT:
        return Refusal(NAME, f"a depth of {depth.const}")
    for what, extent in zip(("rows", "columns"), extents, strict=True):
        if extent.is_const and extent.const < FEW and count != ONE:
            return Refusal(NAME, f"{what} of {extent.const} in each of many products")
    if max(len(left.axes), len(right.axes), len(draft.nest.reduce_axes[id(node)])) > _AXES:
        return Refusal(NAME, f"an operand has more than {_AXES} axes")
    tile = choose_tile(extents[0], extents[1], depth, count)
    tile = tile.pipelined(depth, left.deep, right.deep)
    _write(draft, writer, node, left, right, batch, tile)
    tiles = extents[0].ceildiv(tile.rows) * extents[1].ceildiv(tile.columns) * count
    return Shape(
        tactic=f"{NAME}({tile.text}{'' if left.source else ', rows computed'}"
        f"{'' if right.source else ', columns computed'})",
        grid=(tiles, ONE, ONE),
        threads=tile.threads,
        shared_bytes=tile.shared_bytes(left.deep, right.deep),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """A contraction of known sizes: ``count`` products of ``rows`` x ``depth`` x ``columns``."""

    sum: Reduce
    rows: int
    columns: int
    depth: int
    count: int


def sizes_of(kernel: Kernel) -> Sizes | None:
    """The sizes of a kernel that is one contraction for tensor cores; None for any other."""
    if len(kernel.stages) != 1 or kernel.steps is not None:
        return None
    draft = Draft(kernel=kernel, nest=prepare(kernel, kernel.stages[0]), layout=layout_of(kernel))
    found = _match(draft, draft.writer())
    if isinstance(found, str):
        return None
    node, left, right = found
    own = {axis.name for side in (left, right) for axis in side.axes}
    batch = [axis for axis in draft.nest.axes if axis.name not in own]
    extents = [
        product(axis.extent for axis in axes) for axes in (left.axes, right.axes, node.axes, batch)
    ]
    if not all(extent.is_const for extent in extents):
        return None
    rows, columns, depth, count = (extent.const for extent in extents)
    return Sizes(sum=node, rows=rows, columns=columns, depth=depth, count=count)


# --- legality -------------------------------------------------------------------------------------


def _match(draft: Draft, writer: Writer) -> tuple[Reduce, Operand, Operand] | str:
    """The sum and its factors, or why there are none."""
    nest = draft.nest
    if any(axis.ordered for axis in nest.axes):
        return "an axis is ordered"
    if len(nest.stage.stores) != 1 or nest.stage.stores[0].guard is not None:
        return "not one store without a guard"
    if any(isinstance(n, Load) and n.buffer in writer.stored for n in walk(*nest.stage.roots)):
        return "it reads what it stores"
    value = nest.stage.stores[0].value
    sums = [node for node in walk(value) if isinstance(node, Reduce)]
    if len(sums) != 1 or id(sums[0]) not in writer.always(value):
        return "not one sum that every output needs"
    node = sums[0]
    body = node.body
    is_product = isinstance(body, Call) and body.op == "mul" and body.dtype is FLOAT32
    if node.combiner != "sum" or not is_product:
        return "not a sum of float32 products"
    factors = [as_half(part) for part in body.children]
    if factors[0] is None or factors[1] is None:
        return "a factor is not stored as float16"
    return _operands(draft, node, (body.children[0], body.children[1]), (factors[0], factors[1]))


def _operands(
    draft: Draft, node: Reduce, factors: tuple[Expr, Expr], halves: tuple[Expr, Expr]
) -> tuple[Reduce, Operand, Operand] | str:
    nest = draft.nest
    inner = {axis.name for axis in node.axes}
    depends = [draft.varies_with(factor) for factor in factors]
    merged = {axis.name for axis in nest.reduce_axes[id(node)]}
    if any(not factor.free_axes & inner for factor in factors):
        return "a factor does not depend on the depth"
    sides = []
    for own, other in (depends, depends[::-1]):
        sides.append([a for a in nest.axes if a.name in own - other - merged])
    if not sides[0] and not sides[1]:
        return "no factor has axes of its own"
    operands = [
        _operand(draft, node, factor, half, tuple(axes))
        for factor, half, axes in zip(factors, halves, sides, strict=True)
    ]
    last = nest.axes[-1].name if nest.axes else ""
    if any(axis.name == last for axis in sides[0]):
        operands.reverse()  # outputs side by side belong to one row
    return node, operands[0], operands[1]


def as_half(node: Expr) -> Expr | None:
    """The same value in float16, if that holds it exactly for sure."""
    match node:
        case Cast() if node.arg.dtype is FLOAT16 and not node.bits:
            return node.arg
        case Const():
            exact = float(np.float16(node.value)) == node.value
            return constant(node.value, FLOAT16) if exact else None
        case Call() if node.op == "select":
            then, other = (as_half(part) for part in node.args[1:])
            return None if then is None or other is None else select(node.args[0], then, other)
    return None


def _operand(
    draft: Draft, node: Reduce, factor: Expr, half: Expr, axes: tuple[Axis, ...]
) -> Operand:
    """How an operand is read: along the direction in which it lies in memory."""
    depth = draft.nest.reduce_axes[id(node)]
    loads = [n for n in walk(factor) if isinstance(n, Load) and n.dtype is FLOAT16]
    forms = [draft.nest.loads[id(load)] for load in loads if id(load) in draft.nest.loads]
    deep = any(form.stride(depth[-1].name) == ONE for form in forms)
    along = depth if deep or not axes else axes
    deep = along is depth
    source = _chunk_source(draft, half, along)
    return Operand(value=half, axes=axes, deep=deep, source=source)


def _chunk_source(draft: Draft, half: Expr, along: tuple[Axis, ...]) -> Load | None:
    """The load of a chunk, where 8 elements along the last of the axes are 16 aligned bytes."""
    load, guards = half, []
    while isinstance(load, Call) and load.op == "select":
        if not isinstance(load.args[2], Const) or float(load.args[2].value) != 0:
            return None
        guards.append(load.args[0])
        load = load.args[1]
    if not isinstance(load, Load) or id(load) not in draft.nest.loads:
        return None
    last = along[-1]
    if not last.extent.is_const or last.extent.const % _CHUNK:
        return None
    if any(last.name in draft.varies_with(guard) for guard in guards):
        return None
    return load if _is_aligned(draft.nest.loads[id(load)], last.name) else None


def _is_aligned(form: Affine, last: str) -> bool:
    if form.rest or form.stride(last) != ONE:
        return False
    others = [factor for name, factor in form.terms.items() if name != last]
    return all((factor % _CHUNK) == Dim.of(0) for factor in (*others, form.offset))


# --- code -----------------------------------------------------------------------------------------


def _write(
    draft: Draft,
    writer: Writer,
    node: Reduce,
    left: Operand,
    right: Operand,
    batch: list[Axis],
    tile: Tile,
) -> None:
    rows, columns = (product(a.extent for a in side.axes) for side in (left, right))
    depth_axes = draft.nest.reduce_axes[id(node)]
    depth = product(axis.extent for axis in depth_axes)
    for name, extent in (("M", rows), ("N", columns), ("K", depth)):
        writer.line(f"const int {name} = (int){writer.dim(extent)};")
    writer.line(f"const int across = (N + {tile.columns - 1}) / {tile.columns};")
    writer.line(f"const int down = (M + {tile.rows - 1}) / {tile.rows};")
    writer.line("const int tile = (int)(blockIdx.x % (u32)(across * down));")
    if batch:
        writer.line("const int group = (int)(blockIdx.x / (u32)(across * down));")
        writer.decode("group", [(axis.name, axis.extent) for axis in batch])
    _places(writer, "place_a", left.axes)
    _places(writer, "place_b", right.axes)
    _places(writer, "depth", depth_axes)
    _loader(writer, "load_a", left, depth_axes, "M")
    _loader(writer, "load_b", right, depth_axes, "N")
    head = "auto store = [&](int m, int n, float sum)"
    with writer.block(head, tail=";"), writer.positions():
        writer.decode("m", [(axis.name, axis.extent) for axis in left.axes])
        writer.decode("n", [(axis.name, axis.extent) for axis in right.axes])
        writer.known_as(node, "sum")
        writer.stores()
    flags = ", ".join("true" if side.deep else "false" for side in (left, right))
    flags += f", {_last(left, right, depth_axes, tile)}"
    place = f"tile / across * {tile.rows}, tile % across * {tile.columns}"
    writer.line(
        f"TwTile<{tile.parameters}, {flags}>::run({place}, M, N, K, "
        "place_a, place_b, depth, load_a, load_b, store);"
    )


def _last(left: Operand, right: Operand, depth: tuple[Axis, ...], tile: Tile) -> int:
    """The depth's last axis, where the others stay as they are within a step; else -1."""
    extent = depth[-1].extent
    whole = len(depth) == 1 or (extent.is_const and extent.const % tile.depth == 0)
    return len(depth) - 1 if whole and left.source and right.source else -1


def _places(writer: Writer, name: str, axes: tuple[Axis, ...]) -> None:
    """A function from a number to the indices on axes."""
    with writer.block(f"auto {name} = [&](int number)", tail=";"), writer.positions():
        writer.decode("number", [(axis.name, axis.extent) for axis in axes])
        indices = ", ".join(f"(int){writer.position[axis.name]}" for axis in axes)
        writer.line(f"return TwPlace{{{{{indices}}}}};")


def _loader(writer: Writer, name: str, side: Operand, depth: tuple[Axis, ...], limit: str) -> None:
    """A function that puts 8 elements into shared memory, zeros where there are none."""
    head = f"auto {name} = [&](u16* to, int row, const TwPlace& rows, int k, const TwPlace& deep)"
    with writer.block(head, tail=";"):
        if side.source is not None:
            with writer.block(f"if (row < {limit} && k < K)"), writer.positions():
                _set(writer, "rows", side.axes)
                _set(writer, "deep", depth)
                _copy(writer, side.value)
            writer.line("tw_zero8(to);")
            return
        writer.line("#pragma unroll")
        with writer.block(f"for (int e = 0; e < {_CHUNK}; ++e)"):
            writer.line("u16 found = 0;")
            with writer.block(f"if (row < {limit} && k < K)"), writer.positions():
                _set(writer, "rows", side.axes)
                moving, number = (depth, "k") if side.deep else (side.axes, "row")
                _set(writer, "deep", depth)
                writer.decode(number, [(axis.name, axis.extent) for axis in moving])
                writer.line(f"found = {writer.value(side.value)};")
            writer.line(f"to[e] = found; {'++k' if side.deep else '++row'};")


def _set(writer: Writer, place: str, axes: tuple[Axis, ...]) -> None:
    writer.position.update({axis.name: f"{place}.p[{k}]" for k, axis in enumerate(axes)})


def _copy(writer: Writer, value: Expr) -> None:
    """Copies a chunk where its guards hold, and leaves the function."""
    if isinstance(value, Load):
        writer.line(f"tw_copy8(to, &{writer.load(value)});")
        writer.line("return;")
        return
    with writer.block(f"if ({writer.value(value.children[0])})"):
        _copy(writer, value.children[1])
