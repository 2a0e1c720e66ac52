"""Short sums are completed where they are stored, and stay what they are, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.cpu.generate import generate
from tilewright.codegen.cpu.last_steps import LastSteps
from tilewright.codegen.cpu.target import named_target
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Axis, Expr, Kernel, call, reduce_axes
from unit.codegen.cpu.kernels import Array, N, buffer, pure
from unit.codegen.cpu.lanes import runnable_targets
from unit.codegen.cpu.native import run_native

ORDER = "asm sideeffect"


def pointwise(blocks: Dim | int, width: int = 33, *, scaled: bool = False) -> Kernel:
    """A 1x1 convolution of blocks of 8 channels, with a bias and a limit."""
    c, k = Axis("c", Dim.of(blocks)), Axis("k", Dim.of(8))
    x, w = buffer("x", blocks, 5, width, 8), buffer("w", 4, blocks, 8, 16)
    bias = buffer("bias", 4, 16)

    def body(o: Expr, h: Expr, v: Expr, i: Expr) -> Expr:
        data = x[c.var, h, v, k.var]
        total = reduce_axes("sum", (c, k), data * w[o, c.var, k.var, i])
        if scaled:
            total = total / reduce_axes("sum", (c, k), data)
        return call("max", total + bias[o, i], 0.0)

    return pure(buffer("out", 4, 5, width, 16), (x, w, bias), body)


def feeds(kernel: Kernel) -> dict[str, Array]:
    rng = np.random.default_rng(5)
    return {
        b.name: rng.standard_normal([d.const for d in b.shape]).astype(np.float32)
        for b in kernel.inputs
    }


@pytest.mark.parametrize(
    ("kernel", "target", "serves"),
    [
        (pointwise(1), "znver4", True),
        (pointwise(3), "znver4", True),
        (pointwise(16), "znver4", True),
        (pointwise(17), "znver4", False),  # long: stores take little of the time
        (pointwise(N), "znver4", False),
        (pointwise(2, scaled=True), "znver4", False),  # its value is needed beside another sum
        (pointwise(2), "haswell", False),
    ],
)
def test_which_sums(kernel: Kernel, target: str, serves: bool) -> None:
    assert (ORDER in generate(kernel, named_target(target)).text) == serves


def test_two_results_are_completed_at_a_time() -> None:
    text = generate(pointwise(2, width=28), named_target("znver4")).text
    stores = text.count("fcmp") or text.count("llvm.maxnum")
    assert stores
    assert 2 * text.count(ORDER) == stores


@pytest.mark.parametrize("blocks", [1, 2, 5])
@pytest.mark.parametrize("width", [28, 33, 40])
def test_values_are_the_same(blocks: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pointwise(blocks, width)
    given = feeds(kernel)
    found = [run_native(kernel, given, target=one, parts=3) for one in runnable_targets()]
    monkeypatch.setattr(LastSteps, "serves", lambda *_: False)
    for target, got in zip(runnable_targets(), found, strict=True):
        want = run_native(kernel, given, target=target, parts=3)
        assert np.array_equal(got["out"], want["out"])
