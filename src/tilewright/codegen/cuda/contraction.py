"""Contractions of narrow values on tensor cores, with whatever surrounds the sum.

    out[m, n] = f(sum_k a(m, k) * b(n, k), ..)
    ->  blocks of outputs; operands go through shared memory in chunks of 8, sums stay in registers
Matrix products, batched ones, and convolutions (whose operand is read with a guard: an implicit
matrix) are the same here: rows are the axes of one operand alone, columns those of the other.
Requires: factors that a narrow type (elements) holds exactly: values that are stored so, and what
is around them; bytes run along the depth.
Guarantees: sums have the type that the kernel states, in an order that does not depend on the run.
Not here: the code of a block (tensor_core.cuh).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilewright.codegen.cuda import deep_tile, tma, tma_tile
from tilewright.codegen.cuda.deep import early_reads, halves_of, refusal, write_deep
from tilewright.codegen.cuda.deep_tile import DeepTile, choose_deep_tile
from tilewright.codegen.cuda.operands import (
    CHUNK,
    FEW,
    Match,
    Operand,
    draft_of,
    match,
    sizes_of,
)
from tilewright.codegen.cuda.plan import ONE, Draft, Refusal, Shape
from tilewright.codegen.cuda.tile import Tile, choose_tile
from tilewright.codegen.cuda.tma_tile import TmaTile, choose_tma_tile
from tilewright.codegen.cuda.writer import Writer
from tilewright.kernel.ir import Axis, Expr, Kernel, Load

NAME = "tensor_core"
_SHORT = 16
_AXES = 4  # of a place in tensor_core.cuh


def contraction(draft: Draft, writer: Writer, disabled: Collection[str]) -> Shape | Refusal:
    """Writes the stage, or says why not."""
    if NAME in disabled:
        return Refusal(NAME, "disabled")
    found = match(draft, writer)
    if isinstance(found, str):
        return Refusal(NAME, found)
    left, right = found.left, found.right
    rows, columns, depth, count = found.extents
    if depth.is_const and depth.const < _SHORT:
        return Refusal(NAME, f"a depth of {depth.const}")
    for what, extent in (("rows", rows), ("columns", columns)):
        if extent.is_const and extent.const < FEW and count != ONE:
            return Refusal(NAME, f"{what} of {extent.const} in each of many products")
    if max(len(left.axes), len(right.axes), len(found.depth)) > _AXES:
        return Refusal(NAME, f"an operand has more than {_AXES} axes")
    by_engine = "tma" not in disabled and tma.refusal(draft, found) is None
    by_threads = "deep" not in disabled and refusal(draft, writer, found) is None
    if by_engine and not (by_threads and _is_faster_by_threads(draft, found)):
        return tma.write_tma(draft, writer, found, NAME)
    if by_threads:
        return write_deep(draft, writer, found, NAME)
    if found.second is not None:
        return Refusal(NAME, f"two sums: {tma.refusal(draft, found) or 'tma is disabled'}")
    if found.elements.bytes == 1:
        return Refusal(NAME, f"bytes: {refusal(draft, writer, found) or 'deep is disabled'}")
    tile = choose_tile(rows, columns, depth, count)
    tile = tile.pipelined(depth, left.deep, right.deep)
    _write(writer, found, tile)
    tiles = rows.ceildiv(tile.rows) * columns.ceildiv(tile.columns) * count
    return Shape(
        tactic=f"{NAME}({tile.text}{'' if left.source else ', rows computed'}"
        f"{'' if right.source else ', columns computed'})",
        grid=(tiles, ONE, ONE),
        threads=tile.threads,
        shared_bytes=tile.shared_bytes(left.deep, right.deep),
        preludes=("tensor_core.cuh",),
    )


def ranked_tiles(
    kernel: Kernel, disabled: Collection[str], clusters: bool
) -> list[DeepTile | TmaTile]:
    """The tiles of a kernel that is one product of known sizes, those of the least time first."""
    sizes = sizes_of(kernel)
    if sizes is None or NAME in disabled:
        return []
    draft = replace(draft_of(kernel), clusters=clusters)
    numbers = (sizes.rows, sizes.columns, sizes.match.elements.halves(sizes.depth))
    timed: list[tuple[float, DeepTile | TmaTile]] = []
    if "tma" not in disabled and tma.refusal(draft, sizes.match) is None:
        cost = tma.cost_of(draft.writer(), sizes.match)
        found = tma_tile.candidates(*numbers, of_bytes=cost > 0)
        reads = bool(early_reads(draft.writer(), sizes.match))
        timed += [(tma_tile.predict_us(tile, *numbers, cost, reads), tile) for tile in found]
    if "deep" not in disabled and refusal(draft, draft.writer(), sizes.match) is None:
        deep = deep_tile.candidates(*numbers, sizes.count, clusters)
        timed += [(deep_tile.predict_us(t, *numbers, sizes.count), t) for t in deep]
    return [tile for _, tile in sorted(timed, key=lambda item: item[0])]


def _is_faster_by_threads(draft: Draft, found: Match) -> bool:
    """Whether threads should fetch the operands sooner than the copy engine."""
    if draft.tile is not None:
        return isinstance(draft.tile, DeepTile)
    rows, columns, depth, count = found.extents
    depth = halves_of(depth, found.elements)
    reads = bool(early_reads(draft.writer(), found))
    sizes = (rows.const, columns.const, depth.const)
    engine = choose_tma_tile(*sizes, reads, of_bytes=found.elements.bytes == 1)[1]
    return choose_deep_tile(rows, columns, depth, count, draft.clusters, reads)[1] < engine


# --- code -----------------------------------------------------------------------------------------


def _write(writer: Writer, found: Match, tile: Tile) -> None:
    left, right, batch, depth_axes = found.left, found.right, found.batch, found.depth
    rows, columns, depth, _ = found.extents
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
        writer.known_as(found.sum, "sum")
        writer.stores()
    flags = ", ".join("true" if side.deep else "false" for side in (left, right))
    flags += f", {_last(left, right, depth_axes, tile)}"
    place = f"tile / across * {tile.rows}, tile % across * {tile.columns}"
    writer.line(
        f"TwTile<{found.elements.name}, {tile.parameters}, {flags}>::run({place}, M, N, K, "
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
        with writer.block(f"for (int e = 0; e < {CHUNK}; ++e)"):
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
