"""Choices along an axis become stages; what is chosen stays the same."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.core.dtypes import FLOAT32
from tilewright.core.shape import Dim
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Call,
    Expr,
    Kernel,
    Stage,
    Store,
    constant,
    select,
    walk,
)
from tilewright.kernel.pieces import split_pieces
from tilewright.kernel.verify import verify

SIZES = (5, 7, 1)


def _joined(rows: int, *, padded: bool = False) -> Kernel:
    """``relu(concat(a, b, c))`` along the second axis, or ``a`` padded with zeros."""
    n = Dim.of(rows)
    parts = [Buffer(f"x{k}", FLOAT32, (n, Dim.of(size))) for k, size in enumerate(SIZES)]
    total = sum(SIZES)
    row, column = Axis("i", n), Axis("j", Dim.of(total))

    def choose(k: int, begin: int) -> Expr:
        value = parts[k][row.var, column.var - begin]
        if k + 1 == len(parts):
            return value
        end = begin + SIZES[k]
        rest = constant(0, FLOAT32) if padded else choose(k + 1, end)
        return select(column.var.lt(end), value, rest)

    out = Buffer("y", FLOAT32, (n, Dim.of(total)))
    store = Store("y", (row.var, column.var), choose(0, 0).max(0.0))
    inputs = tuple(parts[: 1 if padded else None])
    return Kernel(
        name="join", inputs=inputs, outputs=(out,), stages=(Stage((row, column), (store,)),)
    )


def test_every_part_has_a_stage_without_choices() -> None:
    kernel = _joined(400)
    split = split_pieces(kernel)
    verify(split)
    assert [stage.axes[1].extent.const for stage in split.stages] == list(SIZES)
    for stage in split.stages:
        assert not any(isinstance(n, Call) and n.op == "select" for n in walk(*stage.roots))
    rng = np.random.default_rng(0)
    feeds = {
        b.name: rng.standard_normal((400, b.shape[1].const)).astype(np.float32)
        for b in kernel.inputs
    }
    want = interpret(kernel, feeds, {})["y"]
    np.testing.assert_array_equal(interpret(split, feeds, {})["y"], want)


@pytest.mark.parametrize("kernel", [_joined(4), _joined(400, padded=True)], ids=["few", "padded"])
def test_leaves_other_kernels_alone(kernel: Kernel) -> None:
    assert split_pieces(kernel) is kernel
