"""Pad the few channels of an image with zeros, so that they are copied 16 bytes at a time.

    x[n, h, w, c < 3], sum over kh, kw, c < 3   ->   x[n, h, w, c < 8], sum over kh, kw, c < 8
Input -> Output: a fused draft, edited in place; weights join the constants again, padded alike.
Requires: a narrow type and channels last; an image that a kernel makes element by element.
Guarantees: what is computed does not change: products with zeros are added.
Not here: the layout (channels_last).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.codegen.cuda.elements import is_narrow
from tilewright.compiler.build_program import DraftProgram, DraftSegment
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.kernel.ir import (
    AxisVar,
    Buffer,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    Store,
    constant,
    load,
    reduce_axes,
    select,
    walk,
)
from tilewright.kernel.ir import transform as rewrite
from tilewright.lower.context import View

Array = npt.NDArray[Any]
_CHUNK_BYTES = 16
_SUFFIX = "$padded"


def pad_channels_program(
    program: DraftProgram, constants: dict[str, Array], log: DecisionLog
) -> None:
    """Pads in every segment, those of sub-programs too."""
    for segment in program.segments():
        _segment(segment, constants, log)


def _segment(step: DraftSegment, constants: dict[str, Array], log: DecisionLog) -> None:
    for copy, image, readers in private_copies(step):
        chunk = _chunk(image)
        if not image.shape[-1].is_const or image.shape[-1].const >= chunk:
            continue
        weights = [_weight(kernel, image, constants) for kernel in readers]
        if not readers or not all(weights):
            continue
        for name in weights:
            array = constants[name]
            missing = chunk - array.shape[-1]
            constants[name + _SUFFIX] = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)])
        names = {image.name, *weights}
        made = {id(copy): _padded_copy(copy)}
        made |= {id(kernel): _padded(kernel, names, chunk) for kernel in readers}
        step.items = [made.get(id(item), item) for item in step.items]
        log.add(
            "layout", copy.name, f"{image.shape[-1]} channels of {image.name} padded to {chunk}"
        )


def private_copies(step: DraftSegment) -> Iterator[tuple[Kernel, Buffer, list[Kernel]]]:
    """Elementwise kernels whose results nothing outside of the segment and no view sees, these
    results, and who reads them.

    The items of the step may be replaced meanwhile.
    """
    kernels = [item for item in step.items if isinstance(item, Kernel)]
    viewed = {item.source.name for item in step.items if isinstance(item, View)}
    for copy in kernels:
        image = copy.outputs[0]
        if is_copy(copy) and image.name not in viewed and image.name not in step.keep:
            readers = [k for k in kernels if any(b.name == image.name for b in k.inputs)]
            yield copy, image, readers


def is_copy(kernel: Kernel) -> bool:
    """Whether a kernel makes a narrow image element by element."""
    image = kernel.outputs[0]
    if not kernel.is_pure or not is_narrow(image.dtype.numpy) or len(image.shape) < 3:
        return False
    return not any(isinstance(node, Reduce) for node in walk(*kernel.roots))


def _chunk(image: Buffer) -> int:
    return _CHUNK_BYTES // image.dtype.storage_bytes


def _weight(kernel: Kernel, image: Buffer, constants: Mapping[str, Array]) -> str:
    """The weight whose last dim is summed together with the image's; nothing if there is none."""
    found: set[str] = set()
    for node in walk(*kernel.roots):
        if not isinstance(node, Reduce) or node.combiner != "sum":
            continue
        last = node.axes[-1].name
        parts = [part for part in walk(node.body) if isinstance(part, Load)]
        if not any(part.buffer == image.name for part in parts):
            continue
        for part in parts:
            index = part.index[-1]
            along = isinstance(index, AxisVar) and index.name == last
            alone = all(last not in other.free_axes for other in part.index[:-1])
            if not (along and alone and is_narrow(part.dtype.numpy)):
                return ""
            if part.buffer in constants:
                found.add(part.buffer)
            elif part.buffer != image.name:
                return ""
    outside = sum(
        isinstance(n, Load) and n.buffer in {image.name, *found} for n in walk(*kernel.roots)
    )
    return found.pop() if len(found) == 1 and outside == 2 and kernel.steps is None else ""


def _grown(buffer: Buffer) -> Buffer:
    shape = (*buffer.shape[:-1], Dim.of(_chunk(buffer)))
    return replace(buffer, name=buffer.name + _SUFFIX, shape=shape)


def _padded_copy(copy: Kernel) -> Kernel:
    (stage,), (image,) = copy.stages, copy.outputs
    (store,) = stage.stores
    index = store.index[-1]
    assert isinstance(index, AxisVar)
    axes = tuple(
        replace(axis, extent=Dim.of(_chunk(image))) if axis.name == index.name else axis
        for axis in stage.axes
    )
    value = select(index.lt(image.shape[-1].const), store.value, constant(0, image.dtype))
    made = Store(image.name + _SUFFIX, store.index, value)
    return replace(copy, outputs=(_grown(image),), stages=(Stage(axes, (made,)),))


def _padded(kernel: Kernel, names: set[str], chunk: int) -> Kernel:
    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer in names:
            return load(node.buffer + _SUFFIX, node.dtype, node.index)
        if isinstance(node, Reduce) and any(
            isinstance(part, Load) and part.buffer.removesuffix(_SUFFIX) in names
            for part in walk(node.body)
        ):
            axes = (*node.axes[:-1], replace(node.axes[-1], extent=Dim.of(chunk)))
            return reduce_axes(node.combiner, axes, node.body)
        return None

    stages = tuple(
        replace(s, stores=tuple(x.mapped(lambda root: rewrite(root, rule)) for x in s.stores))
        for s in kernel.stages
    )
    inputs = tuple(_grown(own) if own.name in names else own for own in kernel.inputs)
    return replace(kernel, inputs=inputs, stages=stages)
