"""Generated CUDA C++ against the interpreter: every kind of kernel and size, emulated."""

from __future__ import annotations

import math

import numpy as np
import pytest

from property.kernels import generate as random_case
from property.test_kernels import difference
from tilewright.codegen.cuda import row
from tilewright.codegen.cuda.generate import generate
from tilewright.core.dtypes import FLOAT16, STRING
from tilewright.core.errors import OutOfRange, UnsupportedOp
from tilewright.core.shape import Dim
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Axis, Buffer, Kernel, Stage, Store, call
from unit.codegen.cpu.kernels import KERNELS, buffer, feeds_for, pure
from unit.codegen.cpu.test_generate import SIZES, close, fixed
from unit.codegen.cuda.contractions import product
from unit.codegen.cuda.emulate import needs_compiler, run_emulated
from unit.codegen.cuda.normalizations import normalized

TALL = {"m": 1 << 15, "k": 64}

pytestmark = needs_compiler


@pytest.mark.parametrize("name", KERNELS)
def test_code_agrees_with_the_interpreter(name: str) -> None:
    """One function for all sizes."""
    kernel = KERNELS[name]()
    made = generate(kernel)
    for sizes in SIZES.values():
        feeds = feeds_for(kernel, sizes)
        try:
            expected = interpret(kernel, feeds, sizes)
        except OutOfRange:
            with pytest.raises(OutOfRange):
                run_emulated(kernel, feeds, sizes, made=made)
            continue
        close(run_emulated(kernel, feeds, sizes, made=made), expected)


@pytest.mark.parametrize("name", KERNELS)
def test_code_of_known_sizes_agrees(name: str) -> None:
    kernel = fixed(KERNELS[name](), SIZES["odd"])
    feeds = feeds_for(kernel, {})
    close(run_emulated(kernel, feeds), interpret(kernel, feeds, {}))


@pytest.mark.parametrize("size", ["empty", "no rows"])
@pytest.mark.parametrize("name", ["convolution", "guarded_scatter", "matmul", "transpose"])
def test_code_of_known_sizes_of_0_agrees(name: str, size: str) -> None:
    kernel = fixed(KERNELS[name](), SIZES[size])
    feeds = feeds_for(kernel, {})
    close(run_emulated(kernel, feeds), interpret(kernel, feeds, {}))


@pytest.mark.parametrize("name", ["softmax", "row_sum", "matmul"])
def test_the_last_tactic_takes_what_others_would(name: str) -> None:
    kernel = fixed(KERNELS[name](), SIZES["vectors"])
    feeds = feeds_for(kernel, {})
    made = generate(kernel, ["row", "columns"])
    assert [stage.tactic for stage in made.stages] == ["point"]
    assert ("row", "disabled") in made.stages[0].refused
    close(run_emulated(kernel, feeds, made=made), interpret(kernel, feeds, {}))


@pytest.mark.parametrize("seed", range(7_000_000, 7_000_012))
def test_random_kernels_agree(seed: int) -> None:
    case = random_case(seed)
    narrow = interpret(case.kernel, case.feeds, case.sizes)
    wide = interpret(case.kernel, case.feeds, case.sizes, wide=True)
    found = run_emulated(case.kernel, case.feeds, case.sizes)
    assert difference(case, found, narrow, wide) == ""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("add_relu", "no reduction is needed at every point"),
        ("running_sum", "an axis is ordered"),
        ("guarded_scatter", "a store is guarded"),
    ],
)
def test_the_row_tactic_says_why_not(name: str, reason: str) -> None:
    made = generate(KERNELS[name]())
    assert ("row", reason) in [refusal for stage in made.stages for refusal in stage.refused]


def test_neighbouring_columns_are_left_to_a_thread_each() -> None:
    kernel = fixed(KERNELS["column_max"](), {"k": 64, "n": 8192})
    reason = "neighbouring rows are read together"
    assert ("row", reason) in generate(kernel, ["columns"]).stages[0].refused
    short = fixed(KERNELS["row_sum"](), {"m": 7, "k": 4})
    assert ("row", "rows of 4") in generate(short).stages[0].refused


