"""A block for a few packs of 8 neighbours: its threads share the points of their reductions.

    for c: y[c] = sum over h, w: x[h, w, c]
    ->  a thread reads 8 c of every G-th point, the block adds the G parts in order
Why: neighbours lie side by side, so a warp reads whole lines; a row for each c would read one value
of each.
Requires: known sizes, no ordered axes, no guards; reductions of something along the last axis.
Guarantees: partial results are combined in a fixed order, so equal inputs give equal bits.
Not here: long reductions of few columns, which are split first (split_columns).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from tilewright.codegen.cuda import vector
from tilewright.codegen.cuda.pack import BUSY
from tilewright.codegen.cuda.plan import ONE, Draft, Refusal, Shape
from tilewright.codegen.cuda.scalar import COMBINE, c_type
from tilewright.codegen.cuda.writer import Writer
from tilewright.core.shape import Dim, product
from tilewright.kernel.ir import Axis, Expr, Load, Reduce, walk

NAME = "columns"
_THREADS, _PACKS = 512, 16  # of a block
_SHORT = 16  # a thread takes reductions of fewer points
_UNROLLED = 8  # points whose reads are under way together


def columns(draft: Draft, writer: Writer, disabled: Collection[str]) -> Shape | Refusal:
    """Writes the stage, or says why not."""
    reason = "disabled" if NAME in disabled else refusal(draft, writer)
    if reason is not None:
        return Refusal(NAME, reason)
    axes = draft.nest.axes
    last, packs = axes[-1], axes[-1].extent.const // vector.WIDTH
    nodes = _reductions(writer)
    points = max(_points(draft, node).const for node in nodes)
    width = min(packs, _PACKS)
    groups = min(_THREADS // width, points)
    across = -(-packs // width)
    writer.line(f"const int lane = threadIdx.x % {width}, group = threadIdx.x / {width};")
    writer.line(f"const int pack = (int)(blockIdx.x % {across}u) * {width} + lane;")
    writer.line(f"const int row = (int)(blockIdx.x / {across}u);")
    writer.line(f"const bool active = group < {groups} && pack < {packs};")
    writer.decode("row", [(axis.name, axis.extent) for axis in axes[:-1]])
    base = writer.define("int", f"pack * {vector.WIDTH}")
    writer.position[last.name] = base
    shared: dict[Expr, str] = {
        node: _share(draft, writer, node, base, width, groups) for node in nodes
    }
    with writer.block(f"if (group == 0 && pack < {packs})"):
        vector.write_points(writer, last.name, base, shared)
    rows = product(axis.extent for axis in axes[:-1])
    threads = -(-width * groups // 32) * 32
    tactic = f"{NAME}({width * vector.WIDTH} of {groups} threads)"
    return Shape(tactic=tactic, grid=(rows * across, ONE, ONE), threads=threads, releases=True)


def refusal(draft: Draft, writer: Writer) -> str | None:
    """Why a stage is not computed this way, or None."""
    nest = draft.nest
    reason = vector.whole_refusal(writer)
    if reason is not None:
        return reason
    last = nest.axes[-1]
    if not all(axis.extent.is_const for axis in nest.axes):
        return "symbolic sizes"
    nodes = _reductions(writer)
    packs = product(axis.extent for axis in nest.axes).const // vector.WIDTH
    everywhere = [n for n in walk(*nest.stage.roots) if isinstance(n, Reduce)]
    if not nodes or len(everywhere) != len(nodes):
        return "not reductions that every point needs, side by side"
    for node in nodes:
        points = _points(draft, node)
        if not points.is_const or points.const < _SHORT:
            return f"a reduction of {points} points"
        loads = [n for n in writer.always(node.body).values() if isinstance(n, Load)]
        forms = [nest.loads[id(n)] for n in loads if id(n) in nest.loads]
        if last.name not in draft.varies_with(node):
            return "a reduction that all points share"
        if len(loads) > 1 and packs >= BUSY:  # a thread for each keeps the GPU busy
            return f"{packs} packs of products"
        if not any(vector.is_aligned(form, last.name) for form in forms):
            return "nothing is read along the last axis"
    return None


def _reductions(writer: Writer) -> list[Reduce]:
    return vector.reductions(writer, [store.value for store in writer.nest.stage.stores])


def _points(draft: Draft, node: Reduce) -> Dim:
    return product(axis.extent for axis in draft.nest.reduce_axes[id(node)])


def _share(draft: Draft, writer: Writer, node: Reduce, base: str, width: int, groups: int) -> str:
    """A reduction by all threads; the text of its result for point ``e`` of a pack."""
    last, kind = draft.nest.axes[-1].name, c_type(node.dtype)
    axes, points = draft.nest.reduce_axes[id(node)], _points(draft, node).const
    loop = _every(writer, axes, points, groups)
    own = vector.accumulate(writer, node, last, base, loop)
    shared, line = writer.name("shared"), width * vector.WIDTH
    writer.line(f"__shared__ {kind} {shared}[{groups * line}];")
    with writer.block(f"if (group < {groups})"):
        writer.line("#pragma unroll")
        place = f"{shared}[(group * {width} + lane) * {vector.WIDTH} + e]"
        writer.line(f"for (int e = 0; e < {vector.WIDTH}; ++e) {place} = {own};")
    writer.line("__syncthreads();")
    with writer.block(f"if (threadIdx.x < {line})"):
        writer.line(f"{kind} total = {shared}[threadIdx.x];")
        part = f"{shared}[k * {line} + threadIdx.x]"
        combine = f"{COMBINE[node.combiner]}<{kind}>"
        writer.line("#pragma unroll 4")
        writer.line(f"for (int k = 1; k < {groups}; ++k) total = {combine}(total, {part});")
        writer.line(f"{shared}[threadIdx.x] = total;")
    writer.line("__syncthreads();")
    return f"{shared}[lane * {vector.WIDTH} + e]"


@contextmanager
def _every(writer: Writer, axes: tuple[Axis, ...], points: int, groups: int) -> Iterator[None]:
    """A loop in which each group of threads takes every so many-th point."""
    flat = Axis(writer.name("flat"), Dim.of(points))
    writer.line(f"#pragma unroll {_UNROLLED}")
    start = f"active ? group : {points}"
    with writer.positions(), writer.loop(flat, start=start, step=str(groups)) as counter:
        writer.decode(counter, [(axis.name, axis.extent) for axis in axes])
        yield
