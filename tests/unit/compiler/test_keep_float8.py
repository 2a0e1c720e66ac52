"""Models quantised to float8: what stays in it, and that scales leave the sums."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.codegen.cuda.generate import generate
from tilewright.compiler.channels_last import channels_last_program
from tilewright.compiler.keep_float8 import keep_float8_program
from tilewright.core.dtypes import FLOAT8_E4M3FN, FLOAT32
from tilewright.kernel.ir import Expr
from unit.codegen.cpu.kernels import buffer, pure
from unit.codegen.cuda.emulate import needs_compiler, run_emulated
from unit.compiler.drafts import draft_of, kernels_of, values_of
from unit.compiler.models import normal
from unit.quantized.float8 import SHAPE, network


@pytest.mark.parametrize("seed", [0, 1])
def test_values_and_weights_stay_in_float8(seed: int) -> None:
    builder, draft, build = draft_of(network(seed))
    feeds = {"x": normal(*SHAPE, seed=3)}
    name = kernels_of(draft)[-1].outputs[0].name
    before = values_of(draft, builder.constants, feeds)[name]
    keep_float8_program(draft, builder.constants, build.log)
    channels_last_program(draft, builder.constants, build.log)
    kernels = kernels_of(draft)
    assert [k.outputs[0].dtype for k in kernels] == [*[FLOAT8_E4M3FN] * 3, FLOAT32]
    after = values_of(draft, builder.constants, feeds)[name]
    # A sum that rounds otherwise may move a value that is almost a tie by a step.
    assert np.abs(after - before).max() < 2e-2 * np.abs(before).max()
    assert np.abs(after - before).mean() < 1e-5 * np.abs(before).max()
    for kernel in kernels[1:]:
        made = generate(kernel, clusters=True, constants=builder.constants.keys())
        assert "TwFloat8" in made.text.split("stage_0")[1]
        assert "tensor_core" in made.stages[0].tactic
    assert any(entry.stage == "float8" for entry in build.log.entries)


@pytest.mark.nvrtc
@pytest.mark.parametrize(("target", "kernels"), [("sm_90", 4), ("sm_80+sm_90", 7)])
def test_networks_compile(target: str, kernels: int) -> None:
    """Where a GPU lacks the instructions, products run in float16."""
    engine = tw.compile(network(), target=target, precision="fp16", verify=False, cache=None)
    assert engine.summary["kernels"] == kernels
    chosen = [entry.chosen for entry in engine.decisions if entry.stage == "tactic"]
    assert sum("tensor_core" in text for text in chosen) == 3


@pytest.mark.nvrtc
def test_float32_sums_stay_float32() -> None:
    engine = tw.compile(network(), target="sm_90", precision="fp32", verify=False, cache=None)
    assert not any(entry.stage == "float8" for entry in engine.decisions)


@needs_compiler
def test_conversions_of_float8_round_as_stated() -> None:
    codes = np.arange(256, dtype=np.uint8).reshape(2, 128)
    x = buffer("x", 2, 128, dtype=FLOAT8_E4M3FN)
    wide = pure(buffer("out", 2, 128), (x,), lambda i, j: x[i, j].cast(FLOAT32))
    given = codes.view(FLOAT8_E4M3FN.numpy)
    found = run_emulated(wide, {"x": given})["out"]
    np.testing.assert_array_equal(found, given.astype(np.float32))

    values = np.unique(np.abs(given.astype(np.float32)[~np.isnan(given.astype(np.float32))]))
    middles = (values[1:] + values[:-1]) / 2
    near = [np.nextafter(m, side) for m in middles for side in (-np.inf, np.inf)]
    numbers = np.asarray([*values, *middles, *near, 1e-30, 460.0, 1e30, np.inf, np.nan])
    numbers = np.r_[numbers, -numbers].astype(np.float32).reshape(2, -1)
    y = buffer("y", *numbers.shape)

    def body(i: Expr, j: Expr) -> Expr:
        return y[i, j].cast(FLOAT8_E4M3FN)

    narrow = pure(buffer("out", *numbers.shape, dtype=FLOAT8_E4M3FN), (y,), body)
    assert "tw_float_to_e4m3" in generate(narrow).text.split("stage_0")[1]
    found = run_emulated(narrow, {"y": numbers})["out"]
    limited = np.clip(numbers, -448, 448).astype(FLOAT8_E4M3FN.numpy)
    same = found.view(np.uint8) == limited.view(np.uint8)
    assert (same | np.isnan(numbers)).all()
    assert np.isnan(found.astype(np.float32))[np.isnan(numbers)].all()