@needs_compiler
def test_rough_gelu_is_right_to_the_bits_that_are_kept() -> None:
    x = np.concatenate([np.linspace(-12, 12, 4090), [np.inf, np.nan, 3e4, -3e4, 0.0, -0.0]])
    kernel = pure(
        buffer("out", len(x), dtype=FLOAT16),
        (buffer("x", len(x)),),
        lambda i: call("gelu", buffer("x", len(x))[i]).cast(FLOAT16),
    )
    assert "tw_rough_gelu(" in generate(kernel).text.split("stage_0")[-1]
    found = run_emulated(kernel, {"x": x.astype(np.float32)}, {})["out"].astype(np.float64)
    exact = np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x])
    error = np.abs(found[:4090] - exact[:4090])
    assert (error <= 4e-7 + np.abs(exact[:4090]) * 2.0**-11 + 2.0**-25).all()
    np.testing.assert_array_equal(found[4090:4092], [np.inf, np.nan])
    np.testing.assert_allclose(found[4092:], [3e4, 0, 0, 0], rtol=1e-3)


@needs_compiler
@pytest.mark.parametrize("resident", [8, 2112])
def test_constants_of_all_rows_are_read_early(
    resident: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By warps that take several rows each, where there are more rows than warps at once."""
    monkeypatch.setattr(row, "_RESIDENT", resident)
    monkeypatch.setattr(row, "_FEW_ROWS", 16)
    kernel = normalized(37, 512)
    made = generate(kernel, constants={"scale", "shift"})
    text = made.text.split("stage_0")[1]
    assert text.count("tw_read_early(") == 2
    assert text.index("tw_read_early(") < text.index("tw_begin()")
    assert made.stages[0].launch.grid[0].const == (2 if resident == 8 else 10)
    feeds = feeds_for(kernel, {})
    expected = interpret(kernel, feeds, {})["out"].astype(np.float64)
    found = run_emulated(kernel, feeds, made=made)["out"].astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)


def test_values_of_kernels_are_not_read_early() -> None:
    assert "tw_read_early(" not in generate(normalized(37, 512)).text.split("stage_0")[1]
    wide = generate(normalized(8, 960), constants={"scale", "shift"})
    assert "tw_read_early(" not in wide.text.split("stage_0")[1]


def test_many_rows_that_read_the_same_are_left_to_a_thread_each() -> None:
    made = generate(product(2000, 24, 24, b_flip=True), ["tensor_core"])
    assert ("row", "48000 rows of 24 that read the same values") in made.stages[0].refused
    for few in (product(200, 24, 24, b_flip=True), fixed(KERNELS["row_sum"](), TALL)):
        assert generate(few, ["tensor_core"]).stages[0].tactic.startswith("row")


def test_indices_are_narrow_only_where_that_is_proven() -> None:
    known = fixed(KERNELS["transpose"](), {"m": 100, "n": 100})
    assert "(s64)" not in generate(known).text.split("stage_0")[1]
    large = fixed(KERNELS["transpose"](), {"m": 100_000, "n": 100_000})
    assert "(s64)" in generate(large).text.split("stage_0")[1]
    assert "s64 d0" in generate(KERNELS["transpose"]()).text


def test_types_without_code_are_refused() -> None:
    x, out = Buffer("x", STRING, (Dim.of(2),)), Buffer("out", STRING, (Dim.of(2),))
    axis = Axis("i", Dim.of(2))
    stage = Stage((axis,), (Store("out", (axis.var,), x[axis.var]),))
    kernel = Kernel(name="k", inputs=(x,), outputs=(out,), stages=(stage,))
    with pytest.raises(UnsupportedOp, match="string has no CUDA code"):
        generate(kernel)
