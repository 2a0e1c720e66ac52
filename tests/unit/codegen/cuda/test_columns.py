"""Reductions of neighbours that lie side by side: by columns, and long ones in parts."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.cuda import columns
from tilewright.codegen.cuda.generate import generate
from tilewright.codegen.cuda.operands import draft_of
from tilewright.codegen.cuda.split_columns import split_columns
from tilewright.core.dtypes import FLOAT16, FLOAT32, INT64, DType
from tilewright.core.shape import Dim
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Axis, Buffer, Expr, Kernel, constant, reduce_axes, select
from tilewright.kernel.verify import verify
from unit.codegen.cpu.kernels import KERNELS, N, buffer, feeds_for, pure
from unit.codegen.cuda.emulate import needs_compiler, run_emulated

ZERO_INDEX = constant(0, INT64)


def pooled(images: int, high: int, wide: int, channels: int, dtype: DType = FLOAT16) -> Kernel:
    """Means of images with channels last, one or several."""
    x: Buffer = buffer("x", images, high, wide, channels, dtype=dtype)
    h, w = Axis("h", Dim.of(high)), Axis("w", Dim.of(wide))

    def body(n: Expr, c: Expr) -> Expr:
        total = reduce_axes("sum", (h, w), x[n, h.var, w.var, c].cast(FLOAT32))
        return (total / float(high * wide)).cast(dtype)

    return pure(buffer("out", images, channels, dtype=dtype), (x,), body)


SIZES = {
    "few channels": (1, 4, 4, 8),
    "a warp's": (3, 7, 5, 48),
    "several blocks": (2, 6, 6, 136),
    "more than threads": (1, 40, 31, 96),
}


@needs_compiler
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32], ids=str)
def test_code_agrees_with_the_interpreter(size: str, dtype: DType) -> None:
    kernel = pooled(*SIZES[size], dtype)
    made = generate(kernel)
    assert made.stages[0].tactic.startswith("columns")
    feeds = feeds_for(kernel, {})
    expected = interpret(kernel, feeds, {})["out"]
    found = run_emulated(kernel, feeds, made=made)["out"]
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-3)


@needs_compiler
@pytest.mark.parametrize("combiner", ["sum", "max"])
def test_parts_of_a_long_reduction_are_combined(combiner: str) -> None:
    x = buffer("x", 64, 50, 24, dtype=FLOAT16)
    h, w = Axis("h", Dim.of(64)), Axis("w", Dim.of(50))
    kernel = pure(
        buffer("out", 24, dtype=FLOAT32),
        (x,),
        lambda c: reduce_axes(combiner, (h, w), x[h.var, w.var, c].cast(FLOAT32)),
    )
    split, parts = split_columns(kernel)
    assert parts == 64
    verify(split)
    made = generate(split)
    assert [stage.tactic.split("(")[0] for stage in made.stages] == ["columns", "columns"]
    feeds = feeds_for(kernel, {})
    expected = interpret(kernel, feeds, {})["out"]
    for found in (interpret(split, feeds, {}), run_emulated(split, feeds, made=made)):
        np.testing.assert_allclose(found["out"], expected, rtol=1e-4, atol=1e-4)


def _reduced(
    *sizes: Dim | int,
    along: int,
    shared: bool = False,
    weighed: bool = False,
) -> Kernel:
    """A reduction over one axis of ``x``; shared by all points, or of products, if wanted."""
    x, w = buffer("x", *sizes, dtype=FLOAT16), buffer("w", sizes[along], dtype=FLOAT16)
    r = Axis("r", Dim.of(sizes[along]))
    kept = [size for place, size in enumerate(sizes) if place != along]

    def body(*point: Expr) -> Expr:
        own = [ZERO_INDEX] * len(point) if shared else list(point)
        value = x[(*own[:along], r.var, *own[along:])].cast(FLOAT32)
        if weighed:
            value = value * w[r.var].cast(FLOAT32)
        return reduce_axes("sum", (r,), value) + (point[-1].cast(FLOAT32) if shared else 0.0)

    return pure(buffer("out", *kept, dtype=FLOAT32), (x, w) if weighed else (x,), body)


def _guarded() -> Kernel:
    """A reduction that only some points need."""
    x, r = buffer("x", 32, 16, dtype=FLOAT16), Axis("r", Dim.of(32))

    def body(c: Expr) -> Expr:
        return select(c.lt(8), reduce_axes("sum", (r,), x[r.var, c].cast(FLOAT32)), 0.0)

    return pure(buffer("out", 16), (x,), body)


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (pooled(1, 3, 3, 16), "a reduction of 9 points"),
        (pooled(1, 8, 8, 12), "an extent of 12"),
        (KERNELS["softmax"](), "an extent of k"),
        (KERNELS["running_sum"](), "an axis is ordered"),
        (_reduced(N, 32, 16, along=1), "symbolic sizes"),
        (_reduced(32, 16, along=0, shared=True), "a reduction that all points share"),
        (_reduced(160, 32, 1024, along=1, weighed=True), "packs of products"),
        (_reduced(16, 32, along=1), "nothing is read along the last axis"),
        (_guarded(), "not reductions that every point needs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_others_are_left_to_other_tactics(kernel: Kernel, reason: str) -> None:
    draft = draft_of(kernel)
    refused = columns.refusal(draft, draft.writer())
    assert refused is not None
    assert reason in refused
    assert not generate(kernel).stages[0].tactic.startswith("columns")
    assert split_columns(kernel)[1] == 1


def test_a_switched_off_tactic_is_not_used() -> None:
    made = generate(pooled(1, 8, 8, 16), ["columns"])
    assert ("columns", "disabled") in made.stages[0].refused
    long = pooled(1, 64, 50, 24)
    assert split_columns(long)[1] > 1
    assert split_columns(long, ["columns"])[1] == 1
