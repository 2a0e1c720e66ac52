"""Contractions on tensor cores: results, and why others are refused."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.cuda.deep_tile import DeepTile
from tilewright.codegen.cuda.generate import generate
from tilewright.codegen.cuda.nvrtc import compile_text
from tilewright.codegen.cuda.operands import as_stored
from tilewright.codegen.cuda.tile import choose_tile
from tilewright.core.dtypes import FLOAT16, FLOAT32, INT8
from tilewright.core.shape import Dim
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Kernel, constant, select
from unit.codegen.cpu.kernels import KERNELS, buffer
from unit.codegen.cpu.test_generate import SIZES, fixed
from unit.codegen.cuda.contractions import CONTRACTIONS, feeds_of, narrow_product, product
from unit.codegen.cuda.emulate import needs_compiler, run_emulated


@needs_compiler
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions_agree_with_the_interpreter(name: str) -> None:
    kernel = CONTRACTIONS[name]
    made, feeds = generate(kernel), feeds_of(kernel)
    assert made.stages[0].tactic.startswith("tensor_core")
    found = run_emulated(kernel, feeds, made=made)["out"].astype(np.float64)
    expected = interpret(kernel, feeds, {})["out"].astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_contractions_compile(name: str, arch: str) -> None:
    made = generate(CONTRACTIONS[name])
    compiled = compile_text(made.text, arch)
    assert compiled.usage["stage_0"].spill_bytes <= 64
    assert b"mma.sync" in compiled.ptx


@pytest.mark.parametrize("name", ["product", "one tap", "window"])
def test_neighbours_in_memory_are_copied_in_chunks(name: str) -> None:
    made = generate(CONTRACTIONS[name])
    assert "computed" not in made.stages[0].tactic
    assert "tw_copy8" in made.text.split("stage_0")[1]


@pytest.mark.parametrize("name", ["odd product", "three channels"])
def test_others_are_computed_one_by_one(name: str) -> None:
    assert "computed" in generate(CONTRACTIONS[name]).stages[0].tactic


REFUSALS = {
    "not one sum that every output needs": fixed(KERNELS["add_relu"](), SIZES["odd"]),
    "a factor is not stored in a narrow type": fixed(KERNELS["matmul"](), SIZES["vectors"]),
    "not a sum of products": fixed(KERNELS["row_sum"](), SIZES["vectors"]),
    "not one store without a guard": fixed(KERNELS["two_outputs"](), SIZES["odd"]),
    "an axis is ordered": fixed(KERNELS["running_sum"](), SIZES["odd"]),
    "a depth of 8": product(32, 32, 8),
    "rows of 2 in each of many products": product(2, 64, 64, batch=4),
    "disabled": CONTRACTIONS["product"],
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_have_reasons(reason: str) -> None:
    kernel: Kernel = REFUSALS[reason]
    made = generate(kernel, ["tensor_core"] if reason == "disabled" else [])
    assert ("tensor_core", reason) in made.stages[0].refused


def test_only_values_that_float16_holds_exactly_are_factors() -> None:
    half, single = buffer("h", 1, dtype=FLOAT16)[0], buffer("s", 1)[0]
    wide = half.cast(FLOAT32)
    assert as_stored(wide, FLOAT16) is half
    assert as_stored(single, FLOAT16) is None
    assert as_stored(wide + 1.0, FLOAT16) is None
    assert as_stored(constant(0.5, FLOAT32), FLOAT16) is constant(0.5, FLOAT16)
    assert as_stored(constant(0.1, FLOAT32), FLOAT16) is None
    chosen = select(single.gt(0.0), wide, 0.0)
    assert as_stored(chosen, FLOAT16) is select(single.gt(0.0), half, 0.0)
    assert as_stored(select(single.gt(0.0), wide, single), FLOAT16) is None


def test_tiles_grow_with_the_work_and_share_the_depth_where_there_is_little() -> None:
    one = Dim.of(1)
    large = choose_tile(Dim.of(8192), Dim.of(8192), Dim.of(4096), one)
    assert (large.rows, large.columns, large.warps[2]) == (128, 128, 1)
    small = choose_tile(Dim.of(49), Dim.of(512), Dim.of(4608), one)
    assert small.warps[2] > 1
    assert small.threads <= 512
    symbolic = choose_tile(Dim.symbol("m"), Dim.symbol("n"), Dim.symbol("k"), one)
    assert symbolic.rows == 128
    for tile in (large, small, symbolic):
        fitted = tile.pipelined(Dim.of(4608), True, True)
        assert 2 <= fitted.stages <= 8
        assert fitted.shared_bytes(True, True) <= 100 * 1024


@pytest.mark.parametrize("k", [64, 128, 1024])
def test_products_of_16_bits_take_room_for_all_steps_in_flight(k: int) -> None:
    """Fewer bytes let more blocks share a multiprocessor, and its registers: 5 % slower."""
    tile = DeepTile(rows=64, columns=32, warps=(2, 2), stages=8)
    kernel = product(128, 64, k, b_flip=True)
    (stage,) = generate(kernel, tile=tile).stages
    assert stage.tactic.startswith("tensor_core(64x32x64, stages=8)")
    assert stage.launch.shared_bytes == tile.shared_bytes
    of_bytes = generate(narrow_product(128, 64, 128, INT8), tile=tile).stages[0]
    assert of_bytes.launch.shared_bytes < tile.shared_bytes
