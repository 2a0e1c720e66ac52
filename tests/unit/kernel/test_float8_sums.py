"""Sums of two numbers of float8, narrowed: one multiply-add gives the same."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.cuda.generate import generate
from tilewright.core.dtypes import FLOAT8_E4M3FN, FLOAT32
from tilewright.kernel.float8_sums import sum_of_float8
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Expr, Kernel
from unit.codegen.cpu.kernels import buffer, pure
from unit.codegen.cuda.emulate import needs_compiler, run_emulated

A = buffer("a", 256, 256, dtype=FLOAT8_E4M3FN)
B = buffer("b", 256, 256, dtype=FLOAT8_E4M3FN)


def _kernel(s: float, t: float, u: float, positive: bool = True) -> Kernel:
    def body(i: Expr, j: Expr) -> Expr:
        total = A[i, j].cast(FLOAT32) * s + B[i, j].cast(FLOAT32) * t
        return ((total.max(0.0) if positive else total) / u).cast(FLOAT8_E4M3FN, saturate=True)

    return pure(buffer("out", 256, 256, dtype=FLOAT8_E4M3FN), (A, B), body)


def _narrowed(kernel: Kernel) -> Expr:
    return kernel.stages[0].stores[0].value.children[0]


@needs_compiler
@pytest.mark.parametrize("positive", [True, False])
def test_all_pairs(positive: bool) -> None:
    kernel = _kernel(0.030215, 0.047241, 0.0265164, positive)
    found = sum_of_float8(_narrowed(kernel))
    assert found is not None
    assert found.positive == positive
    text = generate(kernel).text.split("stage_0")[1]
    assert "fmaf(" in text
    assert "tw_quotient" not in text
    pairs = np.mgrid[:256, :256].astype(np.uint8)
    feeds = {name: own.view(A.dtype.numpy) for name, own in zip("ab", pairs, strict=True)}
    expected = interpret(kernel, feeds, {})["out"].astype(np.float32)
    np.testing.assert_array_equal(run_emulated(kernel, feeds)["out"].astype(np.float32), expected)


def test_others_stay_as_they_are_written() -> None:
    assert sum_of_float8(_narrowed(_kernel(0.03, 3e-9, 0.02))) is None  # too far apart
