"""Convolution and pooling: the params of every padding rule, for every size."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.core.errors import InvalidModel, ShapeMismatch
from unit.graph.shapes.builder import Builder, dims


def _positions(size: int, begin: int, end: int, reach: int, stride: int, *, ceil: bool) -> int:
    """Counts windows; in ceil mode the last may hang over, but not start past the data."""
    count, start = 0, -begin
    while start + reach <= size + end:
        count, start = count + 1, start + stride
    hangs = ceil and start < size and start + reach - stride < size + end
    return count + hangs


@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("pads", [(0, 0), (1, 1), (0, 2)])
def test_pooling_counts_windows(ceil: int, stride: int, pads: tuple[int, int]) -> None:
    graph = Builder()
    graph.input("x", "n", 3, "h")
    graph.add("MaxPool", "x", out="y", kernel_shape=[3], strides=[stride], pads=list(pads),
              dilations=[1], ceil_mode=ceil)  # fmt: skip
    found = graph.infer()
    for size in range(3, 14):
        expected = _positions(size, *pads, 3, stride, ceil=bool(ceil))
        shape = [dim.evaluate({"n": 1, "h": size}) for dim in found.shape("y") or ()]
        assert shape == [1, 3, expected], size


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (3, 2)])
def test_same_padding_of_every_size(auto_pad: str, stride: int, dilation: int) -> None:
    graph = Builder()
    graph.input("x", 1, 4, "h")
    weights = graph.constant(np.zeros((8, 4, 3)), np.float32)
    graph.add("Conv", "x", weights, out="y", auto_pad=auto_pad, strides=[stride],
              dilations=[dilation])  # fmt: skip
    found = graph.infer()
    pads = found.node("y").params["pads"]
    reach = 2 * dilation + 1
    for size in range(1, 15):
        positions = -(-size // stride)
        total = max((positions - 1) * stride + reach - size, 0)
        small = total // 2
        expected = [small, total - small] if auto_pad == "SAME_UPPER" else [total - small, small]
        assert [dim.evaluate({"h": size}) for dim in pads] == expected
        assert (found.shape("y") or ())[2].evaluate({"h": size}) == positions


def test_transposed_pads_from_the_wanted_size() -> None:
    graph = Builder()
    graph.input("x", 1, 4, 5)
    weights = graph.constant(np.zeros((4, 2, 3)), np.float32)
    graph.add("ConvTranspose", "x", weights, out="y", strides=[2], output_shape=[10])
    found = graph.infer()
    assert found.shape("y") == dims(1, 2, 10)
    assert found.node("y").params["pads"] == dims(1, 0)
    assert found.node("y").params["output_padding"] == dims(0)


def test_channels_must_agree() -> None:
    graph = Builder()
    weights = graph.constant(np.zeros((8, 4, 3)), np.float32)
    graph.add("Conv", graph.input("x", 1, 3, 9), weights)
    with pytest.raises(ShapeMismatch, match="channels"):
        graph.infer()


def test_a_window_larger_than_the_data_is_refused() -> None:
    graph = Builder()
    graph.add("MaxPool", graph.input("x", 1, 3, 2), kernel_shape=[5], strides=[1])
    with pytest.raises(ShapeMismatch, match="window"):
        graph.infer()


def test_a_stride_of_zero_is_refused() -> None:
    graph = Builder()
    graph.add("MaxPool", graph.input("x", 1, 3, 9), kernel_shape=[3], strides=[0])
    with pytest.raises(InvalidModel, match="strides = 0 must be positive"):
        graph.infer()
