"""Layouts of a segment: channels in blocks of one vector, constants packed.

Input -> Output: fused items -> the same computation over blocked buffers and packed constants,
with decisions.
    conv over [n, c, h, w]  ->  conv over [n, c/16, h, w, 16]: vectors run along 16 output channels,
    rows of pixels reuse the weights, borders of zeros replace guards
Requires: items in execution order; ``keep`` are read outside and stay as they are.
Guarantees: values are unchanged up to the order of sums; a refusal has a reason.
Not here: rewriting kernels (kernel.blocked), what borders are needed (lower.borders), tiles
(codegen).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy.typing as npt

from tilewright.core.dtypes import BFLOAT16, FLOAT32, INT8, UINT8
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.kernel.blocked import (
    Blocker,
    Layout,
    accesses,
    axes_of,
    axis_extents,
    splittable,
)
from tilewright.kernel.dot import BYTES, DotKind, kind_of
from tilewright.kernel.ir import (
    Buffer,
    Kernel,
    Load,
    Reduce,
    Stage,
    Store,
    products,
    walk,
)
from tilewright.kernel.phases import split_phases
from tilewright.kernel.pieces import split_pieces
from tilewright.kernel.verify import verify
from tilewright.lower.bands import in_bands
from tilewright.lower.borders import border_needs, copy_guarded_inputs, guarded_loads
from tilewright.lower.byte_products import BYTE_TYPES, byte_layouts, dot_splits, in_dots
from tilewright.lower.context import Item, View
from tilewright.lower.crowding import ROW_PADDING, crowded_factors
from tilewright.lower.empty_taps import skip_empty_taps
from tilewright.lower.fine_blocks import fine_buffers, whole_buffers
from tilewright.lower.image_chains import by_images
from tilewright.lower.pack import pack_constants
from tilewright.lower.reindex import Refusal
from tilewright.lower.row_bands import in_row_bands
from tilewright.lower.scaled_weights import with_scaled_weights
from tilewright.lower.skipped_pixels import pixels_side_by_side
from tilewright.lower.strassen import Room, apply_strassen, is_image
from tilewright.lower.whole_windows import over_positions
from tilewright.lower.winograd import apply_winograd
from tilewright.runtime.program import Blocked

# What may be disabled.
ALGORITHMS = ("winograd", "strassen", "layout", "pack", "bands")
_CHANNELS = 1
_MAX_PADDING = 1.4
_IMAGES = (FLOAT32, BFLOAT16)
_FACTORS = (*_IMAGES, INT8, UINT8)  # of float32 sums: weights as they are, or of few bits
_MIN_PACKED_REDUCTION = 8
Array = npt.NDArray[Any]


@dataclass(slots=True)
class _Chosen:
    """Values of algorithms: handed on within one, and written in the place of a convolution."""

    between: set[str] = field(default_factory=set)
    convolved: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Segment:
    """What is known of a segment while layouts are chosen."""

    kernels: list[Kernel]
    keep: Collection[str]
    constants: Mapping[str, Array]
    block: int
    least_block: int
    dots: Collection[DotKind]
    viewed: set[str] = field(default_factory=set)
    chosen: _Chosen = field(default_factory=_Chosen)
    shapes: dict[str, tuple[Dim, ...]] = field(default_factory=dict)
    writers: dict[str, Kernel] = field(default_factory=dict)


def choose_layouts(
    items: Sequence[Item],
    keep: Collection[str],
    constants: Mapping[str, Array],
    block: int,
    log: DecisionLog,
    disabled: Collection[str] = (),
    *,
    least_block: int | None = None,
    dots: Collection[DotKind] = (BYTES,),
) -> tuple[list[Item], dict[str, Array], dict[str, Blocked]]:
    """Rewrites a segment's items.

    Args:
        block: float32 lanes of one vector.
        least_block: of a smaller one that costs no more for each lane; by default there is none.
        disabled: of ``ALGORITHMS``, what is not to be done.
        dots: kinds of dot products that sums are to be made of.

    Returns:
        The items, the packed constants that they read, and how blocked values are stored.
    """
    items, added, chosen = _choose_algorithms(items, keep, constants, log, disabled)
    constants = {**constants, **added}
    layouts: dict[str, Layout] = {}
    if "layout" not in disabled:
        items = pixels_side_by_side(items, constants, block, log)
        given = constants

        def is_convolution(kernel: Kernel) -> bool:
            return _is_convolution(kernel, given)

        items, copies = copy_guarded_inputs(items, is_convolution, constants, log)
        layouts = {name: Layout(_CHANNELS, 1) for name in copies}
    blocks = (block, least_block or block)
    segment = _collect(items, keep, constants, blocks, dots)
    segment.chosen = chosen
    if "layout" not in disabled:
        layouts.update(_blocked_buffers(segment, log))
    _add_borders(layouts, segment)
    if "layout" not in disabled:
        fixed = {*keep, *segment.viewed}
        layouts.update(byte_layouts(segment.kernels, fixed, constants, blocks, log))
        _pad_rows(layouts, segment, log)
    blocker = Blocker(layouts, segment.shapes)
    result: list[Item] = []
    for item in items:
        if isinstance(item, View):
            result.append(item)
            continue
        if "pack" in disabled:
            kernel = split_pieces(blocker.kernel(item))
            packed: Any = Refusal("it is disabled")
        else:
            kernel = split_pieces(
                in_dots(blocker.kernel(item, _further_splits(item, segment)), dots)
            )
            packed = pack_constants(kernel, constants)
        if not isinstance(packed, Refusal):
            kernel, arrays = packed
            added.update(arrays)
            log.add("pack", "+".join(item.sources), ", ".join(sorted(arrays)))
        if kernel is not item:
            verify(kernel)
        result.append(kernel)
    known = {*constants, *added}
    if "pack" not in disabled:
        result = with_scaled_weights(result, keep, known, log)
    if "bands" not in disabled:
        result = in_bands(by_images(result, keep, known, log), keep, known, log)
        result = in_row_bands(result, keep, log)
    if "layout" not in disabled:
        result = [
            item if isinstance(item, View) else skip_empty_taps(item, layouts, block)
            for item in result
        ]
    stored = {name: _stored(layout, segment.shapes[name]) for name, layout in layouts.items()}
    return result, added, stored


def _stored(layout: Layout, shape: tuple[Dim, ...]) -> Blocked:
    border = tuple((dim, before, after) for dim, (before, after) in sorted(layout.border.items()))
    return Blocked(dim=layout.dim, block=layout.block, size=shape[layout.dim].const, border=border)


def _choose_algorithms(
    items: Sequence[Item],
    keep: Collection[str],
    constants: Mapping[str, Array],
    log: DecisionLog,
    disabled: Collection[str],
) -> tuple[list[Item], dict[str, Array], _Chosen]:
    """Phases for divided axes, Winograd for 3x3 convolutions, no taps in the padding of whole
    windows, Strassen for matrix products.

    Returns:
        The items, the constants that they read, and what their values are.
    """
    result: list[Item] = []
    added: dict[str, Array] = {}
    chosen = _Chosen()
    room = Room.beside(constants)
    for item in items:
        if isinstance(item, View):
            result.append(item)
            continue
        kernels = [split_phases(item)]
        arrays: dict[str, Array] = {}
        if "winograd" not in disabled:
            kernels, arrays = apply_winograd(kernels, constants, log, keep)
        if "layout" not in disabled and len(kernels) == 1:
            kernels = [over_positions(kernels[0], log)]
        if "strassen" not in disabled and len(kernels) == 1:
            kernels, arrays = apply_strassen(kernels[0], constants, log, room)
        result.extend(kernels)
        added.update(arrays)
        names = [buffer.name for kernel in kernels for buffer in kernel.outputs]
        if len(kernels) > 1:
            chosen.between.update(name for name in names[:-1] if not is_image(name))
            chosen.convolved.update(names if _is_convolution(item, constants) else ())
    return result, added, chosen


def _collect(
    items: Sequence[Item],
    keep: Collection[str],
    constants: Mapping[str, Array],
    blocks: tuple[int, int],
    dots: Collection[DotKind],
) -> _Segment:
    kernels = [item for item in items if isinstance(item, Kernel)]
    segment = _Segment(kernels, keep, constants, *blocks, dots)
    for item in items:
        if isinstance(item, View):
            segment.viewed |= {item.target.name, item.source.name}
            continue
        for buffer in item.buffers:
            segment.shapes.setdefault(buffer.name, buffer.shape)
        for buffer in item.outputs:
            segment.writers[buffer.name] = item
    return segment


# --- which buffers are blocked --------------------------------------------------------------------


def _blocked_buffers(segment: _Segment, log: DecisionLog) -> dict[str, Layout]:
    anchors = {
        id(kernel)
        for kernel in segment.kernels
        if _is_convolution(kernel, segment.constants)
        or not segment.chosen.convolved.isdisjoint(b.name for b in kernel.outputs)
    }
    touched: dict[str, list[Kernel]] = {}
    for kernel in segment.kernels:
        for buffer in (*kernel.inputs, *kernel.outputs):
            touched.setdefault(buffer.name, []).append(kernel)
    finer, whole = _fine_buffers(touched, segment)
    layouts: dict[str, Layout] = {}
    refused: dict[str, str] = {}
    near = anchors
    while near:
        reached: set[int] = set()
        for name, writer in segment.writers.items():
            users = touched[name]
            if name in layouts or name in refused or not any(id(user) in near for user in users):
                continue
            buffer = next(b for b in writer.outputs if b.name == name)
            if buffer.dtype in BYTE_TYPES:
                continue  # decided by byte_layouts
            block = segment.least_block if name in finer else segment.block
            block = whole.get(name, block)
            reason = _unblockable(buffer, users, segment, block)
            if reason is None:
                layouts[name] = Layout(_CHANNELS, block)
                reached |= {id(user) for user in users} - anchors
                log.add("layout", name, f"channels in blocks of {block}")
            else:
                refused[name] = reason
                log.add("layout", name, "row-major", (("blocked channels", reason),))
        near = reached
    return layouts


def _fine_buffers(
    touched: Mapping[str, Sequence[Kernel]], segment: _Segment
) -> tuple[set[str], dict[str, int]]:
    """Buffers that get the least block, and those of one block with its size.

    Groups that share axes are decided together.
    """
    members: dict[str, Dim] = {}
    for name, writer in segment.writers.items():
        buffer = next(b for b in writer.outputs if b.name == name)
        if _unblockable(buffer, touched[name], segment, segment.least_block) is None:
            members[name] = buffer.shape[_CHANNELS]
    stages = [stage for kernel in segment.kernels for stage in kernel.stages]
    whole = {
        name: size
        for name, size in whole_buffers(stages, members, _CHANNELS, segment.least_block).items()
        if not any(buffer.dtype is BFLOAT16 for buffer in segment.writers[name].inputs)
    }  # dot products of pairs sum up for whole vectors of channels
    if segment.least_block == segment.block:
        return set(), whole
    fine = fine_buffers(stages, members, _CHANNELS, segment.block, segment.least_block)
    return fine, whole


def _unblockable(
    buffer: Buffer, users: Sequence[Kernel], segment: _Segment, block: int
) -> str | None:
    """The reason against blocking a buffer, or None."""
    if buffer.name in segment.keep:
        return "it is read outside of the segment"
    if buffer.name in segment.viewed:
        return "it is read under another shape"
    if buffer.name in segment.chosen.between:
        return "an algorithm has its own order for it"
    if buffer.dtype not in _IMAGES:
        return f"it holds {buffer.dtype.name}"
    if len(buffer.shape) not in (3, 4, 5):
        return "it has no spatial dims"
    channels = buffer.shape[_CHANNELS]
    if not channels.is_const:
        return f"the number of channels, {channels}, is not known"
    padded = channels.ceildiv(block).const * block
    if padded > _MAX_PADDING * channels.const:
        return f"{channels} channels would be padded to {padded}"
    if all(size == Dim.of(1) for size in buffer.shape[_CHANNELS + 1 :]):
        return "its spatial dims are 1"
    for kernel in users:
        if kernel.steps is not None or kernel.temporaries:
            return f"{kernel.name} steps through it"
        for stage in kernel.stages:
            extents = axis_extents(stage)
            if any(axis.ordered for axis in stage.axes):
                return f"{kernel.name} reads it in order"
            reduces = any(isinstance(node, Reduce) for node in walk(*stage.roots))
            for name, index in accesses(stage):
                if name != buffer.name:
                    continue
                if splittable(index[_CHANNELS], extents, block, channels) is not None:
                    continue
                if reduces or name in {store.buffer for store in stage.stores}:
                    return f"{kernel.name} does not index its channels by one axis"
    return None


def _is_convolution(kernel: Kernel, constants: Mapping[str, Array]) -> bool:
    """A sum of products whose constant factor moves along the output's channels."""
    return any(
        len(store.index) in (3, 4, 5) and _moves_channels(store, constants)
        for stage in kernel.stages
        for store in stage.stores
    )


