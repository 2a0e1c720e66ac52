"""With few registers, windows that overlap are multiplied place by place, to the same values."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from tilewright.codegen.cpu.generate import generate
from tilewright.codegen.cpu.objects import assembly
from tilewright.codegen.cpu.tactics import choose
from tilewright.codegen.cpu.target import CpuTarget, named_target
from tilewright.codegen.cpu.windows import slanted
from tilewright.core.shape import Dim
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Axis, Kernel, Stage, Store, reduce_axes
from tilewright.kernel.nest import prepare
from tilewright.kernel.schedule import Schedule
from unit.codegen.cpu.kernels import N, buffer
from unit.codegen.cpu.lanes import runnable_targets
from unit.codegen.cpu.native import run_native

FEW, MANY = named_target("haswell"), named_target("znver4")


def depthwise(width: Dim | int, taps: int, stride: int = 1, height: int = 3) -> Kernel:
    """A depthwise convolution of blocked channels, borders included in its input."""
    h, w = Axis("h", Dim.of(height)), Axis("w", Dim.of(width))
    c, lane = Axis("c", Dim.of(2)), Axis("i", Dim.of(8))
    r, q = Axis("r", Dim.of(taps)), Axis("q", Dim.of(taps))
    high, wide = ((axis.extent - 1) * stride + taps for axis in (h, w))
    x = buffer("x", 2, high, wide, 8)
    weight = buffer("w", 2, taps, taps, 8)
    out = buffer("out", 2, h.extent, w.extent, 8)
    place = (c.var, h.var * stride + r.var, w.var * stride + q.var, lane.var)
    value = reduce_axes("sum", (r, q), x[place] * weight[c.var, r.var, q.var, lane.var]).max(0.0)
    stage = Stage((c, h, w, lane), (Store("out", (c.var, h.var, w.var, lane.var), value),))
    return Kernel(name="test", inputs=(x, weight), outputs=(out,), stages=(stage,))


def schedule(kernel: Kernel, target: CpuTarget = FEW) -> Schedule:
    return choose(prepare(kernel, kernel.stages[0]), target)[0]


def test_each_tap_of_each_pixel_comes_once_and_those_of_one_place_together() -> None:
    order = slanted([0, 0, 1, 2], range(3), 2)
    assert Counter(order) == Counter((number, tap) for number in range(4) for tap in range(3))
    places = [[0, 0, 1, 2][number] * 2 + tap for number, tap in order]
    assert all(here <= there for here, there in pairwise(places))


@pytest.mark.parametrize(
    ("kernel", "unroll", "depth"),
    [
        (depthwise(56, 3), {"w": 10}, 3),
        (depthwise(56, 3, stride=2), {"w": 10}, 3),
        (depthwise(30, 5), {"w": 10}, 5),
        (depthwise(40, 7), {"w": 10}, 4),  # four taps, then three: the registers hold no more
        (depthwise(14, 5), {"h": 2, "w": 5}, 5),  # two lines: seven sums wait for each other
        (depthwise(14, 5, height=1), {"w": 7}, 5),
        (depthwise(7, 5), {"w": 7}, 5),  # halves of it would wait as well
        (depthwise(5, 3), {"h": 2, "w": 5}, 3),
        (depthwise(N, 3), {"w": 10}, 3),
    ],
)
def test_tiles_of_few_registers(kernel: Kernel, unroll: dict[str, int], depth: int) -> None:
    found = schedule(kernel)
    assert {name: count for name, count in found.unroll.items() if count > 1} == unroll
    assert (found.slant, found.depth) == ("w", depth)
    assert ", slant=w" in found.text


@pytest.mark.parametrize("kernel", [depthwise(56, 1), depthwise(56, 3, stride=3), depthwise(56, 9)])
def test_windows_that_are_apart_or_too_long_stay_in_order(kernel: Kernel) -> None:
    assert schedule(kernel).slant is None


def test_many_registers_keep_their_order() -> None:
    assert schedule(depthwise(56, 3), MANY).slant is None


def test_each_pixel_is_loaded_once_a_line() -> None:
    """12 pixels and 3 weights for 30 multiply-adds of a line, and nothing is spilled."""
    lines = assembly(generate(depthwise(10, 3, height=1), FEW).text, FEW).splitlines()
    multiplied = [line for line in lines if "vfmadd" in line]
    loaded = [line for line in lines if re.match(r"\s+v(movups|fmadd\w+)\s+-?\d*\(%.*%ymm", line)]
    assert (len(multiplied), len(loaded)) == (30, 15)


@pytest.mark.parametrize("taps", [2, 3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("width", [1, 7, 11, 14, 23, N])
def test_values_are_the_same(width: Dim | int, stride: int, taps: int) -> None:
    kernel = depthwise(width, taps, stride)
    sizes = {"n": 13} if width is N else {}
    rng = np.random.default_rng(5)
    feeds = {
        b.name: rng.standard_normal([d.evaluate(sizes) for d in b.shape]).astype(np.float32)
        for b in kernel.inputs
    }
    want = interpret(kernel, feeds, sizes)["out"]
    for target in runnable_targets():
        got = run_native(kernel, feeds, sizes, target=target, parts=2)["out"]
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
