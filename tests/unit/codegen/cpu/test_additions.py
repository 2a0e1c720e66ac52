"""Sums begin with a bias, lines within limits are one multiply-add; values stay right."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.cpu.additions import begun_sums, clamped_lines
from tilewright.codegen.cpu.target import CpuTarget
from tilewright.core.dtypes import FLOAT32, INT32, DType
from tilewright.core.shape import Dim
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Axis, Expr, Kernel, cast, reduce_axes
from tilewright.kernel.nest import Nest, prepare
from unit.codegen.cpu.kernels import K, buffer, pure
from unit.codegen.cpu.lanes import runnable_targets
from unit.codegen.cpu.native import run_native


def _total(m: Expr, n: Expr, terms: Dim | int, dtype: DType = FLOAT32) -> Expr:
    a, b = buffer("a", 29, terms, dtype=dtype), buffer("b", terms, 40, dtype=dtype)
    r = Axis("r", Dim.of(terms))
    return reduce_axes("sum", (r,), a[m, r.var] * b[r.var, n])


def _product(kind: str, terms: Dim | int = 12, dtype: DType = FLOAT32) -> Kernel:
    """A matrix product with something added to it."""
    bias = buffer("bias", 40, dtype=dtype)
    a, b = buffer("a", 29, terms, dtype=dtype), buffer("b", terms, 40, dtype=dtype)

    def body(m: Expr, n: Expr) -> Expr:
        total = _total(m, n, terms, dtype)
        whole = cast(total + bias[n], FLOAT32)
        line = whole * (1.0 / 6.0) + 0.5
        match kind:
            case "bias":
                return whole
            case "twice":
                return cast(total + bias[n], FLOAT32) * cast(total, FLOAT32)
            case "sums":
                return total + _total(m, n, 7)
            case "hard swish":
                return whole * line.min(1.0).max(0.0)
            case "line":
                return line
        return cast(bias[n], FLOAT32) * (bias[n] * 0.5 + 0.25).min(1.0)

    inputs = (bias,) if kind == "no sum" else (a, b, bias)
    return pure(buffer("out", 29, 40), inputs, body)


def _nest(kernel: Kernel) -> Nest:
    return prepare(kernel, kernel.stages[0])


@pytest.mark.parametrize(
    ("kernel", "begins"),
    [
        (_product("bias"), True),
        (_product("hard swish"), True),
        (_product("bias", terms=128), False),  # the addition is not felt
        (_product("bias", terms=K), False),
        (_product("twice"), False),
        (_product("bias", dtype=INT32), True),
        (_product("bias", terms=K, dtype=INT32), True),
    ],
)
def test_which_sums_begin_with_a_bias(kernel: Kernel, begins: bool) -> None:
    assert bool(begun_sums(_nest(kernel))) == begins


@pytest.mark.parametrize(
    ("kernel", "lines"),
    [
        (_product("hard swish"), 1),
        (_product("hard swish", terms=K), 1),
        (_product("hard swish", dtype=INT32), 0),  # quantised: rounded as it is written
        (_product("line"), 0),
        (_product("no sum"), 0),
    ],
)
def test_which_lines_are_one_operation(kernel: Kernel, lines: int) -> None:
    assert len(clamped_lines(_nest(kernel))) == lines


@pytest.mark.parametrize("target", runnable_targets(), ids=lambda target: target.name)
@pytest.mark.parametrize("kind", ["bias", "twice", "hard swish", "line"])
@pytest.mark.parametrize("terms", [1, 12, 65])
def test_values_are_right(target: CpuTarget, kind: str, terms: int) -> None:
    kernel = _product(kind, terms)
    rng = np.random.default_rng(terms)
    sizes = {"a": (29, terms), "b": (terms, 40), "bias": (40,)}
    feeds = {name: rng.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
    want = interpret(kernel, feeds, {})["out"]
    got = run_native(kernel, feeds, {}, target=target)["out"]
    assert np.abs(got - want).max() <= 2e-6 * np.abs(want).max()
