"""Windows of bytes leave out taps whose terms are 0, and sums stay what they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.codegen.cpu.generate import generate
from tilewright.codegen.cpu.tactics import choose
from tilewright.codegen.cpu.target import CpuTarget, host_target, named_target
from tilewright.core.dtypes import INT8, INT32, UINT8
from tilewright.kernel.blocked import Layout
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Call, Expr, Kernel, call, cast, reduce_over, walk
from tilewright.kernel.nest import prepare
from tilewright.lower.empty_taps import skip_empty_taps
from unit.codegen.cpu.kernels import Array, buffer, pure
from unit.codegen.cpu.lanes import runnable_targets
from unit.codegen.cpu.native import run_native

WIDE = named_target("znver4")
DEPTH, FILTERS = 2, 3  # in blocks of 16


def window(size: int, step: int = 1, *, signed: bool = False) -> Kernel:
    """3x3 taps over a blocked image with a border of a line and a pixel."""
    whole = step * (size - 1) + 3
    x = buffer("x", 1, DEPTH, whole, whole, 16, dtype=INT8 if signed else UINT8)
    w = buffer("w", FILTERS, DEPTH, 3, 3, 4, 16, 4, dtype=INT8)

    def body(m: Expr, i: Expr, j: Expr, lane: Expr) -> Expr:
        def term(c: Expr, p: Expr, q: Expr, k: Expr, byte: Expr) -> Expr:
            data = x[0, c, i * step + p, j * step + q, k * 4 + byte]
            if signed:
                data = call("xor", cast(data, UINT8, bits=True), 128)
            return data.cast(INT32) * w[m, c, p, q, k, lane, byte].cast(INT32)

        return reduce_over("sum", (DEPTH, 3, 3, 4, 4), term)

    return pure(buffer("out", FILTERS, size, size, 16, dtype=INT32), (x, w), body)


def depthwise(size: int) -> Kernel:
    """3x3 taps of one channel a sum: four of a line, the last with weight 0, are one product."""
    x = buffer("x", 1, DEPTH, size + 2, size + 3, 16, dtype=UINT8)
    w = buffer("w", DEPTH, 3, 16, 4, dtype=INT8)

    def body(c: Expr, i: Expr, j: Expr, lane: Expr) -> Expr:
        def term(p: Expr, tap: Expr) -> Expr:
            return x[0, c, i + p, j + tap, lane].cast(INT32) * w[c, p, lane, tap].cast(INT32)

        return reduce_over("sum", (3, 4), term)

    return pure(buffer("out", DEPTH, size, size, 16, dtype=INT32), (x, w), body)


def images(size: int, step: int, *, signed: bool) -> dict[str, Array]:
    whole, rng = step * (size - 1) + 3, np.random.default_rng(size)
    kind, low = (np.int8, -128) if signed else (np.uint8, 0)
    x = np.full((1, DEPTH, whole, whole, 16), low, kind)
    inner = x[:, :, 1:-1, 1:-1]
    inner[...] = rng.integers(low, low + 256, inner.shape)
    w = rng.integers(-128, 128, (FILTERS, DEPTH, 3, 3, 4, 16, 4)).astype(np.int8)
    return {"x": x, "w": w}


def skipping(kernel: Kernel, fill: float = 0.0) -> Kernel:
    layout = Layout(1, 16, border={2: (1, 1), 3: (1, 1)}, fill=fill)
    return skip_empty_taps(kernel, {"x": layout}, 16)


def conditions(kernel: Kernel) -> int:
    nodes = [node for node in walk(*kernel.roots) if isinstance(node, Call)]
    return sum(node.op in ("ge", "lt") for node in nodes)


def test_lines_and_pixels_of_short_lines_are_left_out() -> None:
    assert conditions(skipping(window(7))) == 4
    assert conditions(skipping(window(14))) == 4
    assert conditions(skipping(window(15))) == 2
    assert conditions(skipping(window(7, 2))) == 4
    text = generate(skipping(window(7)), WIDE).text
    assert text.count("vpdpbusd") < 3 * generate(window(7), WIDE).text.count("vpdpbusd")


def test_what_is_no_border_of_zeros_stays() -> None:
    assert conditions(skipping(window(7), fill=3.0)) == 0
    assert conditions(skipping(window(7, signed=True))) == 0
    assert conditions(skipping(window(7, signed=True), fill=-128.0)) == 4
    layout = Layout(1, 16, border={2: (1, 1), 3: (1, 1)})
    joined = skip_empty_taps(window(7), {"x": layout}, 8)
    by_lines = skip_empty_taps(window(7), {"x": replace(layout, block=1)}, 16)
    assert conditions(joined) == conditions(by_lines) == 0


@pytest.mark.parametrize("target", runnable_targets(), ids=lambda target: target.name)
@pytest.mark.parametrize("size", [1, 2, 7, 13, 14, 17, 30])
@pytest.mark.parametrize(("step", "signed"), [(1, False), (1, True), (2, False)])
def test_sums_are_the_same(target: CpuTarget, size: int, step: int, signed: bool) -> None:
    plain, feeds = window(size, step, signed=signed), images(size, step, signed=signed)
    kernel = skipping(plain, fill=-128.0 if signed else 0.0)
    want = interpret(plain, feeds, {})["out"]
    np.testing.assert_array_equal(interpret(kernel, feeds, {})["out"], want)
    np.testing.assert_array_equal(run_native(kernel, feeds, {}, target=target)["out"], want)


@pytest.mark.parametrize("size", [7, 14, 15])
def test_of_four_taps_at_once_only_lines_are_left_out(size: int) -> None:
    layout = Layout(1, 16, border={2: (1, 1), 3: (1, 2)})
    plain = depthwise(size)
    kernel = skip_empty_taps(plain, {"x": layout}, 16)
    assert conditions(kernel) == 2
    rng = np.random.default_rng(size)
    x = np.zeros((1, DEPTH, size + 2, size + 3, 16), np.uint8)
    x[:, :, 1:-1, 1:-2] = rng.integers(0, 256, (1, DEPTH, size, size, 16))
    w = rng.integers(-128, 128, (DEPTH, 3, 16, 4)).astype(np.int8)
    w[..., 3] = 0
    want = interpret(plain, {"x": x, "w": w}, {})["out"]
    got = run_native(kernel, {"x": x, "w": w}, {}, target=host_target())["out"]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("unroll", [{"i1": 2, "i2": 7}, {"i2": 3}, {"i2": 4, "i0": 3}, {"i1": 7}])
def test_any_tile_may_be_chosen(unroll: dict[str, int]) -> None:
    kernel, feeds, target = skipping(window(7)), images(7, 1, signed=False), host_target()
    schedule, _ = choose(prepare(kernel, kernel.stages[0]), target)
    own = replace(schedule, unroll={**unroll, schedule.vector or "": 1}, outer=())
    got = run_native(kernel, feeds, {}, target=target, schedules=[own])["out"]
    np.testing.assert_array_equal(got, interpret(kernel, feeds, {})["out"])
