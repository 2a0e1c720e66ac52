"""Numbers that end as bytes take fewer instructions, and stay the same for every value."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.cpu.generate import generate
from tilewright.codegen.cpu.target import CpuTarget, named_target
from tilewright.core.dtypes import FLOAT32, INT8, INT32, UINT8, DType
from tilewright.kernel.byte_sums import sum_of_bytes
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Call, Expr, Kernel, call, constant, reduce_over, walk
from tilewright.lower.quantized import nearest
from unit.codegen.cpu.kernels import Array, buffer, pure
from unit.codegen.cpu.lanes import runnable_targets
from unit.codegen.cpu.native import run_native

WIDE = named_target("znver4")
A, B = (buffer(name, 256, 256, dtype=UINT8) for name in "ab")


def residual(scales: np.ndarray, zeros: tuple[int, int, int], dtype: DType = UINT8) -> Kernel:
    """Two dequantised bytes, added and quantised."""

    def body(m: Expr, n: Expr) -> Expr:
        left, right = (
            (x[m, n].cast(FLOAT32) - float(zero)) * float(scale)
            for x, zero, scale in zip((A, B), zeros, scales, strict=False)
        )
        return nearest((left + right) / float(scales[2]), constant(zeros[2], dtype), dtype)

    return pure(buffer("out", 256, 256, dtype=dtype), (A, B), body)


def rounded(kernel: Kernel) -> Expr:
    """What the kernel rounds last."""
    return [n for n in walk(*kernel.roots) if isinstance(n, Call) and n.op == "round"][-1].args[0]


def test_most_sums_of_two_bytes_are_two_multiply_adds() -> None:
    rng = np.random.default_rng(1)
    found = [
        sum_of_bytes(rounded(residual(np.exp2(rng.uniform(-6, -4, 3)).astype(np.float32), zeros)))
        for zeros in [(0, 0, 0), (131, 0, 0), (7, 250, 100)]
        for _ in range(4)
    ]
    assert sum(one is not None for one in found) >= len(found) - 1
    assert all((one.offset == 0.0) == (k < 4) for k, one in enumerate(found) if one is not None)


def test_what_is_no_sum_of_two_bytes_is_left_alone() -> None:
    x, y = A[0, 0].cast(FLOAT32), B[0, 0].cast(FLOAT32)
    wide = buffer("c", 4, dtype=INT32)[0].cast(FLOAT32)
    for value in (x * y, x * 0.5, x * 0.5 + wide * 0.25, x * 0.5 + call("exp", y), x + y * 1e-9):
        number = nearest(value, None, UINT8).children[0].children[0].children[0]
        assert sum_of_bytes(number) is None


@pytest.mark.parametrize("target", runnable_targets(), ids=lambda target: target.name)
@pytest.mark.parametrize(
    ("zeros", "dtype"), [((131, 0, 0), UINT8), ((3, 250, 117), UINT8), ((0, 0, -7), INT8)]
)
def test_all_pairs_are_right(target: CpuTarget, zeros: tuple[int, int, int], dtype: DType) -> None:
    kernel = residual(np.asarray([0.0281, 0.0298, 0.0307], np.float32), zeros, dtype)
    a, b = np.mgrid[:256, :256].astype(np.uint8)
    want = interpret(kernel, {"a": a, "b": b}, {})["out"]
    got = run_native(kernel, {"a": a, "b": b}, {}, target=target)["out"]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("target", runnable_targets(), ids=lambda target: target.name)
def test_bytes_saturate_beyond_all_integers(target: CpuTarget) -> None:
    x = buffer("x", 64)
    kernel = pure(buffer("out", 64, dtype=UINT8), (x,), lambda i: nearest(x[i], None, UINT8))
    ends = [
        np.nan,
        np.inf,
        -np.inf,
        3e9,
        5e9,
        -3e9,
        1e30,
        -0.0,
        254.5,
        255.4,
        255.5,
        0.5,
        1.5,
        -1e-9,
    ]
    feeds = {"x": np.resize(np.asarray(ends, np.float32), 64)}
    want = interpret(kernel, feeds, {})["out"]
    np.testing.assert_array_equal(run_native(kernel, feeds, {}, target=target)["out"], want)
    assert want[:3].tolist() == [255, 255, 0]


def dots(users: int) -> Kernel:
    """Bytes times bytes and a bias, which the sums begin with unless they are read twice."""
    x, w = buffer("x", 7, 12, dtype=UINT8), buffer("w", 3, 32, 4, dtype=INT8)
    bias = buffer("bias", 32, dtype=INT32)

    def body(m: Expr, n: Expr) -> Expr:
        total = reduce_over(
            "sum", (3, 4), lambda q, j: x[m, q * 4 + j].cast(INT32) * w[q, n, j].cast(INT32)
        )
        return total + bias[n] if users == 1 else (total + bias[n]) * total

    return pure(buffer("out", 7, 32, dtype=INT32), (x, w, bias), body)


@pytest.mark.parametrize("target", runnable_targets(), ids=lambda target: target.name)
@pytest.mark.parametrize("users", [1, 2])
def test_sums_begin_with_their_bias(target: CpuTarget, users: int) -> None:
    kernel, rng = dots(users), np.random.default_rng(users)
    feeds: dict[str, Array] = {
        "x": rng.integers(0, 256, (7, 12)).astype(np.uint8),
        "w": rng.integers(-128, 128, (3, 32, 4)).astype(np.int8),
        "bias": rng.integers(-(2**31), 2**31, 32).astype(np.int32),
    }
    want = interpret(kernel, feeds, {})["out"]
    np.testing.assert_array_equal(run_native(kernel, feeds, {}, target=target)["out"], want)


def test_a_sum_that_is_read_twice_is_computed_once() -> None:
    once, twice = (generate(dots(users), WIDE).text.count("vpdpbusd") for users in (1, 2))
    assert once == twice
    assert "add <16 x i32>" not in generate(dots(1), WIDE).text
    assert "add <16 x i32>" in generate(dots(2), WIDE).text
