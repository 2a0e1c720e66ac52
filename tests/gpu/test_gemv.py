"""Products of one vector on a GPU against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.launch import run_on_gpu
from tilewright.kernel.interp import interpret
from unit.codegen.cuda.contractions import feeds_of
from unit.codegen.cuda.test_gemv import PRODUCTS, gated, product, turned

pytestmark = pytest.mark.gpu
LARGE = {
    "large": product(2048, 8192),
    "large, gated": gated(4096, 2048),
    "large, turned": turned(32, 64, 2048),
}


@pytest.mark.parametrize("name", [*PRODUCTS, *LARGE])
@pytest.mark.parametrize("constants", [(), ("w",)], ids=["late", "early"])
def test_products_of_a_vector(name: str, constants: tuple[str, ...]) -> None:
    kernel = {**PRODUCTS, **LARGE}[name]
    feeds = feeds_of(kernel)
    found = run_on_gpu(kernel, feeds, {}, constants=constants)
    expected = interpret(kernel, feeds, {})
    for own in kernel.outputs:
        right = expected[own.name].astype(np.float64)
        largest = float(np.abs(right).max())
        np.testing.assert_allclose(
            found[own.name].astype(np.float64), right, rtol=4e-3, atol=2e-3 * largest
        )
