"""Exponentials of a row are computed once: kept by its sum, read by its quotients."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.cpu.generate import generate
from tilewright.codegen.cpu.target import CpuTarget, named_target
from tilewright.core.shape import Dim
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Axis, Expr, Kernel, call, reduce_axes
from unit.codegen.cpu.kernels import N, buffer, pure
from unit.codegen.cpu.lanes import runnable_targets
from unit.codegen.cpu.native import run_native

WIDE = named_target("znver4")


def softmax(rows: Dim | int, size: Dim | int, op: str = "exp") -> Kernel:
    """exp(x - max) / sum(exp(x - max)) of every row, with another function for exp."""
    x = buffer("x", rows, size)
    r, s = (Axis(name, Dim.of(size)) for name in "rs")

    def body(m: Expr, n: Expr) -> Expr:
        top = reduce_axes("max", (r,), x[m, r.var])
        total = reduce_axes("sum", (s,), call(op, x[m, s.var] - top))
        return call(op, x[m, n] - top) / total

    return pure(buffer("out", rows, size), (x,), body)


def keeps(kernel: Kernel, size: int) -> bool:
    return f"alloca float, i64 {size + 64}" in generate(kernel, WIDE).text


def test_costly_terms_of_known_rows_are_kept() -> None:
    assert keeps(softmax(64, 128), 128)
    assert keeps(softmax(N, 130), 130)
    assert not keeps(softmax(64, 40_000), 40_000)  # more than the cache has room for
    assert not keeps(softmax(64, 128, op="abs"), 128)
    assert "alloca float, i64" not in generate(softmax(64, N), WIDE).text


@pytest.mark.parametrize("target", runnable_targets(), ids=lambda target: target.name)
@pytest.mark.parametrize("rows", [1, 3, 9])
@pytest.mark.parametrize("size", [2, 5, 16, 40, 130, 515])
def test_values_are_right(target: CpuTarget, rows: int, size: int) -> None:
    kernel = softmax(rows, size)
    feeds = {"x": np.random.default_rng(size).standard_normal((rows, size)).astype(np.float32)}
    want = interpret(kernel, feeds, {})["out"]
    got = run_native(kernel, feeds, {}, target=target)["out"]
    assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()
