"""Weights of the next panel, and pixels of the next tile, are asked for where that helps."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.cpu.generate import generate
from tilewright.codegen.cpu.prefetch import lines_ahead
from tilewright.codegen.cpu.tactics import choose
from tilewright.codegen.cpu.target import host_target, named_target
from tilewright.core.dtypes import INT8, INT32, UINT8
from tilewright.core.shape import Dim
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Axis, Buffer, Kernel, reduce_axes
from tilewright.kernel.nest import prepare
from unit.codegen.cpu.kernels import N, buffer, pure
from unit.codegen.cpu.lanes import runnable_targets
from unit.codegen.cpu.native import run_native

WIDE = named_target("znver4")


def product(rows: Dim | int, depth: int, panels: int) -> Kernel:
    """A matrix product with weights in panels of 32 columns."""
    a, w = buffer("a", rows, depth), buffer("w", panels, depth, 32)
    axis = Axis("r", Dim.of(depth))
    return pure(
        buffer("out", rows, panels, 32),
        (a, w),
        lambda m, o, i: reduce_axes("sum", (axis,), a[m, axis.var] * w[o, axis.var, i]),
    )


@pytest.mark.parametrize(
    ("rows", "depth", "panels", "asks"),
    [
        (40, 128, 64, True),
        (4000, 128, 64, False),  # a panel is read once for many tiles
        (40, 128, 6, True),  # small, but others push it out
        (40, 128, 4, False),  # all panels stay in the cache
        (40, 8192, 64, False),  # two panels do not fit
        (N, 128, 64, False),
    ],
)
def test_who_asks(rows: Dim | int, depth: int, panels: int, asks: bool) -> None:
    assert ("llvm.prefetch" in generate(product(rows, depth, panels), WIDE).text) == asks


@pytest.mark.parametrize(("images", "asks"), [(1, True), (3, False)])
def test_small_matrices_in_a_row_are_asked_for_as_one_large(images: int, asks: bool) -> None:
    # With several images between them, the panels of one matrix come again from the cache.
    a, w = buffer("a", 36, images, 41, 128), buffer("w", 36, 4, 128, 32)
    axis = Axis("r", Dim.of(128))
    kernel = pure(
        buffer("out", 36, images, 40, 4, 32),
        (a, w),
        lambda p, n, m, o, i: reduce_axes(
            "sum", (axis,), a[p, n, m, axis.var] * w[p, o, axis.var, i]
        ),
    )
    assert ("llvm.prefetch" in generate(kernel, WIDE).text) == asks


def test_windows_of_an_image_are_no_panels() -> None:
    # A depthwise convolution: each row of a tile reads its own pixels, all read the same weights.
    x, w = buffer("x", 40, 44, 44, 16), buffer("w", 40, 5, 5, 16)
    axes = Axis("kh", Dim.of(5)), Axis("kw", Dim.of(5))
    kernel = pure(
        buffer("out", 40, 40, 40, 16),
        (x, w),
        lambda c, h, v, i: reduce_axes(
            "sum",
            axes,
            x[c, h + axes[0].var, v + axes[1].var, i] * w[c, axes[0].var, axes[1].var, i],
        ),
    )
    assert "llvm.prefetch" not in generate(kernel, WIDE).text


@pytest.mark.parametrize(
    ("rows", "depth", "asks"),
    [(40, 512, True), (14, 512, False), (40, 2048, False)],  # one tile; lines that meet
)
def test_panels_of_dot_products(rows: int, depth: int, asks: bool) -> None:
    quads = Axis("k", Dim.of(depth // 4)), Axis("j", Dim.of(4))
    a = Buffer("a", UINT8, (Dim.of(rows), Dim.of(depth // 4), Dim.of(4)))
    w = Buffer("w", INT8, (Dim.of(64), Dim.of(depth // 4), Dim.of(16), Dim.of(4)))
    k, j = (axis.var for axis in quads)
    out = Buffer("out", INT32, (Dim.of(rows), Dim.of(64), Dim.of(16)))
    kernel = pure(
        out,
        (a, w),
        lambda m, o, i: reduce_axes(
            "sum", quads, a[m, k, j].cast(INT32) * w[o, k, i, j].cast(INT32)
        ),
    )
    made = generate(kernel, WIDE)
    assert made.stages[0].schedule.tactic == "dot_product"
    assert ("llvm.prefetch" in made.text) == asks


def test_a_step_asks_once_for_each_vector_of_weights() -> None:
    text = generate(product(14, 128, 64), WIDE).text
    assert text.count("call void @llvm.prefetch") == 2


def test_values_are_the_same() -> None:
    kernel = product(40, 128, 64)
    rng = np.random.default_rng(5)
    feeds = {
        "a": rng.standard_normal((40, 128)).astype(np.float32),
        "w": rng.standard_normal((64, 128, 32)).astype(np.float32),
    }
    assert "llvm.prefetch" in generate(kernel, host_target()).text or not host_target().has_fma
    want = interpret(kernel, feeds, {})["out"]
    got = run_native(kernel, feeds, {})["out"]
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


def pointwise(size: Dim | int, blocks: int = 8) -> Kernel:
    """A 1x1 convolution of an image in blocks of 8 channels."""
    c, k = Axis("c", Dim.of(blocks)), Axis("k", Dim.of(8))
    x, w = buffer("x", blocks, size, 96, 8), buffer("w", 4, blocks, 8, 8)
    return pure(
        buffer("out", 4, size, 96, 8),
        (x, w),
        lambda o, h, v, i: reduce_axes(
            "sum", (c, k), x[c.var, h, v, k.var] * w[o, c.var, k.var, i]
        ),
    )


@pytest.mark.parametrize(
    ("kernel", "target", "lines"),
    [
        (pointwise(96), "haswell", [192, 256, 320]),  # 6 pixels of 32 bytes behind these 6
        (pointwise(96), "znver4", []),
        (pointwise(32), "haswell", []),  # the image stays in the second cache
        (pointwise(N), "haswell", [192, 256, 320]),
        (product(40, 128, 4), "haswell", []),  # rows lie apart
    ],
)
def test_lines_of_the_next_tile_of_pixels(kernel: Kernel, target: str, lines: list[int]) -> None:
    found = named_target(target)
    nest = prepare(kernel, kernel.stages[0])
    ahead = lines_ahead(nest, choose(nest, found)[0], found)
    assert [list(one) for one in ahead.values()] == ([lines] if lines else [])
    text = generate(kernel, found).text
    assert text.count("call void @llvm.prefetch") % max(1, len(lines)) == 0
    assert ("llvm.prefetch" in text) == bool(lines)


def test_asking_for_lines_beyond_an_image_does_no_harm() -> None:
    kernel = pointwise(51)
    rng = np.random.default_rng(5)
    feeds = {
        b.name: rng.standard_normal([d.const for d in b.shape]).astype(np.float32)
        for b in kernel.inputs
    }
    want = interpret(kernel, feeds, {})["out"]
    for target in runnable_targets():
        got = run_native(kernel, feeds, target=target, parts=3)["out"]
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
