"""Attention of few queries to many keys, as one token of a decoder has: a cluster for each head.

    ->  the blocks of a cluster share the keys; scores, a softmax of their part and its weighted
        values in each block; then the blocks add their parts through shared memory
Requires: a softmax product (softmax_product) of up to 8 queries that share their keys, with keys
and values of one width in rows side by side, those of the past beside new ones if need be.
Guarantees: weights are relative to the highest score of a block's part; sums are float32, in an
order that does not depend on the run; a past that no kernel writes is read before the kernel before
this one has ended.
Not here: many queries (attention), joining kernels into such a product (compiler.join_attention).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tilewright.codegen.cuda import vector
from tilewright.codegen.cuda.operands import draft_of
from tilewright.codegen.cuda.plan import ONE, Draft, Refusal, Shape
from tilewright.codegen.cuda.softmax_product import Rows, SoftmaxProduct, softmax_product
from tilewright.codegen.cuda.writer import Writer
from tilewright.core.dtypes import FLOAT16
from tilewright.core.shape import product
from tilewright.kernel.ir import Axis, Kernel, Load

NAME = "decode"
_THREADS = 256
_WIDTHS = (64, 128)
_MOST_QUERIES = 8
_FEWEST_KEYS, _MOST_KEYS = 128, 1 << 15
_OF_A_BLOCK = 256  # keys that are worth a block
_MOST_BLOCKS = 8  # of a cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class _Match:
    """The parts, the axes around, those of queries and that of a value's elements."""

    parts: SoftmaxProduct
    batch: list[Axis]
    queries: list[Axis]
    width: Axis

    @property
    def group(self) -> int:
        """Queries that share their keys."""
        return product(axis.extent for axis in self.queries).const


