"""Products by Hopper's copy engine: code of a block (tma.cuh).

Requires: a match (operands) whose factors are matrices in memory, the depth side by side, whole
and without guards, or windows on an image (window) on the left; one product; GPUs with the copy
engine (sm_90 and later).
Guarantees: sums have the type that the kernel states, in an order that does not depend on the run.
Constants are fetched before the kernel before this one has ended.
Not here: what is a match (operands), other products (deep, contraction).
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.codegen.cuda.deep import early_reads, write_store
from tilewright.codegen.cuda.operands import Match, Operand
from tilewright.codegen.cuda.plan import ONE, Draft, Shape
from tilewright.codegen.cuda.tma_tile import TmaTile, choose_tma_tile
from tilewright.codegen.cuda.wgmma import wgmma_text
from tilewright.codegen.cuda.window import Window, find_window
from tilewright.codegen.cuda.writer import Writer
from tilewright.core.shape import Dim, product
from tilewright.kernel.ir import Axis, Call
from tilewright.runtime.program import Matrix

_PLAIN, _FUNCTION = 8, 10  # operations of a requantisation, and as many as a function counts
_FUNCTIONS = ("gelu", "gelu_tanh", "erf", "exp", "tanh", "sigmoid")
_MIXED = 32  # columns whose order in shared memory differs from that in the matrix


def refusal(draft: Draft, found: Match) -> str | None:
    """Why a match is not computed this way, or None."""
    if not draft.clusters:
        return "a GPU without the copy engine"
    if found.batch:
        return "many products"
    reasons = [_matrix_refusal(draft, found, side) for side in (found.left, found.right)]
    if reasons[0] is not None and isinstance(_window(draft, found), Window):
        reasons[0] = None
    if any(reasons):
        return next(filter(None, reasons))
    if not all(extent.is_const for extent in found.extents):
        return "symbolic sizes"
    return None


def _matrix_refusal(draft: Draft, found: Match, side: Operand) -> str | None:
    """Why an operand is no matrix as the copy engine fetches it, or None."""
    depth = found.depth
    if side.source is None or side.source is not side.value or not side.deep:
        return "an operand is not copied as it lies in memory"
    form = draft.nest.loads[id(side.source)]
    own = {axis.name for axis in (*side.axes, *depth)}
    if form.rest or not form.offset.is_const or set(form.terms) - own or len(side.axes) > 1:
        return "an operand is not a matrix"
    step = ONE
    for axis in reversed(depth):
        if axis.extent != ONE and form.terms.get(axis.name) != step:
            return "an operand is not a matrix"
        step = step * axis.extent
    if _stride(draft, side, depth) % found.elements.chunk != Dim.of(0):
        return "rows of an operand are not aligned"
    return None


def write_tma(draft: Draft, writer: Writer, found: Match, name: str) -> Shape:
    """Writes the stage."""
    rows, columns, depth, _ = found.extents
    tile = draft.tile if isinstance(draft.tile, TmaTile) else None
    reads, cost = early_reads(writer, found), cost_of(writer, found)
    elements = found.elements
    halves = elements.halves(depth.const)
    tile = tile or choose_tma_tile(rows.const, columns.const, halves, bool(reads), cost)[0]
    for letter, extent in (("M", rows), ("N", columns), ("K", Dim.of(halves))):
        writer.line(f"const int {letter} = (int){writer.dim(extent)};")
    plain = _matrix_refusal(draft, found, found.left) is None
    window = "" if plain else _window(draft, found)
    _write_fetch(writer, found, window)
    write_store(writer, found)
    assert found.right.source is not None
    mixed = columns.const % _MIXED == 0 and elements.bytes > 1
    read_bytes = sum(read.dtype.storage_bytes for read in reads)
    flags = (
        tile.turns,
        found.right.source.buffer in draft.constants,
        mixed,
        elements.bytes > 1 and tile.reads_ahead(read_bytes),
    )
    sizes = f"{elements.name}, {tile.rows}, {tile.columns}, {tile.threads}, {tile.stages}"
    parameters = ", ".join([sizes, *("true" if flag else "false" for flag in flags)])
    writer.line(f"TwMatrix<{parameters}, {tile.split}>::run(fetch, &map1, M, N, K, read, store);")
    return Shape(
        tactic=f"{name}({tile.text})",
        grid=(Dim.of(tile.blocks(rows.const, columns.const)), ONE, ONE),
        threads=tile.threads,
        shared_bytes=tile.shared_bytes,
        cluster=tile.split,
        resident=tile.resident,
        releases=True,
        begins=True,
        preludes=("tensor_core.cuh", "deep.cuh", "tma.cuh"),
        support=wgmma_text(tile.columns, elements),
        matrices=(
            window.image(tile.rows)
            if isinstance(window, Window)
            else _matrix(draft, found, found.left, tile.rows),
            replace(_matrix(draft, found, found.right, tile.columns), mixed=mixed),
        ),
    )


def cost_of(writer: Writer, found: Match) -> float:
    """What follows each sum of bytes, relative to its scale and rounding alone; 0 for others."""
    if found.elements.bytes > 1:
        return 0
    nodes = writer.always(writer.nest.stage.stores[0].value).values()
    operations = [_FUNCTION if n.op in _FUNCTIONS else 1 for n in nodes if isinstance(n, Call)]
    return max(1.0, sum(operations) / _PLAIN)


def _window(draft: Draft, found: Match) -> Window | str:
    """The window of the rows' operand, where its elements are those of the driver's map."""
    if found.elements.bytes != 2:
        return "an image of bytes"
    return find_window(draft, found.left, found.depth)


def _write_fetch(writer: Writer, found: Match, window: Window | str) -> None:
    """``fetch``: has the engine fetch 64 of the depth for the rows of a tile."""
    head = "auto fetch = [&](u16* to, int k, int m, u64* barrier)"
    with writer.block(head, tail=";"), writer.positions():
        if isinstance(window, Window):
            for number, axes in (("m", found.left.axes), ("k", found.depth)):
                writer.decode(number, [(axis.name, axis.extent) for axis in axes])
            window.write(writer)
        else:
            writer.line("tw_fetch_box(to, &map0, k, m, barrier);")


def _stride(draft: Draft, side: Operand, depth: tuple[Axis, ...]) -> Dim:
    """Elements from a row to the next one."""
    assert side.source is not None
    form = draft.nest.loads[id(side.source)]
    return form.terms[side.axes[0].name] if side.axes else _extent(depth)


def _extent(axes: tuple[Axis, ...]) -> Dim:
    return product(axis.extent for axis in axes)


def _matrix(draft: Draft, found: Match, side: Operand, box: int) -> Matrix:
    """The map's matrix; pairs of bytes are fetched like halves."""
    assert side.source is not None
    form = draft.nest.loads[id(side.source)]
    names = [buffer.name for buffer in draft.kernel.buffers]

    def halves(elements: Dim) -> Dim:
        return Dim.of(found.elements.halves(elements.const))

    return Matrix(
        buffer=names.index(side.source.buffer),
        offset=halves(form.offset),
        rows=side.axes[0].extent if side.axes else ONE,
        columns=halves(_extent(found.depth)),
        stride=halves(_stride(draft, side, found.depth)),
        box=box,
    )
