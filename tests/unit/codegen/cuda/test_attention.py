"""Attention as one function: results, and why other kernels are refused."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.cuda.attention import attention_refusal
from tilewright.codegen.cuda.generate import generate
from tilewright.codegen.cuda.nvrtc import compile_text
from tilewright.kernel.interp import interpret
from unit.codegen.cpu.kernels import KERNELS
from unit.codegen.cpu.test_generate import SIZES, fixed
from unit.codegen.cuda.attentions import ATTENTIONS, IN_BFLOAT16, attention
from unit.codegen.cuda.contractions import CONTRACTIONS, feeds_of
from unit.codegen.cuda.emulate import needs_compiler, run_emulated


@needs_compiler
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_agrees_with_the_interpreter(name: str) -> None:
    kernel = ATTENTIONS[name]
    made, feeds = generate(kernel), feeds_of(kernel)
    assert made.stages[0].tactic.startswith("attention")
    found = run_emulated(kernel, feeds, made=made)["out"].astype(np.float64)
    expected = interpret(kernel, feeds, {})["out"].astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=4e-3, atol=2e-3)


@needs_compiler
def test_attention_in_bfloat16() -> None:
    made, feeds = generate(IN_BFLOAT16), feeds_of(IN_BFLOAT16)
    assert "TwAttention<TwBfloat" in made.text
    found = run_emulated(IN_BFLOAT16, feeds, made=made)["out"].astype(np.float64)
    expected = interpret(IN_BFLOAT16, feeds, {})["out"].astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=3e-2, atol=1.6e-2)


@needs_compiler
def test_a_query_that_sees_no_key_gives_nan_unless_guarded() -> None:
    for guarded in (False, True):
        kernel = attention(1, 4, 70, 32, hidden=3, guarded=guarded)
        out = run_emulated(kernel, feeds_of(kernel), made=generate(kernel))["out"]
        first = out[:, :, 0]
        assert (first == 0).all() if guarded else np.isnan(first).all()
        assert np.isfinite(out[:, :, 1:]).all()


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", ["packed, guarded", "128 wide", "in bfloat16"])
def test_attention_compiles(name: str, arch: str) -> None:
    made = generate({**ATTENTIONS, "in bfloat16": IN_BFLOAT16}[name])
    compiled = compile_text(made.text, arch)
    assert compiled.usage["stage_0"].spill_bytes <= 64
    assert b"mma.sync" in compiled.ptx


REFUSALS = {
    "no sum of values that a softmax weighs": CONTRACTIONS["product"],
    "rows of 24 elements": attention(1, 8, 8, 24),
    "rows of 160 elements": attention(1, 8, 8, 160),
    "an axis is ordered": fixed(KERNELS["running_sum"](), SIZES["odd"]),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_have_reasons(reason: str) -> None:
    assert attention_refusal(REFUSALS[reason]) == reason


@pytest.mark.parametrize(
    ("heads", "queries", "block"),
    [(6, 20, 32), (6, 128, 128), (6, 300, 32), (400, 128, 64)],
)
def test_a_block_takes_all_queries_of_a_head_where_there_is_room(
    heads: int, queries: int, block: int
) -> None:
    made = generate(attention(heads, queries, 64, 32))
    assert made.stages[0].tactic == f"attention({block} queries, 64 keys)"


def test_it_can_be_disabled() -> None:
    made = generate(ATTENTIONS["short"], ["attention"])
    assert ("attention", "disabled") in made.stages[0].refused
