"""Attention as one function: scores, softmax and weighted values without memory in between.

Requires: a softmax product (softmax_product) of float16 operands whose rows lie side by side.
Guarantees: weights are relative to the highest score of their row; sums are float32, in an order
that does not depend on the run.
Not here: joining kernels into such a product (compiler.join_attention), the code (attention.cuh).
"""

from __future__ import annotations

from collections.abc import Collection

from tilewright.codegen.cuda import vector
from tilewright.codegen.cuda.elements import elements_of
from tilewright.codegen.cuda.operands import CHUNK, draft_of
from tilewright.codegen.cuda.plan import ONE, Draft, Refusal, Shape
from tilewright.codegen.cuda.softmax_product import SoftmaxProduct, softmax_product
from tilewright.codegen.cuda.writer import Writer
from tilewright.core.dtypes import FLOAT32
from tilewright.core.shape import Dim, product
from tilewright.kernel.affine import Affine
from tilewright.kernel.ir import Axis, Expr, Kernel, Load, Reduce, walk

NAME = "attention"
_STEP = 64  # keys of a step
_WIDEST = 128
_MOST_WARPS = 8
_MULTIPROCESSORS = 132
_TERMS = 4


def attention(draft: Draft, writer: Writer, disabled: Collection[str]) -> Shape | Refusal:
    """Writes the stage, or says why not."""
    if NAME in disabled:
        return Refusal(NAME, "disabled")
    found = _match(draft)
    if isinstance(found, str):
        return Refusal(NAME, found)
    parts, batch, rows, width = found
    count = product(axis.extent for axis in batch)
    warps = _warps(rows.extent, count)
    _write(draft, writer, parts, batch, rows, width, warps)
    depth = draft.nest.reduce_axes[id(parts.products)][0].extent.const
    line = depth + width.extent.const + 2 * CHUNK
    halves = 16 * warps * (depth + CHUNK) + 2 * _STEP * line
    return Shape(
        tactic=f"{NAME}({16 * warps} queries, {_STEP} keys)",
        grid=(rows.extent.ceildiv(16 * warps) * count, ONE, ONE),
        threads=32 * warps,
        shared_bytes=2 * halves,
        releases=True,
        preludes=("tensor_core.cuh", "attention.cuh"),
    )


def attention_refusal(kernel: Kernel) -> str | None:
    """Why a kernel is not computed this way, or None."""
    found = _match(draft_of(kernel))
    return found if isinstance(found, str) else None


