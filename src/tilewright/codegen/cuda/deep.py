"""Products whose operands both run along the depth in memory: code of a block (deep.cuh).

Requires: a match whose factors are copied in chunks along the depth, with guards that need no load;
addresses of 32 bits.
Guarantees: sums have the type that the kernel states, in an order that does not depend on the run.
Constants are fetched before the kernel before this one has ended.
Not here: what is a match (operands), other operands (contraction).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.codegen.cuda import scalar, vector
from tilewright.codegen.cuda.deep_tile import DEPTH, DeepTile, choose_deep_tile
from tilewright.codegen.cuda.elements import Elements
from tilewright.codegen.cuda.operands import CHUNK, Match, Operand, draft_of, match
from tilewright.codegen.cuda.plan import ONE, Draft, Shape, with_registers
from tilewright.codegen.cuda.wgmma import wgmma_text
from tilewright.codegen.cuda.writer import Writer
from tilewright.core.shape import Dim
from tilewright.kernel.affine import Affine
from tilewright.kernel.ir import Axis, Call, Expr, Kernel, Load, walk


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """An operand while it is written: names by ``letter``, its chunks and when there are some."""

    letter: str
    operand: Operand
    form: Affine
    guards: tuple[Expr, ...]
    limit: str
    whole: bool


def refusal(draft: Draft, writer: Writer, found: Match) -> str | None:
    """Why a match is not computed this way, or None."""
    if found.second is not None:
        return "two sums"
    if found.elements.newer and not draft.clusters:
        return "a GPU without such instructions"
    for side in (found.left, found.right):
        if not side.deep or side.source is None:
            return "an operand does not run along the depth"
        if not writer.bounds.form_is_narrow(draft.nest.loads[id(side.source)]):
            return "an operand of 2 GiB"
        if any(isinstance(node, Load) for node in walk(*_guards(side.value))):
            return "a guard reads memory"
    return None


def is_deep(kernel: Kernel) -> bool:
    """Whether a kernel is one product that is computed this way."""
    if len(kernel.stages) != 1 or kernel.steps is not None:
        return False
    draft = draft_of(kernel)
    writer = draft.writer()
    found = match(draft, writer)
    return isinstance(found, Match) and refusal(draft, writer, found) is None


def write_deep(draft: Draft, writer: Writer, found: Match, name: str) -> Shape:
    """Writes the stage."""
    rows, columns, depth, count = found.extents
    tile = draft.tile if isinstance(draft.tile, DeepTile) else None
    reads = bool(early_reads(writer, found))
    elements = found.elements
    units = halves_of(depth, elements)
    tile = tile or choose_deep_tile(rows, columns, units, count, draft.clusters, reads)[0]
    for letter, extent in (("M", rows), ("N", columns), ("K", depth)):
        writer.line(f"const int {letter} = (int){writer.dim(extent)};")
    writer.line(f"const int across = (N + {tile.columns - 1}) / {tile.columns};")
    writer.line(f"const int down = (M + {tile.rows - 1}) / {tile.rows};")
    number = "blockIdx.x" if tile.split == 1 else f"(blockIdx.x / {tile.split})"
    writer.line(f"const int tile = (int)({number} % (u32)(across * down));")
    if found.batch:
        writer.line(f"const int group = (int)({number} / (u32)(across * down));")
        writer.decode("group", [(axis.name, axis.extent) for axis in found.batch])
    for letter, operand, limit, size, extent in (
        ("a", found.left, "M", tile.rows, rows),
        ("b", found.right, "N", tile.columns, columns),
    ):
        assert operand.source is not None
        side = _Side(
            letter=letter,
            operand=operand,
            form=draft.nest.loads[id(operand.source)],
            guards=_guards(operand.value),
            limit=limit,
            whole=extent.is_const and extent.const % size == 0,
        )
        _write_side(writer, side, found.depth, elements)
    write_store(writer, found)
    fixed = found.right.source is not None and found.right.source.buffer in draft.constants
    down, across = tile.warps
    # Products of 16 bits were timed with what all steps in flight need.
    is_short = elements.bytes == 1 and units.is_const
    held = tile.holding(-(-units.const // DEPTH)) if is_short else tile
    parameters = (
        f"{elements.name}, {tile.rows}, {tile.columns}, {down}, {across}, {tile.stages}, "
        f"{tile.split}, {tile.panel}"
    )
    writer.line(
        f"TwDeep<{parameters}, {'true' if fixed else 'false'}>::run("
        f"tile, down, across, M, N, K, place_a, place_b, "
        "depth_a, depth_b, load_a, load_b, read, store);"
    )
    tiles = rows.ceildiv(tile.rows) * columns.ceildiv(tile.columns) * count
    return Shape(
        tactic=f"{name}({tile.text})",
        grid=(tiles * tile.split, ONE, ONE),
        threads=tile.threads,
        shared_bytes=held.shared_bytes,
        cluster=tile.split,
        resident=with_registers(
            held.resident, tile.threads, tile.rows * tile.columns, of_bytes=elements.bytes == 1
        ),
        releases=True,
        begins=True,
        preludes=("tensor_core.cuh", "deep.cuh"),
        support=wgmma_text(tile.columns, elements),
    )


def halves_of(depth: Dim, elements: Elements) -> Dim:
    """The depth in halves, or pairs of bytes; a symbolic one stays as it is."""
    return Dim.of(elements.halves(depth.const)) if depth.is_const else depth


def _guards(value: Expr) -> tuple[Expr, ...]:
    found = []
    while isinstance(value, Call):
        found.append(value.children[0])
        value = value.children[1]
    return tuple(found)


def _write_side(writer: Writer, side: _Side, depth: tuple[Axis, ...], elements: Elements) -> None:
    """``place_X``, ``depth_X`` (indices and their share of the address) and ``load_X``."""
    own = {axis.name for axis in (*side.operand.axes, *depth)}
    rest = Affine({n: f for n, f in side.form.terms.items() if n not in own}, side.form.offset)
    letter = side.letter
    writer.line(f"const int origin_{letter} = (int)({writer.address(rest)});")
    for name, axes in ((f"place_{letter}", side.operand.axes), (f"depth_{letter}", depth)):
        with writer.block(f"auto {name} = [&](int number)", tail=";"), writer.positions():
            writer.decode("number", [(axis.name, axis.extent) for axis in axes])
            share = Affine({a.name: f for a in axes if (f := side.form.terms.get(a.name))})
            indices = ", ".join(f"(int){writer.position[axis.name]}" for axis in axes)
            writer.line(f"return TwSpot{{{{{indices}}}, (int)({writer.address(share)})}};")
    head = (
        f"auto load_{letter} = [&](u16* to, int row, const TwSpot& rows, int k, const TwSpot& deep)"
    )
    with writer.block(head, tail=";"), writer.positions():
        for name, axes in (("rows", side.operand.axes), ("deep", depth)):
            writer.position.update({a.name: f"{name}.p[{k}]" for k, a in enumerate(axes)})
        exists = [] if side.whole else [f"row < {side.limit}"]
        if not _is_whole(depth, elements):
            exists.append("k < K")
        inside = [writer.value(guard) for guard in side.guards]
        source, fill = side.operand.source, side.operand.fill
        assert source is not None
        place = f"origin_{letter} + rows.base + deep.base"
        buffer = writer.layout.buffers[source.buffer]
        if not exists and not inside:
            writer.line(f"tw_copy8(to, &{buffer}[{place}]);")
            return
        both = " && ".join([*exists, *inside])
        if not fill:
            writer.line(f"const bool wanted = {both};")
            writer.line(f"tw_copy8_if(to, &{buffer}[wanted ? {place} : 0], wanted);")
            return
        outside = f"(const {scalar.c_type(source.dtype)}*)&tw_fill<{(fill & 0xFF) * 0x01010101}u>"
        writer.line(
            f"tw_copy8_if(to, {both} ? &{buffer}[{place}] : {outside}, "
            f"{' && '.join(exists) or 'true'});"
        )


def _is_whole(depth: tuple[Axis, ...], elements: Elements) -> bool:
    total = 1
    for axis in depth:
        if not axis.extent.is_const:
            return False
        total *= axis.extent.const
    return total * elements.bytes % (2 * DEPTH) == 0


def early_reads(writer: Writer, found: Match) -> list[Load]:
    """What differs for every output and is read as packs: another matrix that is added, say."""
    columns, value = found.right.axes, writer.nest.stage.stores[0].value
    if not columns or vector.refusal(writer, columns[-1]) is not None:
        return []
    rows = {axis.name for axis in found.left.axes}
    return [
        node
        for node in writer.always(value).values()
        if isinstance(node, Load) and id(node) in writer.nest.loads
        if writer.nest.depends(node) & rows
        if vector.is_aligned(writer.nest.loads[id(node)], columns[-1].name)
    ]


def write_store(writer: Writer, found: Match) -> None:
    """``store``: what becomes of 8 sums side by side, and ``read``: what it needs of memory.

    Reads of several places can be under way before the first of them is needed.
    """
    columns = found.right.axes
    packed = bool(columns) and vector.refusal(writer, columns[-1]) is None
    early = early_reads(writer, found)
    with writer.block("auto read = [&](int m, int n)", tail=";"), writer.positions():
        kinds = [f"{vector.pack_type(node.dtype)} p{k};" for k, node in enumerate(early)]
        writer.line(f"struct {{ {' '.join(kinds)} }} got;")
        if early:
            writer.decode("m", [(axis.name, axis.extent) for axis in found.left.axes])
            writer.decode("n", [(axis.name, axis.extent) for axis in columns])
        for k, node in enumerate(early):
            kind = vector.pack_type(node.dtype)
            writer.line(f"got.p{k} = *(const {kind}*)&{writer.load(node)};")
        writer.line("return got;")
    kind = scalar.c_type(found.sum.dtype)
    head = f"auto store = [&](int m, int n, const {kind}* sum, const decltype(read(0, 0))& got)"
    with writer.block(head, tail=";"), writer.positions():
        writer.decode("m", [(axis.name, axis.extent) for axis in found.left.axes])
        if packed:
            writer.decode("n", [(axis.name, axis.extent) for axis in columns])
            last = columns[-1].name
            given: dict[Expr, str] = {node: f"got.p{k}.v[e]" for k, node in enumerate(early)}
            given |= dict.fromkeys((found.total, *(part.sum for part in found.parts)), "sum[e]")
            vector.write_points(writer, last, writer.position[last], given)
            return
        writer.line("#pragma unroll")
        with writer.block(f"for (int e = 0; e < {CHUNK}; ++e)"), writer.positions():
            writer.line("if (n + e >= N) break;")
            writer.decode("(n + e)", [(axis.name, axis.extent) for axis in columns])
            writer.known_as(found.total, "sum[e]")
            writer.stores()