def _moves_channels(store: Store, constants: Mapping[str, Array]) -> bool:
    channel, last = (axes_of(store.index[k]) for k in (_CHANNELS, -1))
    for node in walk(store.value):
        if isinstance(node, Reduce) and node.combiner == "sum" and _multiplies(node):
            for part in walk(node.body):
                if isinstance(part, Load) and part.buffer in constants:
                    moving = axes_of(*part.index)
                    if channel & moving and not last & moving:
                        return True
    return False


def _multiplies(node: Reduce) -> bool:
    return bool(products(node.body))


# --- borders --------------------------------------------------------------------------------------


def _add_borders(layouts: dict[str, Layout], segment: _Segment) -> None:
    """Gives buffers the border that guarded loads of convolutions need."""
    wanted: dict[str, dict[int, tuple[int, int]]] = {}
    for kernel in segment.kernels:
        for stage in kernel.stages:
            extents = axis_extents(stage)
            for load, condition in guarded_loads(stage):
                if load.buffer in layouts:
                    needs = border_needs(load, condition, segment.shapes[load.buffer], extents)
                    border = wanted.setdefault(load.buffer, {})
                    for position, (before, after) in needs.items():
                        old = border.get(position, (0, 0))
                        border[position] = (max(old[0], before), max(old[1], after))
    for name, border in wanted.items():
        if border:
            layouts[name] = replace(layouts[name], border=border)