def _warps(rows: Dim, count: Dim) -> int:
    """Warps of 16 queries: all of a head where a multiprocessor can have one, so that its keys and
    values are fetched once; else as many as leave every multiprocessor a block.
    """
    if not (rows.is_const and count.is_const):
        return 4
    if rows.const <= 16 * _MOST_WARPS and count.const <= _MULTIPROCESSORS:
        return next(warps for warps in (2, 4, _MOST_WARPS) if rows.const <= 16 * warps)
    for warps in (4, 2):
        if -(-rows.const // (16 * warps)) * count.const >= _MULTIPROCESSORS:
            return warps
    return 4 if rows.const * count.const >= 64 * _MULTIPROCESSORS else 2


# --- legality -------------------------------------------------------------------------------------


def _match(draft: Draft) -> tuple[SoftmaxProduct, list[Axis], Axis, Axis] | str:
    """The parts, the axes around, that of queries and that of a value's elements."""
    nest = draft.nest
    if len(nest.stage.stores) != 1 or nest.stage.stores[0].guard is not None:
        return "not one store without a guard"
    if draft.kernel.steps is not None or any(axis.ordered for axis in nest.axes):
        return "an axis is ordered"
    parts = softmax_product(nest.stage.stores[0].value)
    if isinstance(parts, str):
        return parts
    q, k, v = (draft.varies_with(load) for load in _loads(parts))
    rows = [axis for axis in nest.axes if axis.name in q - k - v]
    width = [axis for axis in nest.axes if axis.name in v - q - k]
    batch = [axis for axis in nest.axes if axis not in rows and axis not in width]
    if len(rows) != 1 or len(width) != 1:
        return "queries, keys and values have other axes than attention"
    depth = nest.reduce_axes[id(parts.products)][0]
    for load, last in zip(_loads(parts), (depth, depth, width[0]), strict=True):
        reason = _unfit(draft, load, last)
        if reason is not None:
            return reason
    return parts, batch, rows[0], width[0]


def _loads(parts: SoftmaxProduct) -> tuple[Load, Load, Load]:
    return parts.q, parts.k.loads[0], parts.v.loads[0]


def _unfit(draft: Draft, load: Load, last: Axis) -> str | None:
    if not last.extent.is_const or last.extent.const % 32 or last.extent.const > _WIDEST:
        return f"rows of {last.extent} elements"
    form = draft.nest.loads[id(load)]
    if not vector.is_aligned(form, last.name):
        return "an operand's rows are not copied in chunks"
    return None if draft.writer().bounds.form_is_narrow(form) else "an operand of 2 GiB"


# --- code -----------------------------------------------------------------------------------------


def _write(
    draft: Draft,
    writer: Writer,
    parts: SoftmaxProduct,
    batch: list[Axis],
    rows: Axis,
    width: Axis,
    warps: int,
) -> None:
    nest = draft.nest
    keys = nest.reduce_axes[id(parts.total)][0]
    depth = nest.reduce_axes[id(parts.products)][0]
    writer.line(f"const int M = (int){writer.dim(rows.extent)};")
    writer.line(f"const int N = (int){writer.dim(keys.extent)};")
    writer.line(f"const int down = (M + {16 * warps - 1}) / {16 * warps};")
    writer.line("const int group = (int)(blockIdx.x / (u32)down);")
    writer.decode("group", [(axis.name, axis.extent) for axis in batch])
    q, k, v = _loads(parts)
    for letter, load, row, last, limit in (
        ("q", q, rows, depth, "M"),
        ("k", k, keys, depth, "N"),
        ("v", v, keys, width, "N"),
    ):
        _write_load(writer, letter, nest.loads[id(load)], load, row, last, limit)
    terms = _terms(draft, parts, rows.name)
    kind = f"TwPack<float, {max(1, len(terms))}>"
    with writer.block("auto term = [&](int j)", tail=";"), writer.positions():
        writer.position.update({keys.name: "j", parts.keys.name: "j"})
        writer.line(f"{kind} found;")
        for number, node in enumerate(terms):
            writer.line(f"found.v[{number}] = {writer.value(node)};")
        writer.line("return found;")
    head = f"auto score = [&](int i, int j, float product, const {kind}& terms)"
    with writer.block(head, tail=";"), writer.positions():
        writer.position.update({rows.name: "i", keys.name: "j", parts.keys.name: "j"})
        writer.known_as(parts.products, "product")
        for number, node in enumerate(terms):
            writer.known_as(node, f"terms.v[{number}]")
        writer.line(f"return {writer.value(parts.scores)};")
    head = "auto store = [&](int m, int n, const float* sum)"
    with writer.block(head, tail=";"), writer.positions():
        writer.position[rows.name] = "m"
        if vector.refusal(writer, width) is None:
            vector.write_points(writer, width.name, "n", {parts.total: "sum[e]"})
        else:
            with writer.block(f"for (int e = 0; e < {CHUNK}; ++e)"):
                writer.position[width.name] = "(n + e)"
                writer.known_as(parts.total, "sum[e]")
                writer.stores()
    sizes = f"{depth.extent.const}, {width.extent.const}, {warps}, {max(1, len(terms))}"
    guarded = "true" if parts.guarded else "false"
    elements = elements_of(q.dtype, q.dtype, FLOAT32)
    assert elements is not None
    first = f"(int)(blockIdx.x % (u32)down) * {16 * warps}"
    writer.line(
        f"TwAttention<{elements.name}, {sizes}, {guarded}>::run({first}, M, N, "
        "load_q, load_k, load_v, term, score, store);"
    )


def _terms(draft: Draft, parts: SoftmaxProduct, rows: str) -> list[Expr]:
    """The largest parts of a score that read memory, but are the same for every query."""
    found: list[Expr] = []
    stack = [parts.scores]
    while stack:
        node = stack.pop()
        if node is parts.products or node in found:
            continue
        reads = any(isinstance(part, Load) for part in walk(node))
        alike = not any(isinstance(part, Reduce) for part in walk(node))
        alike = alike and rows not in draft.varies_with(node)
        if reads and alike and node.dtype is FLOAT32 and len(found) < _TERMS:
            found.append(node)
        else:
            stack.extend(node.children)
    return found


def _write_load(
    writer: Writer, letter: str, form: Affine, load: Load, row: Axis, last: Axis, limit: str
) -> None:
    """``load_X``: copies 8 elements of a row, zeros where there is no such row."""
    fixed = {n: f for n, f in form.terms.items() if n not in (row.name, last.name)}
    origin = writer.address(Affine(fixed, form.offset))
    stride = writer.dim(form.terms[row.name])
    writer.line(f"const int origin_{letter} = (int)({origin});")
    buffer = writer.layout.buffers[load.buffer]
    with writer.block(f"auto load_{letter} = [&](u16* to, int row, int at)", tail=";"):
        place = f"origin_{letter} + row * {stride} + at"
        writer.line(f"const bool wanted = row < {limit};")
        writer.line(f"tw_copy8_if(to, &{buffer}[wanted ? {place} : 0], wanted);")
