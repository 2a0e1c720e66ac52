"""A block or a warp for each row: its threads share the row's reductions, then its elements.

    for m, n: out[m, n] = exp(x[m, n] - max_r x[m, r]) / sum_q exp(x[m, q] - max_r x[m, r])
    ->  a row is one m; two reductions by all its threads; then each thread takes some n
Requires: no ordered axes, no guards; the reductions are needed at every point.
Constants of every row are read before the kernel before this one has ended, by warps that then take
row after row.
Guarantees: partial results are combined in a fixed order, so equal inputs give equal bits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from tilewright.codegen.cuda import vector
from tilewright.codegen.cuda.plan import ONE, Draft, Refusal, Shape
from tilewright.codegen.cuda.scalar import COMBINE, c_type, literal
from tilewright.codegen.cuda.writer import Writer
from tilewright.core.shape import Dim, product
from tilewright.kernel.ir import Axis, Expr, Load, Reduce, identity_of, walk

_BLOCK = 256
_WARP = 32
_ROWS_OF_WARPS = 4
_FEW_ROWS = 4096  # so few are spread over the multiprocessors, one a block
_FEW = 16  # of a shorter row, a thread takes all
_MANY = 1024  # of a longer row, a block takes all
_RESIDENT = 132 * 16  # warps that are at work at once with constants in registers,
_EARLY_WORDS = 64  # at most so many of a thread
_UNROLLED = 8  # rounds whose reads are under way together
_COLUMNS = 4096  # so many neighbouring rows keep the GPU busy with a thread each
_SHARING, _SHORT = 1 << 14, 256  # so many rows that are no longer do so where they read the same,
_TIMES = 4  # each value so often


def row(draft: Draft, writer: Writer, disabled: Collection[str]) -> Shape | Refusal:
    """Writes the stage, or says why not."""
    nest = draft.nest
    if "row" in disabled:
        return Refusal("row", "disabled")
    if any(axis.ordered for axis in nest.axes):
        return Refusal("row", "an axis is ordered")
    if any(store.guard is not None for store in nest.stage.stores):
        return Refusal("row", "a store is guarded")
    roots = [store.value for store in nest.stage.stores]
    reductions = _reductions(writer, roots)
    if not reductions:
        return Refusal("row", "no reduction is needed at every point")
    if any(isinstance(n, Load) and n.buffer in writer.stored for n in walk(*nest.stage.roots)):
        return Refusal("row", "it reads what it stores")
    shared = frozenset[str]().union(*(draft.varies_with(node) for node in reductions))
    rows = [axis for axis in nest.axes if axis.name in shared or axis.extent == ONE]
    inner = [axis for axis in nest.axes if axis not in rows]
    longest = _longest(draft, reductions)
    reason = _unfit(draft, reductions, rows, inner, longest)
    if reason is not None:
        return Refusal("row", reason)
    wide = not longest.is_const or longest.const >= _MANY
    return _write(draft, writer, reductions, rows, inner, _BLOCK if wide else _WARP)


def _reductions(writer: Writer, roots: list[Expr]) -> list[Reduce]:
    """Reductions that every point needs, inner ones first."""
    found: dict[int, Reduce] = {}

    def visit(node: Reduce) -> None:
        for part in writer.hoisted(node):
            if isinstance(part, Reduce):
                visit(part)
        found[id(node)] = node

    for root in roots:
        for node in writer.always(root).values():
            if isinstance(node, Reduce):
                visit(node)
    return list(found.values())


def _longest(draft: Draft, reductions: list[Reduce]) -> Dim:
    """Points of the longest reduction; a symbolic one counts as the longest."""
    counts = [
        product(axis.extent for axis in draft.nest.reduce_axes[id(node)]) for node in reductions
    ]
    symbolic = [count for count in counts if not count.is_const]
    return symbolic[0] if symbolic else max(counts, key=lambda count: count.const)


def _unfit(
    draft: Draft, reductions: list[Reduce], rows: list[Axis], inner: list[Axis], longest: Dim
) -> str | None:
    if longest.is_const and longest.const < _FEW:
        return f"rows of {longest.const}"
    if inner or not rows:
        return None
    count = product(axis.extent for axis in rows)
    if count.is_const and count.const < _COLUMNS:
        return None
    short = longest.is_const and longest.const <= _SHORT
    if short and count.is_const and count.const >= _SHARING and _share(draft, reductions, count):
        return f"{count} rows of {longest} that read the same values"
    last = rows[-1].name
    for node in reductions:
        axes = draft.nest.reduce_axes[id(node)]
        for part in walk(node.body):
            if isinstance(part, Load) and id(part) in draft.nest.loads and axes:
                form = draft.nest.loads[id(part)]
                if form.stride(last) == ONE and form.stride(axes[-1].name) != ONE:
                    return "neighbouring rows are read together"
    return None


def _share(draft: Draft, reductions: list[Reduce], rows: Dim) -> bool:
    """Whether rows read the same values several times, as the factors of a product are."""
    sizes = {buffer.name: product(buffer.shape) for buffer in draft.kernel.buffers}
    for node in reductions:
        reads = rows * product(axis.extent for axis in draft.nest.reduce_axes[id(node)])
        loads = {part.buffer for part in walk(node.body) if isinstance(part, Load)}
        known = reads.is_const and all(sizes[name].is_const for name in loads)
        if not known or any(sizes[name].const * _TIMES > reads.const for name in loads):
            return False
    return True


def _write(
    draft: Draft,
    writer: Writer,
    reductions: list[Reduce],
    rows: list[Axis],
    inner: list[Axis],
    threads: int,
) -> Shape:
    count = product(axis.extent for axis in rows)
    kind = writer.index_type(count + _BLOCK)
    together, number, lane = 1, "blockIdx.x", "threadIdx.x"
    if threads == _WARP:
        together = 1 if count.is_const and count.const < _FEW_ROWS else _ROWS_OF_WARPS
        number, lane = f"({kind})blockIdx.x * {together} + threadIdx.x / 32", "threadIdx.x % 32"
    writer.line(f"const int lane = {lane};")
    early = _early_loads(draft, writer, rows, inner, threads)
    grid, head = count.ceildiv(together), ""
    if early and count.const > _RESIDENT:  # so that what is read early serves several rows
        grid = min(grid, Dim.of(_RESIDENT // together), key=lambda blocks: blocks.const)
        head = f"for ({kind} row = {number}; row < {count}; row += {grid * together})"
    known = _read_early(writer, inner, early) if early else {}
    with writer.block(head):
        if not head:
            writer.line(f"const {kind} row = {number};")
            writer.line(f"if (row >= {writer.dim(count)}) return;")
        writer.decode("row", [(axis.name, axis.extent) for axis in rows])
        for node in reductions:
            reduce_row(draft, writer, node, threads)
        if inner and len(inner) == 1 and vector.refusal(writer, inner[0]) is None:
            known.update(_known(writer, reductions))
            with packed(writer, inner[0], threads) as base:
                vector.write_points(writer, inner[0].name, base, known)
        elif inner:
            with _strided(writer, inner, threads):
                writer.stores()
        else:
            with writer.block("if (lane == 0)"):
                writer.stores()
    return Shape(
        tactic=f"row(threads={threads})",
        grid=(grid, ONE, ONE),
        threads=threads * together,
        releases=True,
        begins=bool(early),
    )


def _early_loads(
    draft: Draft, writer: Writer, rows: list[Axis], inner: list[Axis], threads: int
) -> list[Load]:
    """Constants that are the same for every row and fit registers: scales of a normalisation."""
    if len(inner) != 1 or vector.refusal(writer, inner[0]) is not None:
        return []
    rounds, rest = divmod(inner[0].extent.const, vector.WIDTH * _WARP)
    if (
        threads != _WARP
        or rest
        or rounds > _UNROLLED
        or not all(axis.extent.is_const for axis in rows)
    ):
        return []
    found, names = [], {axis.name for axis in rows}
    values = [store.value for store in writer.nest.stage.stores]
    for node in (part for value in values for part in writer.always(value).values()):
        if isinstance(node, Load) and node.buffer in draft.constants and node not in found:
            form = writer.nest.loads.get(id(node))
            if form is not None and vector.is_aligned(form, inner[0].name):
                found += [] if writer.nest.depends(node) & names else [node]
    words = rounds * vector.WIDTH * sum(node.dtype.storage_bytes for node in found) // 4
    return found if words <= _EARLY_WORDS else []


def _read_early(writer: Writer, inner: list[Axis], loads: list[Load]) -> dict[Expr, str]:
    """Reads constants before the kernel before this one has ended."""
    names = {node: writer.name("early") for node in loads}
    rounds = inner[0].extent.const // (vector.WIDTH * _WARP)
    for node, name in names.items():
        kind = vector.pack_type(node.dtype)
        writer.line(f"{kind} {name}[{rounds}];")
        with packed(writer, inner[0], _WARP) as base:
            writer.position[inner[0].name] = base
            writer.line(f"{name}[k] = tw_read_early((const {kind}*)&{writer.load(node)});")
    writer.line("tw_begin();")
    return {node: f"{name}[k].v[e]" for node, name in names.items()}


@contextmanager
def _strided(writer: Writer, axes: list[Axis], threads: int) -> Iterator[None]:
    """A loop in which each thread takes every ``threads``-th point of the axes."""
    flat = Axis(writer.name("flat"), product(axis.extent for axis in axes))
    with writer.positions(), writer.loop(flat, start="lane", step=str(threads)) as counter:
        writer.decode(counter, [(axis.name, axis.extent) for axis in axes])
        yield


@contextmanager
def packed(writer: Writer, axis: Axis, threads: int) -> Iterator[str]:
    """A loop in which each thread takes every ``threads``-th pack of neighbours."""
    count, base = (axis.extent // vector.WIDTH).const, writer.name("base")
    rounds = count // threads
    with writer.positions():
        if count % threads == 0 and rounds <= _UNROLLED:
            writer.line("#pragma unroll")
            head = f"for (int k = 0; k < {rounds}; ++k)"
            first = f"(k * {threads} + lane)"
        else:
            head, first = f"for (int k = lane; k < {count}; k += {threads})", "k"
        with writer.block(head):
            writer.line(f"const int {base} = {first} * {vector.WIDTH};")
            yield base


def _known(writer: Writer, reductions: list[Reduce]) -> dict[Expr, str]:
    """The results of the row."""
    return {node: writer.value(node) for node in reductions}


def reduce_row(draft: Draft, writer: Writer, node: Reduce, threads: int) -> None:
    """A reduction by all threads of a row, numbered by ``lane``."""
    axes = draft.nest.reduce_axes[id(node)]
    if _is_packed(writer, node, axes):
        total = _reduce_packed(writer, node, axes[0], threads)
        kind = c_type(node.dtype)
        text = f"tw_reduce_{node.combiner}<{kind}, {threads // 32}>({total})"
        writer.known_as(node, writer.define(kind, text))
        return
    flat = Axis(writer.name("flat"), product(axis.extent for axis in axes))

    @contextmanager
    def loop(_: Axis) -> Iterator[None]:
        with _strided(writer, list(axes), threads):
            yield

    total = writer.accumulate(node, (flat,), loop)
    kind = c_type(node.dtype)
    text = f"tw_reduce_{node.combiner}<{kind}, {threads // 32}>({total})"
    writer.known_as(node, writer.define(kind, text))


def _is_packed(writer: Writer, node: Reduce, axes: tuple[Axis, ...]) -> bool:
    """Whether what a reduction reads lies side by side along its one axis."""
    if len(axes) != 1 or not axes[0].extent.is_const or axes[0].extent.const % vector.WIDTH:
        return False
    forms = [writer.nest.loads.get(id(n)) for n in writer.always(node.body).values()]
    return any(form is not None and vector.is_aligned(form, axes[0].name) for form in forms)


def _reduce_packed(writer: Writer, node: Reduce, axis: Axis, threads: int) -> str:
    """A thread's share of a reduction, a pack at a time, points of a pack in order."""
    kind = c_type(node.dtype)
    start = literal(identity_of(node.combiner, node.dtype), node.dtype)
    total = writer.name("acc")
    writer.line(f"{kind} {total} = {start};")
    with packed(writer, axis, threads) as base:
        writer.position[axis.name] = base
        packs = vector.load_packs(writer, axis.name, [node.body])
        with vector.each_point(writer, axis.name, base, packs):
            value = writer.value(node.body)
            writer.line(f"{total} = {COMBINE[node.combiner]}<{kind}>({total}, {value});")
    return total
