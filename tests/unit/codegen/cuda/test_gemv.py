"""Products of one vector: results, and why other kernels are refused."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.cuda.gemv import gemv_refusal
from tilewright.codegen.cuda.generate import generate
from tilewright.codegen.cuda.nvrtc import compile_text
from tilewright.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from tilewright.core.shape import Dim
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Axis, Buffer, Expr, Kernel, Stage, Store, call, reduce_axes
from unit.codegen.cpu.kernels import KERNELS, N, buffer, pure
from unit.codegen.cpu.test_generate import SIZES, fixed
from unit.codegen.cuda.contractions import feeds_of
from unit.codegen.cuda.emulate import needs_compiler, run_emulated


def _sum(w: Buffer, x: Buffer, row: Expr, factor: Expr | None = None) -> Expr:
    c = Axis("c", w.shape[1])
    value = x[0, c.var].cast(FLOAT32)
    if factor is not None:
        value = (value * factor).cast(FLOAT16).cast(FLOAT32)
    return reduce_axes("sum", (c,), w[row, c.var].cast(FLOAT32) * value)


def product(rows: int, depth: int, dtype: DType = FLOAT16) -> Kernel:
    """``W x`` plus what was there."""
    w, x = buffer("w", rows, depth, dtype=dtype), buffer("x", 1, depth, dtype=dtype)
    y, out = (buffer(name, 1, rows, dtype=dtype) for name in ("y", "out"))
    return pure(out, (w, x, y), lambda i, n: (_sum(w, x, n) + y[i, n].cast(FLOAT32)).cast(dtype))


def gated(rows: int, depth: int) -> Kernel:
    """A gate times a value, two rows of weights of an output, of a normalised vector."""
    w = buffer("w", 2 * rows, depth, dtype=FLOAT16)
    x, out = (buffer(name, 1, size, dtype=FLOAT16) for name, size in (("x", depth), ("out", rows)))
    r = Axis("r", Dim.of(depth))
    square = x[0, r.var].cast(FLOAT32)
    length = call("sqrt", reduce_axes("sum", (r,), square * square) / float(depth) + 1e-5)

    def body(_: Expr, n: Expr) -> Expr:
        gate = _sum(w, x, n, 1.0 / length)
        return (gate * call("sigmoid", gate) * _sum(w, x, n + rows, 1.0 / length)).cast(FLOAT16)

    return pure(out, (w, x), body)


def turned(heads: int, width: int, depth: int) -> Kernel:
    """Two outputs of two sums, and beside them a copy of other rows."""
    half = width // 2
    w = buffer("w", heads * width + 24, depth, dtype=FLOAT16)
    x, a = buffer("x", 1, depth, dtype=FLOAT16), buffer("a", half)
    out, rest = buffer("out", heads, width, dtype=FLOAT16), buffer("rest", 24, dtype=FLOAT16)
    axes = (Axis("h", Dim.of(heads)), Axis("k", Dim.of(half)))
    h, k = (axis.var for axis in axes)
    n = Axis("n", Dim.of(24))
    first, second = (_sum(w, x, h * width + k * 2 + e) for e in (0, 1))
    stores = (
        Store("out", (h, k * 2), (first * a[k] - second).cast(FLOAT16)),
        Store("out", (h, k * 2 + 1), (second * a[k] + first).cast(FLOAT16)),
    )
    last = Store("rest", (n.var,), _sum(w, x, n.var + heads * width).cast(FLOAT16))
    return Kernel(
        name="turned",
        inputs=(w, x, a),
        outputs=(out, rest),
        stages=(Stage(axes, stores), Stage((n,), (last,))),
    )


PRODUCTS = {
    "a warp an output": product(1100, 96),
    "few outputs": product(9, 1024),
    "many warps": product(12, 16384),
    "a short tail": product(5, 328),
    "gated": gated(40, 256),
    "turned, beside a copy": turned(3, 32, 128),
}


@needs_compiler
@pytest.mark.parametrize("name", PRODUCTS)
def test_code_agrees_with_the_interpreter(name: str) -> None:
    kernel = PRODUCTS[name]
    made, feeds = generate(kernel, constants=["w"]), feeds_of(kernel)
    assert all(stage.tactic.startswith("gemv") for stage in made.stages)
    found, expected = run_emulated(kernel, feeds, made=made), interpret(kernel, feeds, {})
    for own in kernel.outputs:
        right = expected[own.name].astype(np.float64)
        largest = np.abs(right).max()
        np.testing.assert_allclose(
            found[own.name].astype(np.float64), right, rtol=4e-3, atol=2e-3 * largest
        )


@needs_compiler
def test_code_for_bfloat16() -> None:
    kernel = product(20, 256, BFLOAT16)
    made, feeds = generate(kernel), feeds_of(kernel)
    assert made.stages[0].tactic.startswith("gemv")
    found = run_emulated(kernel, feeds, made=made)["out"].astype(np.float64)
    right = interpret(kernel, feeds, {})["out"].astype(np.float64)
    np.testing.assert_allclose(found, right, rtol=2e-2, atol=2e-2 * np.abs(right).max())


def test_stages_that_do_not_need_each_other_share_a_launch() -> None:
    made = generate(PRODUCTS["turned, beside a copy"])
    assert len(made.stages) == 1
    assert made.stages[0].tactic.count("gemv") == 2


def test_constants_are_read_before_the_kernel_before_has_ended() -> None:
    kernel = PRODUCTS["gated"]
    for constants, early in ((["w"], True), ([], False)):
        text = generate(kernel, constants=constants).text
        body = text[text.index("stage_0(") :]
        assert (body.index("tw_stream8(") < body.index("tw_begin();")) is early


@pytest.mark.nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_code_compiles_without_spills(arch: str) -> None:
    for kernel in (gated(8192, 2048), product(2048, 8192), turned(32, 64, 2048)):
        compiled = compile_text(generate(kernel, constants=["w"]).text, arch)
        assert all(usage.spill_bytes == 0 for usage in compiled.usage.values())


def _guarded() -> Kernel:
    kernel = product(8, 64)
    (stage,) = kernel.stages
    store = stage.stores[0]
    guarded = Store(store.buffer, store.index, store.value, stage.axes[1].var.lt(4))
    return Kernel(
        name="guarded",
        inputs=kernel.inputs,
        outputs=kernel.outputs,
        stages=(Stage(stage.axes, (guarded,)),),
    )


def _symbolic() -> Kernel:
    w, x = buffer("w", N, 64, dtype=FLOAT16), buffer("x", 1, 64, dtype=FLOAT16)
    out = buffer("out", 1, N, dtype=FLOAT32)
    return pure(out, (w, x), lambda _, n: _sum(w, x, n))


def _of_rows() -> Kernel:
    w, x = buffer("w", 8, 64, dtype=FLOAT16), buffer("x", 8, 64, dtype=FLOAT16)
    c = Axis("c", Dim.of(64))
    return pure(
        buffer("out", 8, dtype=FLOAT32),
        (w, x),
        lambda n: reduce_axes("sum", (c,), w[n, c.var].cast(FLOAT32) * x[n, c.var].cast(FLOAT32)),
    )


REFUSALS = {
    "an axis is ordered": fixed(KERNELS["running_sum"](), SIZES["odd"]),
    "a store is guarded": _guarded(),
    "symbolic sizes": _symbolic(),
    "both factors differ from output to output": _of_rows(),
    "a depth of 32": product(8, 32),
    "rows of weights are not read in chunks": product(8, 100),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals_have_reasons(reason: str) -> None:
    assert gemv_refusal(REFUSALS[reason]) == reason


def test_it_can_be_disabled() -> None:
    made = generate(PRODUCTS["few outputs"], ["gemv"])
    assert ("gemv", "disabled") in made.stages[0].refused
