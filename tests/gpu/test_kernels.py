"""Kernels on a GPU against the interpreter: every kind of kernel and size, then random ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from gpu.launch import Array, run_on_gpu
from property.kernels import generate as random_case
from property.test_kernels import difference
from tilewright.codegen.cuda.split_columns import split_columns
from tilewright.core.errors import OutOfRange
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Kernel
from unit.codegen.cpu.kernels import KERNELS, feeds_for
from unit.codegen.cpu.test_generate import SIZES, close, fixed
from unit.codegen.cuda.normalizations import normalized
from unit.codegen.cuda.test_columns import SIZES as POOLS
from unit.codegen.cuda.test_columns import pooled

pytestmark = pytest.mark.gpu


def _check(kernel: Kernel, feeds: Mapping[str, Array], sizes: Mapping[str, int]) -> None:
    for disabled in ((), ("row",)):
        try:
            expected = interpret(kernel, feeds, sizes)
        except OutOfRange:
            with pytest.raises(OutOfRange):
                run_on_gpu(kernel, feeds, sizes, disabled=disabled)
            continue
        close(run_on_gpu(kernel, feeds, sizes, disabled=disabled), expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", KERNELS)
def test_code_agrees_with_the_interpreter(name: str, size: str) -> None:
    kernel, sizes = KERNELS[name](), SIZES[size]
    feeds = feeds_for(kernel, sizes)
    _check(kernel, feeds, sizes)
    _check(fixed(kernel, sizes), feeds, {})


@pytest.mark.parametrize("size", POOLS)
def test_reductions_of_neighbours_agree(size: str) -> None:
    kernel = pooled(*POOLS[size])
    feeds = feeds_for(kernel, {})
    expected = interpret(kernel, feeds, {})["out"]
    for made in (kernel, split_columns(kernel)[0]):
        found = run_on_gpu(made, feeds, {})["out"]
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize(("rows", "columns"), [(128, 768), (1024, 256), (5000, 768)])
def test_normalisations_agree(rows: int, columns: int) -> None:
    kernel = normalized(rows, columns)
    feeds = feeds_for(kernel, {})
    expected = interpret(kernel, feeds, {})["out"]
    found = run_on_gpu(kernel, feeds, {}, constants={"scale", "shift"})["out"]
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("seed", range(7_000_000, 7_000_200))
def test_random_kernels_agree_with_the_interpreter(seed: int) -> None:
    case = random_case(seed)
    narrow = interpret(case.kernel, case.feeds, case.sizes)
    wide = interpret(case.kernel, case.feeds, case.sizes, wide=True)
    for disabled in ((), ("row",)):
        found = run_on_gpu(case.kernel, case.feeds, case.sizes, disabled=disabled)
        assert difference(case, found, narrow, wide) == ""
