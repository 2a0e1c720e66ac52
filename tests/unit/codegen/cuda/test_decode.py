"""Attention of few queries: results, and why other kernels are refused."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.cuda.decode import decode_refusal
from tilewright.codegen.cuda.generate import generate
from tilewright.codegen.cuda.nvrtc import compile_text
from tilewright.kernel.interp import interpret
from unit.codegen.cuda.attentions import DECODES, attention
from unit.codegen.cuda.contractions import CONTRACTIONS, feeds_of
from unit.codegen.cuda.emulate import needs_compiler, run_emulated


@needs_compiler
@pytest.mark.parametrize("name", DECODES)
def test_code_agrees_with_the_interpreter(name: str) -> None:
    kernel = DECODES[name]
    made, feeds = generate(kernel, constants=["old_k", "old_v"]), feeds_of(kernel)
    assert made.stages[0].tactic.startswith("decode")
    found = run_emulated(kernel, feeds, made=made)["out"].astype(np.float64)
    expected = interpret(kernel, feeds, {})["out"].astype(np.float64)
    rough = 8 if "bfloat16" in name else 1
    np.testing.assert_allclose(found, expected, rtol=4e-3 * rough, atol=2e-3 * rough)


@pytest.mark.nvrtc
def test_clusters_share_the_keys() -> None:
    made = generate(attention(2, 4, 2048, 64, past=2047), clusters=True)
    assert made.stages[0].tactic == "decode(4 queries, 2048 keys in 8)"
    assert made.stages[0].launch.grid[0].const == 32
    assert compile_text(made.text, "sm_90").usage["stage_0"].spill_bytes == 0


REFUSALS = {
    "no sum of values that a softmax weighs": CONTRACTIONS["product"],
    "9 queries": attention(1, 9, 200, 64),
    "7 keys": attention(1, 1, 7, 64),
    "rows of 32 and 32 elements": attention(1, 1, 200, 32),
    "rows of 64 and 128 elements": attention(1, 1, 200, 64, wide=128),
    "guarded weights": attention(1, 1, 200, 64, guarded=True),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_have_reasons(reason: str) -> None:
    assert decode_refusal(REFUSALS[reason]) == reason


def test_keys_of_two_buffers_are_for_few_queries_alone() -> None:
    made = generate(attention(1, 20, 200, 64, past=199))
    assert ("attention", "keys or values of two buffers") in made.stages[0].refused
