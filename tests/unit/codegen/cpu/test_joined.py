"""Short lines of images are joined where that fills the registers, and only there."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.cpu.joined import join_lines
from tilewright.codegen.cpu.target import CpuTarget, host_target, named_target
from tilewright.core.dtypes import FLOAT32
from tilewright.core.shape import Dim
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import (
    Axis,
    Expr,
    Kernel,
    Stage,
    Store,
    cast,
    reduce_axes,
)
from unit.codegen.cpu.kernels import N, buffer
from unit.codegen.cpu.native import run_native

FEW, MANY = named_target("haswell"), named_target("znver4")
I = Axis("k", Dim.of(8))


def convolution(
    height: Dim | int,
    width: int,
    *,
    stride: int = 1,
    border: int = 1,
    blocks: int = 8,
    position: bool = False,
) -> Kernel:
    """A 1x1 convolution of blocked channels into an image with a border."""
    h, w = Axis("h", Dim.of(height)), Axis("w", Dim.of(width))
    m, lane = Axis("m", Dim.of(4)), Axis("i", Dim.of(8))
    c = Axis("c", Dim.of(blocks))
    x = buffer("x", blocks, h.extent * stride, width * stride, 8)
    weight = buffer("w", 4, blocks, 8, 8)
    out = buffer("out", 4, h.extent + 2 * border, width + 2 * border, 8)
    place = (c.var, h.var * stride, w.var * stride, I.var)
    value: Expr = reduce_axes("sum", (c, I), x[place] * weight[m.var, c.var, I.var, lane.var])
    if position:
        value = value + cast(w.var, FLOAT32)
    index = (m.var, h.var + border, w.var + border, lane.var)
    stage = Stage((m, h, w, lane), (Store("out", index, value),))
    return Kernel(name="test", inputs=(x, weight), outputs=(out,), stages=(stage,))


@pytest.mark.parametrize(
    ("kernel", "target", "joins"),
    [
        (convolution(7, 7), FEW, True),
        (convolution(14, 14), FEW, True),
        (convolution(28, 28), FEW, False),  # lines of whole tiles
        (convolution(14, 14), MANY, False),
        (convolution(7, 7, stride=2), FEW, True),
        (convolution(7, 7, position=True), FEW, False),  # a division for each result
        (convolution(7, 7, blocks=4), FEW, False),  # too little to do for each address
        (convolution(N, 7), FEW, False),
        (convolution(7, 7, border=0), FEW, False),  # they are one axis already
    ],
)
def test_which_lines_are_joined(kernel: Kernel, target: CpuTarget, joins: bool) -> None:
    joined = join_lines(kernel, target)
    assert len(joined.stages[0].axes) == (3 if joins else 4)
    assert joins or joined is kernel


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [7, 10])
def test_values_are_the_same(size: int, stride: int) -> None:
    kernel = convolution(size, size, stride=stride)
    joined = join_lines(kernel, FEW)
    assert joined is not kernel
    rng = np.random.default_rng(5)
    feeds = {
        b.name: rng.standard_normal([d.const for d in b.shape]).astype(np.float32)
        for b in kernel.inputs
    }
    inside = (slice(None), slice(1, -1), slice(1, -1))
    want = interpret(kernel, feeds, {})["out"][inside]
    got = run_native(joined, feeds, {}, target=host_target())["out"][inside]
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
