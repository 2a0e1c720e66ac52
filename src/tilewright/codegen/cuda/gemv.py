"""Products of one vector: warps read rows of weights, several rows where an output needs them.

    out[n] = f(sum_k w[n, k] * x(k), sum_k w[n + N, k] * x(k), ..)
    ->  weights in registers; the kernel before this one ends; x(k) once a block into shared memory,
        after the sums that it needs (those of a normalisation, say); sums; f and its stores
Requires: weights of 16 bits whose rows lie side by side in chunks; factors x(k) that are the same
for every output and every sum; known sizes.
Guarantees: sums are float32, in an order that does not depend on the run. Constants are fetched
before the kernel before this one has ended.
Not here: what is put into one kernel (compiler.join_vectors).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from tilewright.codegen.cuda import vector
from tilewright.codegen.cuda.operands import CHUNK, draft_of
from tilewright.codegen.cuda.plan import ONE, Draft, Refusal, Shape
from tilewright.codegen.cuda.row import packed, reduce_row
from tilewright.codegen.cuda.scalar import c_type
from tilewright.codegen.cuda.softmax_product import alike
from tilewright.codegen.cuda.writer import Writer
from tilewright.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from tilewright.core.shape import Dim, product
from tilewright.kernel.ir import Axis, Call, Cast, Expr, Kernel, Load, Reduce, walk
from tilewright.kernel.nest import prepare

NAME = "gemv"
_WARPS = 8
_THREADS = 32 * _WARPS
_MOST_STEPS = 8  # chunks of a row that a thread holds
_MOST_CHUNKS = 16  # of all rows
_SHORTEST, _LONGEST = 64, _MOST_STEPS * _WARPS * 32 * CHUNK
_MULTIPROCESSORS = 132
_WIDEN = {FLOAT16: "tw_half_to_float", BFLOAT16: "tw_bfloat_to_float"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sum:
    """A sum: the row of weights, the factor of the vector, the axis of both."""

    node: Reduce
    weight: Load
    factor: Expr
    axis: Axis


def gemv(draft: Draft, writer: Writer, disabled: Collection[str]) -> Shape | Refusal:
    """Writes the stage, or says why not."""
    if NAME in disabled:
        return Refusal(NAME, "disabled")
    found = _match(draft, writer)
    if isinstance(found, str):
        return Refusal(NAME, found)
    count = product(axis.extent for axis in draft.nest.axes).const
    warps = _warps(found[0].axis.extent.const // CHUNK, len(found), count)
    stored = _stored(found[0].factor)
    _write(draft, writer, found, warps, count)
    return Shape(
        tactic=f"{NAME}({len(found)} rows of {found[0].axis.extent}, warps={warps})",
        grid=(Dim.of(-(-count * warps // _WARPS)), ONE, ONE),
        threads=_THREADS,
        shared_bytes=found[0].axis.extent.const * stored.storage_bytes,
        releases=True,
        begins=True,
        plain=True,
        beside=True,
        preludes=("tensor_core.cuh", "gemv.cuh"),
    )


def gemv_refusal(kernel: Kernel, stage: int = 0) -> str | None:
    """Why a stage of a kernel is not computed this way, or None."""
    draft = _draft(kernel, stage)
    found = _match(draft, draft.writer())
    return found if isinstance(found, str) else None


def blocks_of(kernel: Kernel) -> float:
    """Blocks of all stages; infinity if one is not computed this way."""
    total = 0
    for number in range(len(kernel.stages)):
        draft = _draft(kernel, number)
        found = _match(draft, draft.writer())
        if isinstance(found, str):
            return math.inf
        count = product(axis.extent for axis in draft.nest.axes).const
        total += -(
            -count * _warps(found[0].axis.extent.const // CHUNK, len(found), count) // _WARPS
        )
    return total


def _draft(kernel: Kernel, stage: int) -> Draft:
    own = draft_of(kernel)
    return own if stage == 0 else replace(own, nest=prepare(kernel, kernel.stages[stage]))


def _warps(chunks: int, sums: int, count: int) -> int:
    """Warps of an output: few chunks a thread, and enough blocks for every multiprocessor."""
    warps = 1
    while warps < _WARPS:
        steps = -(-chunks // (32 * warps))
        few = count * warps < _MULTIPROCESSORS * _WARPS and steps > 1
        if steps <= _MOST_STEPS and steps * sums <= _MOST_CHUNKS and not few:
            break
        warps *= 2
    return warps


# --- legality -------------------------------------------------------------------------------------


def _match(draft: Draft, writer: Writer) -> list[_Sum] | str:
    nest = draft.nest
    if draft.kernel.steps is not None or any(axis.ordered for axis in nest.axes):
        return "an axis is ordered"
    if any(store.guard is not None for store in nest.stage.stores):
        return "a store is guarded"
    if any(isinstance(n, Load) and n.buffer in writer.stored for n in walk(*nest.stage.roots)):
        return "it reads what it stores"
    own = {axis.name for axis in nest.axes if axis.extent != ONE}
    nodes = vector.reductions(writer, [store.value for store in nest.stage.stores])
    found = [_sum(draft, node, own) for node in nodes]
    reason = next((part for part in found if isinstance(part, str)), None)
    sums = [part for part in found if isinstance(part, _Sum)]
    if reason is not None or not sums:
        return reason or "no sum that every output needs"
    if not all(axis.extent.is_const for axis in nest.axes):
        return "symbolic sizes"
    first = sums[0]
    for other in sums[1:]:
        names = {first.node.axes[0].name: other.node.axes[0].name}
        if other.axis.extent != first.axis.extent or other.weight.dtype is not first.weight.dtype:
            return "sums of several sizes"
        if not alike(first.factor, other.factor, names):
            return "sums of several vectors"
    if len(sums) > _MOST_CHUNKS:
        return f"{len(sums)} sums"
    depth = first.axis.extent
    if not depth.is_const or depth.const % CHUNK or not _SHORTEST <= depth.const <= _LONGEST:
        return f"a depth of {depth}"
    rest = [n for store in nest.stage.stores for n in walk(store.value) if isinstance(n, Reduce)]
    known = {id(part) for one in sums for part in walk(one.node)}
    if any(id(node) not in known for node in rest):
        return "a sum that only some outputs need"
    return sums


def _sum(draft: Draft, node: Reduce, own: set[str]) -> _Sum | str:
    """A sum of products of a row of weights; ``own`` are the axes of outputs."""
    nest, body = draft.nest, node.body
    axes = nest.reduce_axes[id(node)]
    if node.combiner != "sum" or node.dtype is not FLOAT32 or len(node.axes) != 1:
        return "no sum of float32 over one axis"
    if not isinstance(body, Call) or body.op != "mul":
        return "not a sum of products"
    for weight, factor in (body.args, body.args[::-1]):
        if not isinstance(weight, Cast) or not isinstance(weight.arg, Load):
            continue
        load = weight.arg
        if load.dtype not in _WIDEN or not own <= draft.varies_with(load):
            continue
        if own & draft.varies_with(factor):
            return "both factors differ from output to output"
        form = nest.loads[id(load)]
        if not vector.is_aligned(form, axes[0].name):
            return "rows of weights are not read in chunks"
        return _Sum(node=node, weight=load, factor=factor, axis=axes[0])
    return "no factor is a row of weights for each output"


def _stored(factor: Expr) -> DType:
    """The type in which a block keeps the vector."""
    if isinstance(factor, Cast) and factor.arg.dtype in _WIDEN and not factor.bits:
        return factor.arg.dtype
    return FLOAT32


# --- code -----------------------------------------------------------------------------------------


def _write(draft: Draft, writer: Writer, sums: list[_Sum], warps: int, count: int) -> None:
    chunks = sums[0].axis.extent.const // CHUNK
    stride, steps = 32 * warps, -(-chunks // (32 * warps))
    writer.line(f"const int lane = threadIdx.x, inside = threadIdx.x % {stride};")
    writer.line(f"const int given = block * {_WARPS // warps} + threadIdx.x / {stride};")
    writer.line(f"const int point = given < {count} ? given : {count - 1};")
    writer.decode("point", [(axis.name, axis.extent) for axis in draft.nest.axes])
    early = all(one.weight.buffer in draft.constants for one in sums)
    if not early:
        writer.line("tw_begin();")
    _fetch(writer, sums, stride, steps, chunks)
    if early:
        writer.line("tw_begin();")
    for store in draft.nest.stage.stores:  # what outputs need of memory is under way early
        for node in writer.always(store.value).values():
            if isinstance(node, Load):
                writer.value(node)
    _share_vector(draft, writer, sums[0])
    _accumulate(writer, sums, stride, steps, chunks)
    for number, one in enumerate(sums):
        parts = f"parts{number}"
        writer.line(f"__shared__ float {parts}[{_WARPS}];")
        total = f"tw_sum_of_warps<{warps}, {_WARPS}>(sum{number}, {parts})"
        writer.known_as(one.node, writer.define("float", total))
    with writer.block(f"if (inside == 0 && given < {count})"):
        writer.stores()


def _fetch(writer: Writer, sums: list[_Sum], stride: int, steps: int, chunks: int) -> None:
    """A thread's chunks of every row."""
    for number in range(len(sums)):
        writer.line(f"TwPack<u16, {CHUNK}> row{number}[{steps}];")
    writer.line("#pragma unroll")
    with writer.block(f"for (int s = 0; s < {steps}; ++s)"), writer.positions():
        place = f"s * {stride} + inside"
        if chunks % stride:
            place = f"({place} < {chunks} ? {place} : 0)"
        writer.line(f"const int at = ({place}) * {CHUNK};")
        for number, one in enumerate(sums):
            writer.position[one.axis.name] = "at"
            writer.line(f"row{number}[s] = tw_stream8(&{writer.load(one.weight)});")


