"""Reductions of neighbours that lie side by side: by columns, and long ones in parts."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.cuda.generate import generate
from tilewright.codegen.cuda.split_columns import split_columns
from tilewright.core.dtypes import FLOAT16, FLOAT32, DType
from tilewright.core.shape import Dim
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Axis, Buffer, Expr, Kernel, reduce_axes
from tilewright.kernel.verify import verify
from unit.codegen.cpu.kernels import KERNELS, buffer, feeds_for, pure
from unit.codegen.cuda.emulate import needs_compiler, run_emulated


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


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (pooled(1, 3, 3, 16), "a reduction of 9 points"),
        (pooled(1, 8, 8, 12), "an extent of 12"),
        (KERNELS["softmax"](), "an extent of k"),
    ],
    ids=["short", "odd", "symbolic"],
)
def test_others_are_left_to_other_tactics(kernel: Kernel, reason: str) -> None:
    made = generate(kernel)
    assert not made.stages[0].tactic.startswith("columns")
    refused = dict(made.stages[0].refused)
    assert "columns" not in refused or reason in refused["columns"]
    assert split_columns(kernel)[1] == 1


def test_a_switched_off_tactic_is_not_used() -> None:
    made = generate(pooled(1, 8, 8, 16), ["columns"])
    assert ("columns", "disabled") in made.stages[0].refused
