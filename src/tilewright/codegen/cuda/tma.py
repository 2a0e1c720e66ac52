"""Products of plain matrices by Hopper's copy engine: code of a block (tma.cuh).

Requires: a match (operands) whose factors are matrices in memory, the depth side by side, whole
and without guards; one product; GPUs with the copy engine (sm_90 and later).
Guarantees: sums have the type that the kernel states, in an order that does not depend on the run.
Constants are fetched before the kernel before this one has ended.
Not here: what is a match (operands), other products (deep, contraction).
"""

from __future__ import annotations

from tilewright.codegen.cuda.deep import early_reads, write_store
from tilewright.codegen.cuda.operands import Match, Operand
from tilewright.codegen.cuda.plan import ONE, Draft, Shape
from tilewright.codegen.cuda.tma_tile import TmaTile, choose_tma_tile
from tilewright.codegen.cuda.wgmma import wgmma_text
from tilewright.codegen.cuda.writer import Writer
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Axis, Call
from tilewright.runtime.program import Matrix

_PLAIN, _FUNCTION = 8, 10  # operations of a requantisation, and as many as a function counts
_FUNCTIONS = ("gelu", "gelu_tanh", "erf", "exp", "tanh", "sigmoid")


def refusal(draft: Draft, found: Match) -> str | None:
    """Why a match is not computed this way, or None."""
    if not draft.clusters:
        return "a GPU without the copy engine"
    if found.batch:
        return "many products"
    for side in (found.left, found.right):
        if side.source is None or side.source is not side.value or not side.deep:
            return "an operand is not copied as it lies in memory"
        if len(found.depth) != 1 or len(side.axes) > 1:
            return "an operand is not a matrix"
        form = draft.nest.loads[id(side.source)]
        rows = {axis.name for axis in side.axes}
        if form.rest or not form.offset.is_const or set(form.terms) - rows - {found.depth[0].name}:
            return "an operand is not a matrix"
        if _stride(draft, side, found.depth) % found.elements.chunk != Dim.of(0):
            return "rows of an operand are not aligned"
    if not all(extent.is_const for extent in found.extents):
        return "symbolic sizes"
    return None


def write_tma(draft: Draft, writer: Writer, found: Match, name: str) -> Shape:
    """Writes the stage."""
    rows, columns, depth, _ = found.extents
    tile = draft.tile if isinstance(draft.tile, TmaTile) else None
    reads, cost = bool(early_reads(writer, found)), cost_of(writer, found)
    elements = found.elements
    halves = elements.halves(depth.const)
    tile = tile or choose_tma_tile(rows.const, columns.const, halves, reads, cost)[0]
    for letter, extent in (("M", rows), ("N", columns), ("K", Dim.of(halves))):
        writer.line(f"const int {letter} = (int){writer.dim(extent)};")
    write_store(writer, found)
    assert found.right.source is not None
    fixed = "true" if found.right.source.buffer in draft.constants else "false"
    turns = "true" if tile.turns else "false"
    sizes = f"{elements.name}, {tile.rows}, {tile.columns}, {tile.groups}, {tile.stages}"
    parameters = f"{sizes}, {turns}, {fixed}"
    writer.line(f"TwMatrix<{parameters}>::run(&map0, &map1, M, N, K, read, store);")
    return Shape(
        tactic=f"{name}({tile.text})",
        grid=(Dim.of(tile.blocks(rows.const, columns.const)), ONE, ONE),
        threads=tile.threads,
        shared_bytes=tile.shared_bytes,
        resident=tile.resident,
        releases=True,
        begins=True,
        preludes=("tensor_core.cuh", "deep.cuh", "tma.cuh"),
        support=wgmma_text(tile.columns, elements),
        matrices=(
            _matrix(draft, found, found.left, tile.rows),
            _matrix(draft, found, found.right, tile.columns),
        ),
    )


def cost_of(writer: Writer, found: Match) -> float:
    """What follows each sum of bytes, relative to its scale and rounding alone; 0 for others."""
    if found.elements.bytes > 1:
        return 0
    nodes = writer.always(writer.nest.stage.stores[0].value).values()
    operations = [_FUNCTION if n.op in _FUNCTIONS else 1 for n in nodes if isinstance(n, Call)]
    return max(1.0, sum(operations) / _PLAIN)


def _stride(draft: Draft, side: Operand, depth: tuple[Axis, ...]) -> Dim:
    """Elements from a row to the next one."""
    assert side.source is not None
    form = draft.nest.loads[id(side.source)]
    return form.terms[side.axes[0].name] if side.axes else depth[0].extent


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
        columns=halves(found.depth[0].extent),
        stride=halves(_stride(draft, side, found.depth)),
        box=box,
    )
