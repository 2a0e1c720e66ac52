"""Attention of few queries on a GPU against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.launch import run_on_gpu
from tilewright.kernel.interp import interpret
from unit.codegen.cuda.attentions import DECODES, attention
from unit.codegen.cuda.contractions import feeds_of

pytestmark = pytest.mark.gpu
LONG = {
    "2048 keys": attention(2, 4, 2048, 64, past=2047),
    "odd": attention(1, 3, 1501, 128, past=1000),
    "8 queries": attention(1, 8, 4000, 64),
}


@pytest.mark.parametrize("name", [*DECODES, *LONG])
def test_few_queries(name: str) -> None:
    kernel = {**DECODES, **LONG}[name]
    feeds = feeds_of(kernel)
    expected = interpret(kernel, feeds, {})["out"].astype(np.float64)
    rough = 8 if "bfloat16" in name else 1
    for constants in ((), tuple(name for name in feeds if name.startswith("old"))):
        found = run_on_gpu(kernel, feeds, {}, constants=constants)["out"].astype(np.float64)
        np.testing.assert_allclose(found, expected, rtol=4e-3 * rough, atol=2e-3 * rough)