def _pad_rows(layouts: dict[str, Layout], segment: _Segment, log: DecisionLog) -> None:
    """Puts the rows of factors apart that would evict each other from the first cache."""
    factors = {name for kernel in segment.kernels for name in crowded_factors(kernel)}
    for name in segment.writers:
        if name not in factors or name in layouts or name in {*segment.keep, *segment.viewed}:
            continue
        if any(k.steps is not None or k.temporaries for k in segment.kernels if _uses(k, name)):
            continue
        last = len(segment.shapes[name]) - 1
        layouts[name] = Layout(last, 1, {last: (0, ROW_PADDING)})
        log.add("layout", name, f"rows {ROW_PADDING} elements apart")


def _uses(kernel: Kernel, name: str) -> bool:
    return any(buffer.name == name for buffer in (*kernel.inputs, *kernel.outputs))


# --- further axes ---------------------------------------------------------------------------------


def _further_splits(kernel: Kernel, segment: _Segment) -> dict[str, int]:
    """Axes to split though no buffer is blocked along them, so that constants can be packed."""
    if kernel.steps is not None:
        return {}
    splits: dict[str, int] = {}
    for stage in kernel.stages:
        if any(axis.ordered for axis in stage.axes):
            return {}
        for node in walk(*(store.value for store in stage.stores)):
            if isinstance(node, Reduce) and node.combiner == "sum" and _multiplies(node):
                if kind_of(node) in segment.dots:
                    splits.update(dot_splits(node, stage, segment.block))
                else:
                    splits.update(_packed_axis(node, stage, segment))
    return splits