def _share_vector(draft: Draft, writer: Writer, one: _Sum) -> None:
    """The vector in shared memory, after the reductions that all of it needs."""
    kind = _stored(one.factor)
    value = one.factor.children[0] if kind is not FLOAT32 else one.factor
    for node in writer.hoisted(one.node):
        if isinstance(node, Reduce):
            reduce_row(draft, writer, node, _THREADS)
    text = f"TwPack<{c_type(kind)}, {CHUNK}>"
    writer.line(f"{text}* vector = ({text}*)tw_shared;")
    axis = one.axis
    with packed(writer, axis, _THREADS) as base:
        writer.position[axis.name] = base
        packs = vector.load_packs(writer, axis.name, [value])
        writer.line(f"{text} made;")
        with vector.each_point(writer, axis.name, base, packs):
            writer.line(f"made.v[e] = {writer.value(value)};")
        writer.line(f"vector[{base} / {CHUNK}] = made;")
    writer.line("__syncthreads();")


def _accumulate(writer: Writer, sums: list[_Sum], stride: int, steps: int, chunks: int) -> None:
    kind, weights = _stored(sums[0].factor), _WIDEN[sums[0].weight.dtype]
    for number in range(len(sums)):
        writer.line(f"float sum{number} = 0;")
    writer.line("#pragma unroll")
    with writer.block(f"for (int s = 0; s < {steps}; ++s)"):
        writer.line(f"const int at = s * {stride} + inside;")
        if chunks % stride:
            writer.line(f"if (at >= {chunks}) break;")
        writer.line("const auto x = vector[at];")
        writer.line("#pragma unroll")
        with writer.block(f"for (int e = 0; e < {CHUNK}; ++e)"):
            factor = f"{_WIDEN[kind]}(x.v[e])" if kind in _WIDEN else "x.v[e]"
            writer.line(f"const float factor = {factor};")
            for number in range(len(sums)):
                writer.line(f"sum{number} += {weights}(row{number}[s].v[e]) * factor;")
