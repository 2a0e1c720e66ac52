"""Sums of a vector and a half take three multiply-adds for two steps, to the same values."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.cpu.generate import generate
from tilewright.codegen.cpu.objects import assembly
from tilewright.codegen.cpu.tactics import choose
from tilewright.codegen.cpu.target import named_target
from tilewright.core.shape import Dim
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Axis, Kernel, Stage, Store, reduce_axes
from tilewright.kernel.nest import prepare
from unit.codegen.cpu.kernels import buffer
from unit.codegen.cpu.lanes import runnable_targets
from unit.codegen.cpu.native import run_native

FEW, WIDE = named_target("haswell"), named_target("znver4")


def convolution(width: int, depth: int, channels: int = 12, bias: bool = True) -> Kernel:
    """Windows of two taps; channels of the results are one block."""
    w, lane = Axis("w", Dim.of(width)), Axis("i", Dim.of(channels))
    q, r = Axis("q", Dim.of(2)), Axis("r", Dim.of(depth))
    x, weight = buffer("x", width + 1, depth), buffer("w", 2, depth, channels)
    start, out = buffer("b", channels), buffer("out", width, channels)
    value = reduce_axes("sum", (q, r), x[w.var + q.var, r.var] * weight[q.var, r.var, lane.var])
    if bias:
        value = (value + start[lane.var]).max(0.0)
    stage = Stage((w, lane), (Store("out", (w.var, lane.var), value),))
    inputs = (x, weight, start) if bias else (x, weight)
    return Kernel(name="test", inputs=inputs, outputs=(out,), stages=(stage,))


def test_two_steps_of_a_pixel_are_three_multiply_adds() -> None:
    kernel = convolution(20, 8)
    rows = choose(prepare(kernel, kernel.stages[0]), FEW)[0].unroll["w"]
    assert rows == 5
    lines = assembly(generate(kernel, FEW).text, FEW).splitlines()
    multiplied = [line for line in lines if "vfmadd" in line]
    assert len(multiplied) == 3 * rows
    assert all("ymm" in line and "rsp" not in line for line in multiplied)
    assert not any("vmaskmov" in line for line in lines)


def test_halves_of_wide_vectors_are_as_good_where_they_cost_half() -> None:
    kernel = convolution(20, 8)
    found = choose(prepare(kernel, kernel.stages[0]), WIDE)[0]
    assert (found.lanes, found.unroll["i"]) == (8, 2)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("channels", [6, 12, 20, 24])
@pytest.mark.parametrize("depth", [4, 7, 12])
@pytest.mark.parametrize("width", [1, 6, 23])
def test_values_are_the_same(width: int, depth: int, channels: int, bias: bool) -> None:
    kernel = convolution(width, depth, channels, bias)
    rng = np.random.default_rng(3)
    feeds = {
        b.name: rng.standard_normal([d.const for d in b.shape]).astype(np.float32)
        for b in kernel.inputs
    }
    want = interpret(kernel, feeds, {})["out"]
    for target in runnable_targets():
        got = run_native(kernel, feeds, {}, target=target, parts=2)["out"]
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
