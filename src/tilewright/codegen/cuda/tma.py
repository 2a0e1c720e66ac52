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
from tilewright.codegen.cuda.tma_tile import DEPTH, TmaTile, choose_tma_tile
from tilewright.codegen.cuda.wgmma import wgmma_text
from tilewright.codegen.cuda.window import Window, find_window
from tilewright.codegen.cuda.writer import Writer
from tilewright.core.shape import Dim, product
from tilewright.kernel.affine import ZERO
from tilewright.kernel.ir import Axis, Call
from tilewright.runtime.program import Image, Matrix

_PLAIN, _FUNCTION = 8, 4  # operations of a requantisation, and as many as a function counts
_FUNCTIONS = ("gelu", "gelu_tanh", "erf", "exp", "tanh", "sigmoid")
_MIXED = 32  # columns whose order in shared memory differs from that in the matrix


def refusal(draft: Draft, found: Match) -> str | None:
    """Why a match is not computed this way, or None."""
    if not draft.clusters:
        return "a GPU without the copy engine"
    if found.batch:
        return "many products"
    for part in found.parts:
        reasons = [_matrix_refusal(draft, part, side) for side in (part.left, part.right)]
        if reasons[0] is not None and isinstance(_window(draft, part), Window):
            reasons[0] = None
        if any(reasons):
            return next(filter(None, reasons))
    if not all(extent.is_const for extent in found.extents):
        return "symbolic sizes"
    return None if found.second is None else _second_refusal(draft, found, found.second)


def _second_refusal(draft: Draft, found: Match, second: Match) -> str | None:
    """Why a sum is not added to another within a tile, or None: the columns' operand has to be one
    matrix with the depths of both side by side.
    """
    if any(found.elements.halves(_extent(p.depth).const) % DEPTH for p in found.parts):
        return "a depth that is no whole number of steps"
    first, other = found.right.source, second.right.source
    assert first is not None
    assert other is not None
    forms = [draft.nest.loads[id(load)] for load in (first, other)]
    beside = forms[1].offset == forms[0].offset + _extent(found.depth)
    strides = [_stride(draft, part.right, part.depth) for part in found.parts]
    if first.buffer != other.buffer or not beside or strides[0] != strides[1]:
        return "the columns of two sums are not side by side"
    return None


def _matrix_refusal(draft: Draft, found: Match, side: Operand) -> str | None:
    """Why an operand is no matrix as the copy engine fetches it, or None."""
    depth = found.depth
    if side.source is None or side.source is not side.value or not side.deep:
        return "an operand is not copied as it lies in memory"
    form = draft.nest.loads[id(side.source)]
    own = {axis.name for axis in (*side.axes, *depth)}
    if form.rest or not form.offset.is_const or set(form.terms) - own:
        return "an operand is not a matrix"
    step = _stride(draft, side, depth)
    for axis in reversed(side.axes):
        if axis.extent != ONE and form.terms.get(axis.name) != step:
            return "an operand is not a matrix"
        step = step * axis.extent
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
    lefts = [_left(draft, part, tile.rows) for part in found.parts]
    _write_fetch(writer, found, lefts)
    write_store(writer, found)
    assert found.right.source is not None
    right = _matrix(draft, found, found.right, tile.columns)
    mixed = columns.const % _MIXED == 0
    read_bytes = sum(read.dtype.storage_bytes for read in reads)
    flags = (
        tile.turns,
        found.right.source.buffer in draft.constants,
        mixed,
        (elements.bytes > 1 or tile.gives) and tile.reads_ahead(read_bytes),
    )
    sizes = f"{elements.name}, {tile.rows}, {tile.columns}, {tile.threads}, {tile.stages}"
    parameters = ", ".join([sizes, *("true" if flag else "false" for flag in flags)])
    writer.line(f"TwMatrix<{parameters}, {tile.split}>::run(fetch, &map1, M, N, K, read, store);")
    right = replace(right, columns=Dim.of(halves), mixed=mixed)
    return Shape(
        tactic=f"{name}({tile.text}{', two sums' if found.second else ''})",
        grid=(Dim.of(tile.blocks(rows.const, columns.const)), ONE, ONE),
        threads=tile.threads,
        shared_bytes=tile.shared_bytes,
        cluster=tile.split,
        resident=tile.resident,
        releases=True,
        begins=True,
        preludes=("tensor_core.cuh", "deep.cuh", "tma.cuh"),
        support=wgmma_text(tile.columns, elements),
        matrices=(_mapped(lefts[0], tile.rows), right, *(_mapped(x, tile.rows) for x in lefts[1:])),
    )


def _left(draft: Draft, part: Match, box: int) -> Window | Matrix:
    """Where the rows of a sum come from."""
    if _matrix_refusal(draft, part, part.left) is None:
        return _matrix(draft, part, part.left, box)
    window = _window(draft, part)
    assert isinstance(window, Window)
    return window


def _mapped(left: Window | Matrix, box: int) -> Matrix | Image:
    return left.image(box) if isinstance(left, Window) else left


def cost_of(writer: Writer, found: Match) -> float:
    """What follows each sum of bytes, relative to its scale and rounding alone; 0 for others."""
    if found.elements.bytes > 1:
        return 0
    nodes = writer.always(writer.nest.stage.stores[0].value).values()
    operations = [_FUNCTION if n.op in _FUNCTIONS else 1 for n in nodes if isinstance(n, Call)]
    return max(1.0, sum(operations) / _PLAIN)


def _window(draft: Draft, found: Match) -> Window | str:
    """The window of the rows' operand, where its elements are those of the driver's map."""
    if found.elements.bytes > 2:
        return "an image of wide elements"
    return find_window(draft, found.left, found.depth)


def _write_fetch(writer: Writer, found: Match, lefts: list[Window | Matrix]) -> None:
    """``fetch``: has the engine fetch 64 of the depth for the rows of a tile."""
    head = "auto fetch = [&](u16* to, int k, int m, u64* barrier)"
    with writer.block(head, tail=";"):
        for number, (part, left) in enumerate(zip(found.parts, lefts, strict=True)):
            last, halves = (
                number + 1 == len(lefts),
                found.elements.halves(_extent(part.depth).const),
            )
            with writer.block("" if last else f"if (k < {halves})"), writer.positions():
                _fetch(writer, part, left, f"map{2 * number}")
                if not last:
                    writer.line("return;")
            if not last:
                writer.line(f"k -= {halves};")


def _fetch(writer: Writer, part: Match, left: Window | Matrix, name: str) -> None:
    if isinstance(left, Matrix):
        writer.line(f"tw_fetch_box(to, &{name}, k, m, barrier);")
        return
    writer.decode("m", [(axis.name, axis.extent) for axis in part.left.axes])
    *taps, channels = [(axis.name, axis.extent) for axis in part.depth]
    halves = part.elements.halves(channels[1].const)
    writer.decode("k", [*taps, (channels[0], Dim.of(halves))])
    left.write(writer, name)


def _stride(draft: Draft, side: Operand, depth: tuple[Axis, ...]) -> Dim:
    """Elements from a row to the next one."""
    assert side.source is not None
    form = draft.nest.loads[id(side.source)]
    long = [axis for axis in side.axes if axis.extent != ONE]
    return form.terms.get(long[-1].name, ZERO) if long else _extent(depth)


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
        rows=_extent(side.axes),
        columns=halves(_extent(found.depth)),
        stride=halves(_stride(draft, side, found.depth)),
        box=box,
    )
