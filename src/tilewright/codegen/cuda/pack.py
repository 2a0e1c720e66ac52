"""A thread for each 8 neighbours: the last axis is read and written 16 bytes at once.

    for n, h, w, c: y[n, h, w, c] = max_kh,kw x[n, h + kh, w + kw, c]   ->   a thread for 8 c
Requires: no ordered axes, no guards; stores along the last axis; reductions that are short and of
something along it.
Not here: the code of 8 points (vector).
"""

from __future__ import annotations

from collections.abc import Collection

from tilewright.codegen.cuda import vector
from tilewright.codegen.cuda.plan import ONE, Draft, Refusal, Shape
from tilewright.codegen.cuda.writer import Writer
from tilewright.core.shape import product
from tilewright.kernel.ir import Load, Reduce, walk

NAME = "pack"
THREADS, FEW_THREADS = 128, 64
_FEW = 132 * 128  # packs
_ALONE = 16  # neighbours of one point, which are stored together wherever they come from
_LONGEST = 128  # of a reduction: more points are shared by threads
BUSY, _LONG = 20000, 16  # fewer packs of longer reductions leave the GPU idle,
_IDLE = 512  # so few do with any
_MANY = 132 * 2048  # packs that keep the GPU busy however long they wait


def pack(draft: Draft, writer: Writer, disabled: Collection[str]) -> Shape | Refusal:
    """Writes the stage, or says why not."""
    reason = "disabled" if NAME in disabled else _refusal(draft, writer)
    if reason is not None:
        return Refusal(NAME, reason)
    axes = draft.nest.axes
    last, extent = axes[-1], axes[-1].extent // vector.WIDTH
    total = product(axis.extent for axis in axes[:-1]) * extent
    few = total.is_const and total.const < _FEW
    threads = FEW_THREADS if few else THREADS
    kind = writer.index_type(total * vector.WIDTH + threads)
    writer.line(f"const {kind} pack = ({kind})blockIdx.x * {threads} + threadIdx.x;")
    writer.line(f"if (pack >= {writer.dim(total)}) return;")
    writer.decode("pack", [*((a.name, a.extent) for a in axes[:-1]), (last.name, extent)])
    base = writer.define("int", f"(int){writer.position[last.name]} * {vector.WIDTH}")
    vector.write_points(writer, last.name, base, {})
    return Shape(tactic=NAME, grid=(total.ceildiv(threads), ONE, ONE), threads=threads)


def _refusal(draft: Draft, writer: Writer) -> str | None:
    nest = draft.nest
    reason = vector.whole_refusal(writer)
    if reason is not None:
        return reason
    last = nest.axes[-1]
    forms = [form for form in nest.loads.values() if vector.is_aligned(form, last.name)]
    if not forms and last.extent.const > _ALONE:
        return "nothing is read along the last axis"
    values = [store.value for store in nest.stage.stores]
    always = vector.reductions(writer, values)
    for node in (n for n in walk(*values) if isinstance(n, Reduce)):
        points = product(axis.extent for axis in nest.reduce_axes[id(node)])
        if node not in always:
            return "a reduction that only some points need"
        if any(isinstance(part, Reduce) for part in walk(node.body)):
            return "a reduction of a reduction"
        if not points.is_const or points.const > _LONGEST:
            return f"a reduction of {points} points"
        packs = product(axis.extent for axis in nest.axes) // vector.WIDTH
        if packs.is_const and packs.const < (BUSY if points.const >= _LONG else _IDLE):
            return f"{packs} threads with {points} points each"
        loads = [part for part in walk(node.body) if isinstance(part, Load)]
        reads = sum(not _is_pack(draft, part, last.name) for part in loads)
        if packs.is_const and packs.const < _MANY and reads > 1:
            return (
                f"{packs} threads that read {reads} values one by one for each of {points} points"
            )
        if last.name not in draft.varies_with(node):
            return "a reduction that all points share"
    return None


def _is_pack(draft: Draft, node: Load, axis: str) -> bool:
    form = draft.nest.loads.get(id(node))
    return form is not None and vector.is_aligned(form, axis)
