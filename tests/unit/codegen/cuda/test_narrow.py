"""Products of bytes, float8 and bfloat16, and exact arithmetic of quantised results, emulated."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.cuda.generate import generate
from tilewright.codegen.cuda.nvrtc import compile_text
from tilewright.core.dtypes import FLOAT8_E4M3FN, FLOAT16, FLOAT32, INT8, UINT8, UINT32, DType
from tilewright.core.shape import Dim
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Expr, cast, constant
from tilewright.lower.quantized import requantized
from tilewright.runtime.program import Matrix
from unit.codegen.cpu.kernels import buffer, pure
from unit.codegen.cuda.contractions import NARROW, byte_convolution, feeds_of, narrow_product
from unit.codegen.cuda.emulate import needs_compiler, run_emulated


@needs_compiler
@pytest.mark.parametrize("name", NARROW)
def test_blocks_give_what_the_interpreter_does(name: str) -> None:
    kernel = NARROW[name]
    feeds = feeds_of(kernel)
    expected = interpret(kernel, feeds, {})["out"]
    made = generate(kernel, ["tma"], clusters=True)
    assert "tensor_core" in made.stages[0].tactic
    found = run_emulated(kernel, feeds, made=made)["out"]
    if kernel.outputs[0].dtype.is_integer:
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_the_copy_engine_fetches_bytes_in_pairs() -> None:
    made = generate(narrow_product(8192, 3072, 768, UINT8, INT8), clusters=True, constants=("b",))
    (stage,) = made.stages
    assert "copy engine" in stage.tactic
    left, _ = stage.launch.matrices
    assert isinstance(left, Matrix)
    assert (left.rows, left.columns, left.stride) == (Dim.of(8192), Dim.of(384), Dim.of(384))


def test_refusals_have_reasons() -> None:
    float8 = generate(narrow_product(64, 64, 64, FLOAT8_E4M3FN)).stages[0]
    assert ("tensor_core", "bytes: a GPU without such instructions") in float8.refused
    mixed = generate(narrow_product(64, 64, 64, FLOAT16, FLOAT8_E4M3FN)).stages[0]
    reason = "no instruction multiplies float16 by float8_e4m3fn into float32"
    assert ("tensor_core", reason) in mixed.refused
    odd = generate(narrow_product(64, 64, 72, UINT8, INT8)).stages[0]
    assert ("tensor_core", "bytes: an operand does not run along the depth") in odd.refused


@needs_compiler
def test_quotients_by_constants_are_those_of_ieee() -> None:
    """The last byte of their bits shows every rounding."""
    rng = np.random.default_rng(0)
    values = np.exp2(rng.uniform(-20, 20, (16, 4096))) * rng.choice([-1, 1], (16, 4096))
    x = buffer("x", 16, 4096)
    for divisor in np.exp2(rng.uniform(-12, 6, 6)).astype(np.float32):

        def body(i: Expr, j: Expr, divisor: float = float(divisor)) -> Expr:
            return cast(x[i, j] / divisor, UINT32, bits=True).cast(UINT8)

        kernel = pure(buffer("out", 16, 4096, dtype=UINT8), (x,), body)
        assert "tw_quotient" in generate(kernel).text.split("stage_0")[1]
        feeds = {"x": values.astype(np.float32)}
        quotients = (feeds["x"] / divisor).view(np.uint32).astype(np.uint8)
        np.testing.assert_array_equal(run_emulated(kernel, feeds)["out"], quotients)


@needs_compiler
@pytest.mark.parametrize("kind", [UINT8, INT8])
def test_sums_of_all_pairs_of_bytes(kind: DType) -> None:
    a, b = buffer("a", 256, 256, dtype=kind), buffer("b", 256, 256, dtype=kind)

    def body(i: Expr, j: Expr) -> Expr:
        first = (a[i, j].cast(FLOAT32) - 130.0) * 0.02619743
        second = (b[i, j].cast(FLOAT32) - 7.0) * 0.049540807
        total = (first + second) / 0.026516406
        return requantized(total, constant(1.0, FLOAT32), constant(-5, INT8), INT8)

    kernel = pure(buffer("out", 256, 256, dtype=INT8), (a, b), body)
    text = generate(kernel).text.split("stage_0")[1]
    assert "tw_marked" in text
    assert "tw_byte_to_float" in text
    assert "tw_quotient" in text
    pairs = np.mgrid[:256, :256].astype(np.uint8)
    feeds = {name: own.view(a.dtype.numpy) for name, own in zip("ab", pairs, strict=True)}
    expected = interpret(kernel, feeds, {})["out"]
    np.testing.assert_array_equal(run_emulated(kernel, feeds)["out"], expected)


@needs_compiler
def test_numbers_beyond_every_byte_are_clamped() -> None:
    x = buffer("x", 8)
    kernel = pure(
        buffer("out", 8, dtype=UINT8),
        (x,),
        lambda i: requantized(x[i] / 0.3, constant(1.0, FLOAT32), None, UINT8),
    )
    given = [np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-40, 76.35, 0.15]
    feeds = {"x": np.asarray(given, np.float32)}
    expected = interpret(kernel, feeds, {})["out"]
    np.testing.assert_array_equal(run_emulated(kernel, feeds)["out"], expected)


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_bytes_compile(arch: str) -> None:
    window = byte_convolution((8, 28, 28, 64), 64, 3)
    for kernel in (narrow_product(256, 256, 256, UINT8, INT8), window):
        made = generate(kernel, clusters=arch != "sm_80", constants=("b", "w"))
        compiled = compile_text(made.text, arch)
        assert compiled.usage["stage_0"].spill_bytes <= 64
        assert b"k32.row.col.s32.u8.s8.s32" in compiled.ptx
        assert "wgmma.mma_async.sync.aligned.m64n" in made.text  # for sm_90 alone


@pytest.mark.nvrtc
def test_float8_compiles() -> None:
    made = generate(narrow_product(256, 256, 256, FLOAT8_E4M3FN), clusters=True)
    assert b"k32.row.col.f32.e4m3.e4m3.f32" in compile_text(made.text, "sm_90").ptx
