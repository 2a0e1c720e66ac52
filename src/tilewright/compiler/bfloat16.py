"""Contractions with known weights on bfloat16: half the bytes, twice the multiplications.

    y = sum(k: x[k] * w[k])   ->   y = sum(k: float32(bf16 x[k]) * float32(bf16 w[k]))
Input -> Output: a fused draft, edited in place; rounded weights join the constants.
Guarantees: weights are rounded once to the nearest even, when the engine is built; values are
rounded where they are stored, if a contraction multiplies them with such weights, or reads them
from memory beyond the caches; all arithmetic and all sums stay float32. Every contraction that
stays in float32 has a decision with the reason.
Not here: layouts and instructions (lower.byte_products, codegen.cpu.dots).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tilewright.compiler.build_program import DraftProgram, DraftSegment
from tilewright.compiler.pair_products import in_pairs
from tilewright.compiler.retype import Narrowing, copy_of, narrowable, pins, reading
from tilewright.compiler.turned_data import along_sums
from tilewright.core.dtypes import BFLOAT16, FLOAT32
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.kernel.affine import access, affine
from tilewright.kernel.counts import buffer_bytes
from tilewright.kernel.dot import PAIRS
from tilewright.kernel.ir import Buffer, Call, Expr, Kernel, Load, Reduce, Stage, walk
from tilewright.lower.byte_products import has_few_channels
from tilewright.lower.winograd import is_profitable

Array = npt.NDArray[Any]
_SUFFIX = "$bfloat16"
_LEAST_DEPTH = 16  # products of a sum; shorter ones cost more to round than to multiply
_LEAST_COLUMNS = 8
_LEAST_TAPS = 3
_EXCEEDING_BYTES = 16 << 20  # of float32: beside what is written, more than a usual third cache


@dataclass(frozen=True, slots=True)
class _Contraction:
    """A sum of products of data and known weights.

    Attributes:
        data, weights: names of the buffers.
        exceeds: the data goes through memory, which half as many bytes take half as long to do.
        has_fewer: Winograd's algorithm has fewer products, as long as its data is float32.
        against: why it stays in float32 in any case, or None.
    """

    kernel: Kernel
    data: str
    weights: str
    exceeds: bool
    has_fewer: bool
    against: str | None

    @property
    def subject(self) -> str:
        return "+".join(self.kernel.sources)


def use_bfloat16(
    program: DraftProgram,
    constants: dict[str, Array],
    log: DecisionLog,
    disabled: Collection[str] = (),
    *,
    pair_lanes: int = 0,
) -> None:
    """Rounds the operands of contractions in every segment, those of sub-programs too.

    Args:
        disabled: algorithms that are not used; without Winograd its convolutions are rounded too.
        pair_lanes: lanes of vectors of pairs; 0: products of computed tensors are not rounded.
    """
    for segment in program.segments():
        _round_segment(segment, constants, log, disabled, pair_lanes)


def _round_segment(
    segment: DraftSegment,
    constants: dict[str, Array],
    log: DecisionLog,
    disabled: Collection[str],
    pair_lanes: int,
) -> None:
    left: set[str] = set()
    if pair_lanes:
        segment.items, left = in_pairs(
            segment.items, segment.keep, constants, _groups(segment), pair_lanes, log
        )
    segment.items = along_sums(segment.items, constants)
    _copy_images(segment, constants)
    found = [
        contraction
        for item in segment.items
        if isinstance(item, Kernel)
        for contraction in _contractions(item, constants, segment.keep, disabled)
    ]
    groups = _groups(segment)
    values = set[str]().union(*(groups.get(name, ()) for name in left))
    weights: dict[str, str] = {}
    for one in sorted(found, key=lambda one: one.has_fewer):
        reason = one.against
        if reason is None and one.data not in groups:
            reason = f"{one.data} is read outside of the segment, or is an input of it"
        if reason is None and one.has_fewer and one.data not in values:
            reason = "Winograd's products in float32 are fewer"
        if reason is not None:
            chosen = "float32"
            if one.exceeds and one.data in groups:
                values |= groups[one.data]
                chosen = "products in float32, of data in bfloat16, which exceeds the caches"
            log.add("precision", one.subject, chosen, (("bfloat16", reason),))
            continue
        values |= groups[one.data]
        weights[one.weights] = one.weights + _SUFFIX
        log.add("precision", one.subject, "products of bfloat16, sums in float32")
    if not values:
        return
    for name, narrow in weights.items():
        constants[narrow] = constants[name].astype(ml_dtypes.bfloat16)
    narrowing = Narrowing(dtype=BFLOAT16, values=frozenset(values), weights=weights, flushes=True)
    segment.items = [narrowing.item(item) for item in segment.items]


def _groups(segment: DraftSegment) -> dict[str, frozenset[str]]:
    """What becomes narrow together with each value that can."""
    return {name: group for group in narrowable(segment.items, segment.keep) for name in group}


def _copy_images(segment: DraftSegment, constants: Mapping[str, Array]) -> None:
    """Puts a copy before the kernels of each image from outside that first convolutions read."""
    made = segment.written()
    images: dict[str, Buffer] = {}
    readers: set[int] = set()
    for item in segment.items:
        if not isinstance(item, Kernel) or pins(item):
            continue
        buffers = {buffer.name: buffer for buffer in item.inputs}
        for stage in item.stages:
            for node in walk(*(store.value for store in stage.stores)):
                operands = _operands(node, constants)
                if operands is None or not isinstance(node, Reduce):
                    continue
                own = buffers[operands[0].buffer]
                if own.name not in made and _is_window(own, node, operands[0]):
                    images[own.name] = own
                    readers.add(id(item))
    copies = {name: replace(own, name=f"{name}/rounded") for name, own in images.items()}
    segment.items = [
        reading(item, copies) if isinstance(item, Kernel) and id(item) in readers else item
        for item in segment.items
    ]
    segment.items[:0] = [copy_of(own, copies[name]) for name, own in images.items()]


def _is_window(image: Buffer, node: Reduce, data: Load) -> bool:
    """True where a sum runs along taps of a row of an image of few channels."""
    taps = node.axes[-1]
    if not has_few_channels(image) or not taps.extent.is_const or taps.extent.const < _LEAST_TAPS:
        return False
    return affine(data.index[-1]).terms.get(taps.name) == Dim.of(1)


def _contractions(
    kernel: Kernel,
    constants: Mapping[str, Array],
    keep: Collection[str],
    disabled: Collection[str],
) -> Iterator[_Contraction]:
    """The sums of products of a kernel, with the reason against each, if there is one."""
    if pins(kernel):
        return
    fewer = "winograd" not in disabled and is_profitable(kernel, constants, keep)
    for stage in kernel.stages:
        for node in walk(*(store.value for store in stage.stores)):
            operands = _operands(node, constants)
            if operands is None or not isinstance(node, Reduce):
                continue
            data, weights = operands
            reason = _reason_against(kernel, stage, node, data, weights)
            exceeds = _exceeds(next(b for b in kernel.inputs if b.name == data.buffer))
            yield _Contraction(kernel, data.buffer, weights.buffer, exceeds, fewer, reason)


def _exceeds(buffer: Buffer) -> bool:
    size = buffer_bytes(buffer)
    return size.is_const and size.const >= _EXCEEDING_BYTES


def _operands(node: Expr, constants: Mapping[str, Array]) -> tuple[Load, Load] | None:
    """Loads of the data (guarded with 0 or not) and of known weights, if a node is their sum."""
    if not isinstance(node, Reduce) or node.combiner != "sum" or node.dtype is not FLOAT32:
        return None
    if not (isinstance(node.body, Call) and node.body.op == "mul"):
        return None
    data, weights = node.body.args
    if isinstance(data, Call) and data.op == "select":
        data = data.args[1]
    if not (isinstance(data, Load) and isinstance(weights, Load)):
        return None
    array = constants.get(weights.buffer)
    known = array is not None and array.dtype == np.float32 and array.ndim > 1
    return (data, weights) if known and data.buffer not in constants else None


def _reason_against(
    kernel: Kernel, stage: Stage, node: Reduce, data: Load, weights: Load
) -> str | None:
    """Why a sum stays in float32, or None."""
    depth = node.axes[0].extent
    buffers = {buffer.name: buffer for buffer in kernel.buffers}
    inner = access(data.index, buffers[data.buffer].shape)
    moving = {name for part in weights.index for name in part.free_axes}
    columns = [axis for axis in stage.axes if axis.name in moving]
    if not _is_window(buffers[data.buffer], node, data):
        if not depth.is_const or depth.const < _LEAST_DEPTH or depth.const % PAIRS.unit:
            return f"{depth} products of a sum, which is not {_LEAST_DEPTH} or more, or is odd"
        if inner.rest or not inner.terms.get(node.axes[0].name, Dim.of(0)).terms:
            return "its data is not read along the sum"
    if len(columns) != 1 or not columns[0].extent.is_const:
        return "its weights are not of one axis of known size"
    if columns[0].extent.const < _LEAST_COLUMNS:
        return f"{columns[0].extent} results of each datum are too few"
    return None
