"""Long sums of few outputs in parts: the same values, and which sums are left whole."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.cuda.generate import generate
from tilewright.codegen.cuda.split_depth import split_depth
from tilewright.kernel.interp import interpret
from tilewright.kernel.verify import verify
from unit.codegen.cpu.kernels import KERNELS
from unit.codegen.cuda.contractions import convolution, feeds_of, product
from unit.codegen.cuda.emulate import needs_compiler, run_emulated


def test_few_outputs_of_a_long_sum_are_computed_in_parts() -> None:
    kernel, parts = split_depth(product(40, 48, 4096, b_flip=True))
    assert parts == 8
    verify(kernel)
    assert [[axis.extent.const for axis in stage.axes] for stage in kernel.stages] == [
        [8, 40, 48],
        [40, 48],
    ]
    made = generate(kernel)
    assert made.stages[0].tactic.startswith("tensor_core")
    assert made.stages[1].tactic == "point"


@pytest.mark.parametrize(
    "kernel",
    [
        product(40, 48, 256),
        product(4096, 4096, 4096),
        product(1, 1000, 4096, b_flip=True),
        product(40, 48, 4000),
        convolution((1, 3, 20, 20), 16, 7, stride=2, pad=3),
        KERNELS["matmul_half"](),
        KERNELS["softmax"](),
    ],
    ids=["short", "many outputs", "one row", "odd", "few channels", "symbolic", "other"],
)
def test_others_stay_whole(kernel: object) -> None:
    assert split_depth(kernel)[1] == 1  # type: ignore[arg-type]


@needs_compiler
@pytest.mark.parametrize("name", ["product", "window"])
def test_parts_add_up(name: str) -> None:
    kernels = {
        "product": product(24, 32, 4096, b_flip=True),
        "window": convolution((1, 512, 3, 3), 16, 3, pad=1),
    }
    kernel = kernels[name]
    split, parts = split_depth(kernel)
    assert parts > 1
    feeds = feeds_of(kernel)
    expected = interpret(kernel, feeds, {})["out"].astype(np.float64)
    for found in (interpret(split, feeds, {}), run_emulated(split, feeds)):
        np.testing.assert_allclose(found["out"].astype(np.float64), expected, rtol=4e-3, atol=4e-3)
