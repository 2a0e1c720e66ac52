"""Means and second moments of what the weights of a layer are multiplied with.

Input -> Output: the layer's input, batch by batch -> the mean patch, and for each group the mean
product of two elements of a patch.
    a row of MatMul and Gemm is its own patch; of Conv, [channels of a group * kernel] numbers
Guarantees: memory is bounded by the layer, not by the data; borders count as the padding does.
Not here: what is done with them (bias_correction, adaround).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compress.layers import Layer
from tilewright.graph.view import NodeView

Array = npt.NDArray[Any]

_MOST_ELEMENTS = 3072  # of a patch, whose second moments are a matrix
_MOST_MAGNITUDE = 1e15  # of an input: sums of its squares stay float32
_POSITIONS = 64  # of a picture that go into second moments, spread evenly


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How a convolution walks.

    Attributes:
        kernel, strides, dilations: by spatial dim.
        pads: (before, after) by spatial dim.
        groups: of channels.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    groups: int

    @staticmethod
    def of(node: NodeView, weights: Array) -> Window | None:
        """The window of a Conv; None where its padding depends on the input."""
        kernel = weights.shape[2:]
        dims = len(kernel)
        if str(node.attribute("auto_pad", "NOTSET")) not in ("NOTSET", "VALID"):
            return None
        pads = [int(pad) for pad in node.attribute("pads", None) or [0] * (2 * dims)]
        return Window(
            kernel=tuple(kernel),
            strides=tuple(int(step) for step in node.attribute("strides", None) or [1] * dims),
            dilations=tuple(int(d) for d in node.attribute("dilations", None) or [1] * dims),
            pads=tuple(zip(pads[:dims], pads[dims:], strict=True)),
            groups=int(node.attribute("group", 1)),
        )

    def patches(self, x: Array) -> Array:
        """A view [samples, channels, positions..., kernel...] of x [samples, channels, ...]."""
        padded = np.pad(x, ((0, 0), (0, 0), *self.pads))
        spans = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]
        axes = tuple(range(2, x.ndim))
        windows = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=axes)
        steps = tuple(slice(None, None, step) for step in self.strides)
        taps = tuple(slice(None, None, step) for step in self.dilations)
        return windows[(slice(None), slice(None), *steps, *taps)]


class Moments:
    """Of one layer.

    Attributes:
        known: whether the layer's patches can be told; a Conv that chooses its padding has none.
        is_huge: whether inputs were too large for products in float32, and no second ones are kept.
        count: rows or pictures so far.
    """

    def __init__(
        self, layer: Layer, node: NodeView, *, second: bool, most: int = _MOST_ELEMENTS
    ) -> None:
        self.window = Window.of(node, layer.weights) if layer.op_type == "Conv" else None
        self.known = layer.op_type in ("Gemm", "MatMul") or self.window is not None
        groups = self.window.groups if self.window is not None else 1
        inside = layer.weights.shape[1 if self.window or layer.transposed else 0]
        elements = inside * int(np.prod(self.window.kernel)) if self.window else inside
        self.total = np.zeros((groups, elements))
        wanted = second and self.known and elements <= most
        self.products = np.zeros((groups, elements, elements)) if wanted else None
        self.chosen = np.zeros((groups, elements))  # sum of the patches in ``products``
        self.count = self.num_products = 0
        self.is_huge = False

    def add(self, x: Array) -> None:
        """Takes a batch of the layer's inputs."""
        if self.window is None:
            rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
            self.total += rows.sum(0)
            self.count += len(rows)
            self._multiply(rows[None].astype(np.float32))
            return
        groups = len(self.total)
        summed = x.sum(0, dtype=np.float64, keepdims=True)
        patches = self.window.patches(summed)
        dims = len(self.window.kernel)
        positions = patches.shape[2 : 2 + dims]
        mean = patches.mean(axis=tuple(range(2, 2 + dims)))[0]  # [channels, kernel...]
        self.total += mean.reshape(groups, -1)
        self.count += len(x)
        if self.products is not None:
            self._multiply(_chosen(self.window.patches(x), positions, groups))

    def _multiply(self, rows: Array) -> None:
        """rows: [groups, patches, elements]."""
        if self.products is None:
            return
        if np.abs(rows).max(initial=0) > _MOST_MAGNITUDE:
            self.products, self.is_huge = None, True
            return
        self.products += np.matmul(rows.transpose(0, 2, 1), rows)
        self.chosen += rows.sum(1, dtype=np.float64)
        self.num_products += rows.shape[1]

    @property
    def mean(self) -> Array:
        """The mean patch, [groups, elements]."""
        average: Array = self.total / max(self.count, 1)
        return average

    def gram(self, *, centred: bool) -> Array:
        """The mean product of two elements of a patch, [groups, elements, elements].

        Args:
            centred: of what they differ from their mean, for layers whose mean error is corrected.

        Raises:
            ValueError: only means were asked for.
        """
        if self.products is None:
            raise ValueError("these moments have no second ones")
        number = max(self.num_products, 1)
        average: Array = self.products / number
        if centred:
            mean = self.chosen / number
            average = average - mean[:, :, None] * mean[:, None, :]
        return average


UNKNOWN = "only of Conv without auto_pad, Gemm and MatMul it is known what weights meet"


def why_none(moments: Moments | None) -> str | None:
    """Why there are no second moments; None where there are some."""
    if moments is None:
        return "no data"
    if not moments.known:
        return UNKNOWN
    if moments.is_huge:
        return f"its inputs exceed {_MOST_MAGNITUDE:g}, and their products float32"
    return None if moments.products is not None else "its patches are too large"


def _chosen(patches: Array, positions: tuple[int, ...], groups: int) -> Array:
    """Some patches of each sample, [groups, patches, elements]."""
    num = int(np.prod(positions))
    step = max(1, num // _POSITIONS)
    where = np.unravel_index(np.arange(num)[step // 2 :: step], positions)
    every: Any = slice(None)
    chosen = patches[(every, every, *where)]  # [samples, channels, chosen, kernel...]
    samples, channels, count = chosen.shape[:3]
    split = chosen.reshape(samples, groups, channels // groups, count, -1)
    return np.ascontiguousarray(split.transpose(1, 0, 3, 2, 4)).reshape(groups, samples * count, -1)


def as_matrix(layer: Layer, weights: Array) -> Array:
    """Weights as [groups, outputs of a group, elements of a patch]."""
    if layer.op_type == "Conv":
        return weights.reshape(layer.groups, weights.shape[0] // layer.groups, -1)
    return (weights if layer.transposed else weights.T)[None]


def from_matrix(layer: Layer, matrix: Array) -> Array:
    """The opposite of ``as_matrix``."""
    if layer.op_type == "Conv":
        return matrix.reshape(layer.weights.shape)
    return np.ascontiguousarray(matrix[0] if layer.transposed else matrix[0].T)