def _packed_axis(node: Reduce, stage: Stage, segment: _Segment) -> dict[str, int]:
    """The axis of a constant factor: a matrix product's last, a convolution's channels."""
    last = stage.axes[-1] if stage.axes else None
    for part in walk(node.body):
        if not isinstance(part, Load) or part.buffer not in segment.constants:
            continue
        moving = axes_of(*part.index)
        names = [axis for axis in stage.axes if axis.name in moving]
        # Of several axes the last is the product's; the others are a batch of matrices.
        is_factor = node.dtype is FLOAT32 and part.dtype in _FACTORS
        if not names or not is_factor or not _is_long(node):
            continue
        axis = names[-1]
        if len(names) > 1 and axis is not last:
            continue
        if not axis.extent.is_const:
            continue
        size = axis.extent.const
        wide = 2 * segment.block
        odd = 3 * segment.block
        whole = size == odd or (size < wide and size % segment.least_block == 0)
        if axis is last and whole:
            return {}  # it lies as a panel does, without padding
        if axis is last and size % wide and size % odd == 0:
            return {axis.name: odd}
        if axis is last and -(-size // wide) * wide <= _MAX_PADDING * size:
            return {axis.name: wide}
        if -(-size // segment.block) * segment.block <= _MAX_PADDING * size:
            return {axis.name: segment.block}
    return {}


def _is_long(node: Reduce) -> bool:
    points = 1
    for axis in node.axes:
        points *= axis.extent.const if axis.extent.is_const else _MIN_PACKED_REDUCTION
    return points >= _MIN_PACKED_REDUCTION