def decode(draft: Draft, writer: Writer, disabled: Collection[str]) -> Shape | Refusal:
    """Writes the stage, or says why not."""
    if NAME in disabled:
        return Refusal(NAME, "disabled")
    found = _match(draft)
    if isinstance(found, str):
        return Refusal(NAME, found)
    keys, width = found.parts.keys.extent.const, found.width.extent.const
    split = _split(keys) if draft.clusters else 1
    _write(draft, writer, found, split)
    outputs = found.group * width
    words = (_THREADS // 32 + 1) * outputs + 2 * _MOST_QUERIES + found.group * -(-keys // split)
    count = product(axis.extent for axis in found.batch)
    return Shape(
        tactic=f"{NAME}({found.group} queries, {keys} keys in {split})",
        grid=(count * split, ONE, ONE),
        threads=_THREADS,
        shared_bytes=4 * words,
        cluster=split,
        releases=True,
        begins=True,
        plain=True,
        preludes=("tensor_core.cuh", "deep.cuh", "gemv.cuh", "decode.cuh"),
    )


def decode_refusal(kernel: Kernel) -> str | None:
    """Why a kernel is not computed this way, or None."""
    found = _match(draft_of(kernel))
    return found if isinstance(found, str) else None


def _split(keys: int) -> int:
    return next(n for n in (1, 2, 4, _MOST_BLOCKS) if n == _MOST_BLOCKS or n * _OF_A_BLOCK >= keys)


# --- legality -------------------------------------------------------------------------------------


def _match(draft: Draft) -> _Match | str:
    nest = draft.nest
    if len(nest.stage.stores) != 1 or nest.stage.stores[0].guard is not None:
        return "not one store without a guard"
    if draft.kernel.steps is not None or any(axis.ordered for axis in nest.axes):
        return "an axis is ordered"
    parts = softmax_product(nest.stage.stores[0].value, joined=True)
    if isinstance(parts, str):
        return parts
    if parts.guarded:
        return "guarded weights"
    q = draft.varies_with(parts.q)
    k, v = (frozenset().union(*map(draft.varies_with, r.loads)) for r in (parts.k, parts.v))
    queries = [axis for axis in nest.axes if axis.name in q - k - v]
    width = [axis for axis in nest.axes if axis.name in v - q - k]
    batch = [axis for axis in nest.axes if axis not in queries and axis not in width]
    if len(width) != 1:
        return "queries, keys and values have other axes than attention"
    sizes = (*(axis.extent for axis in nest.axes), parts.keys.extent)
    if not all(extent.is_const for extent in sizes):
        return "symbolic sizes"
    found = _Match(parts=parts, batch=batch, queries=queries, width=width[0])
    depth = nest.reduce_axes[id(parts.products)][0]
    if found.group > _MOST_QUERIES:
        return f"{found.group} queries"
    if not _FEWEST_KEYS <= parts.keys.extent.const <= _MOST_KEYS:
        return f"{parts.keys.extent} keys"
    if found.width.extent != depth.extent or found.width.extent.const not in _WIDTHS:
        return f"rows of {depth.extent} and {found.width.extent} elements"
    for rows, last in ((parts.k, depth), (parts.v, found.width)):
        if not all(vector.is_aligned(nest.loads[id(load)], last.name) for load in rows.loads):
            return "an operand's rows are not read in chunks"
    return found


# --- code -----------------------------------------------------------------------------------------


def _write(draft: Draft, writer: Writer, found: _Match, split: int) -> None:
    parts, nest = found.parts, draft.nest
    keys = nest.reduce_axes[id(parts.total)][0]
    depth = nest.reduce_axes[id(parts.products)][0]
    rank = "(int)tw_rank()" if split > 1 else "0"
    writer.line(f"const int head = (int)(blockIdx.x / {split}u);")
    writer.decode("head", [(axis.name, axis.extent) for axis in found.batch])
    for letter, rows, last in (("k", parts.k, depth), ("v", parts.v, found.width)):
        with writer.block(f"auto {letter}_at = [&](int j)", tail=";"), writer.positions():
            writer.position.update({keys.name: "j", parts.keys.name: "j", last.name: "0"})
            first, *later = (f"&{writer.load(load)}" for load in rows.loads)
            text = f"j < {rows.past} ? {first} : {later[0]}" if later else first
            writer.line(f"return (const u16*)({text});")
    with writer.block("auto q_at = [&](int g, int d)", tail=";"), writer.positions():
        writer.position[depth.name] = "d"
        _queries(writer, found)
        writer.line(f"return {_wide(parts.q)}({writer.load(parts.q)});")
    head = "auto score = [&](int g, int j, float product)"
    with writer.block(head, tail=";"), writer.positions():
        writer.position.update({keys.name: "j", parts.keys.name: "j"})
        _queries(writer, found)
        writer.known_as(parts.products, "product")
        writer.line(f"return {writer.value(parts.scores)};")
    with writer.block("auto store = [&](int g, int d, float sum)", tail=";"), writer.positions():
        writer.position[found.width.name] = "d"
        _queries(writer, found)
        writer.known_as(parts.total, "sum")
        writer.stores()
    kind = "TwDecodeHalf" if parts.q.dtype is FLOAT16 else "TwDecodeBfloat"
    sizes = f"{kind}, {found.width.extent.const}, {found.group}, {split}"
    early = _early(draft, parts)
    count = parts.keys.extent.const
    writer.line(
        f"TwDecode<{sizes}>::run({rank}, {count}, {early}, q_at, k_at, v_at, score, store);"
    )


def _queries(writer: Writer, found: _Match) -> None:
    """The positions of query ``g``."""
    writer.decode("g", [(axis.name, axis.extent) for axis in found.queries])


def _wide(load: Load) -> str:
    return "tw_half_to_float" if load.dtype is FLOAT16 else "tw_bfloat_to_float"


def _early(draft: Draft, parts: SoftmaxProduct) -> int:
    """So many keys and values that no kernel writes."""

    def fixed(rows: Rows) -> int:
        known = [load.buffer in draft.constants for load in rows.loads]
        if all(known):
            return parts.keys.extent.const
        return rows.past if known[0] else 0

    return min(fixed(parts.k), fixed(parts.v))
