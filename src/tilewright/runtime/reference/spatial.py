"""Geometry of sliding windows, shared by convolution and pooling.

Attributes (kernel_shape, strides, dilations, pads, auto_pad, ceil_mode) -> output sizes and pads.
Source: ONNX specification of Conv-22, ConvTranspose-22 and MaxPool-22.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tilewright.runtime.reference.dtypes import Array
from tilewright.runtime.reference.registry import Call

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """One window per output position; all tuples hold one number a spatial axis."""

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    output: tuple[int, ...]

    def spans(self, axis: int) -> tuple[int, int]:
        """Elements that must precede and follow the input so that every window fits."""
        reach = (self.output[axis] - 1) * self.strides[axis]
        reach += (self.kernel[axis] - 1) * self.dilations[axis] + 1
        return self.begin[axis], max(0, reach - self.begin[axis] - self.size[axis])

    def positions(self, axis: int) -> Array:
        """Input index read by (output position, tap) along an axis: [output, kernel]."""
        start = np.arange(self.output[axis]) * self.strides[axis] - self.begin[axis]
        return np.asarray(start[:, None] + np.arange(self.kernel[axis]) * self.dilations[axis])


def per_axis(call: Call, name: str, rank: int, default: int) -> tuple[int, ...]:
    """An INTS attribute with one positive value a spatial axis."""
    value = call.integers(name) or (default,) * rank
    if len(value) != rank or any(item < 1 for item in value):
        raise call.error(f"{name}={list(value)} needs {rank} positive values")
    return value


def pads_of(call: Call, rank: int) -> tuple[int, ...]:
    """The `pads` attribute (begins, then ends), zeros when absent."""
    pads = call.integers("pads") or (0,) * (2 * rank)
    if len(pads) != 2 * rank:
        raise call.error(f"pads={list(pads)} needs {2 * rank} values")
    return pads


def windows(
    call: Call, size: Sequence[int], kernel: Sequence[int], *, crop: bool = False
) -> Windows:
    """Lay windows over an input of spatial `size`; raises OperatorError when none fits.

    Where strides exceed the kernel, SAME padding can come out negative: pooling then cuts the
    input (`crop`), as its specified formula says, while convolution pads nothing.
    """
    rank = len(size)
    if len(kernel) != rank:
        raise call.error(f"kernel {list(kernel)} does not fit spatial shape {list(size)}")
    strides = per_axis(call, "strides", rank, 1)
    dilations = per_axis(call, "dilations", rank, 1)
    auto_pad = call.choice("auto_pad", "NOTSET", AUTO_PADS)
    pads = pads_of(call, rank) if auto_pad == "NOTSET" else (0,) * (2 * rank)
    ceil_mode = bool(call.integer("ceil_mode", 0))
    begin, end, output = [], [], []
    for axis in range(rank):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        before, after = pads[axis], pads[axis + rank]
        if auto_pad.startswith("SAME"):
            count = -(-size[axis] // strides[axis])
            total = (count - 1) * strides[axis] + reach - size[axis]
            total = total if crop else max(0, total)
            before = math.trunc((total + (auto_pad == "SAME_LOWER")) / 2)
            after = total - before
        else:
            room = size[axis] + before + after - reach
            count = room // strides[axis] + 1
            if ceil_mode and auto_pad == "NOTSET":
                count = -(-room // strides[axis]) + 1
                if (count - 1) * strides[axis] >= size[axis] + before:
                    count -= 1  # a window must not start in the padding behind the input
        if count < 0 or (count == 0 and size[axis] + before + after - reach < -strides[axis]):
            raise call.error(f"kernel {list(kernel)} does not fit spatial shape {list(size)}")
        begin.append(before)
        end.append(after)
        output.append(count)
    spans = [size[axis] + begin[axis] + end[axis] for axis in range(rank)]
    call.room(spans, np.dtype(np.float64))
    call.room(output, np.dtype(np.float64))
    return Windows(
        size=tuple(size),
        kernel=tuple(kernel),
        strides=strides,
        dilations=dilations,
        begin=tuple(begin),
        end=tuple(end),
        output=tuple(output),
    )


def padded(x: Array, view: Windows, fill: Any) -> Array:
    """x [N, C, *size] with `fill` around it so that every window fits."""
    spans = [view.spans(axis) for axis in range(len(view.size))]
    if not any(before or after for before, after in spans):
        return x
    return np.pad(x, [(0, 0), (0, 0), *spans], constant_values=fill)


def sliding(x: Array, view: Windows) -> Array:
    """A read-only view [N, C, *output, *kernel] of an input already padded."""
    steps = x.strides[2:]
    strides = [step * stride for step, stride in zip(steps, view.strides, strict=True)]
    taps = [step * dilation for step, dilation in zip(steps, view.dilations, strict=True)]
    return as_strided(
        x,
        (*x.shape[:2], *view.output, *view.kernel),
        (*x.strides[:2], *strides, *taps),
        writeable=False,
    )
