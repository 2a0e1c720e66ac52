"""MatMul, Gemm, Einsum and their integer forms against the reference; what they lower to."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.core.dtypes import INT32
from tilewright.kernel.ir import Cast, Kernel, Load, Reduce, walk
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.einsum import parse_equation
from unit.lower.against_reference import check, integers, uniform
from unit.lower.direct import lower, run

_SHAPES = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 4)),
    ((3,), (5, 3, 4)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((6, 1, 2, 3), (5, 3, 4)),
    ((1, 2, 3), (0, 3, 4)),
    ((2, 0), (0, 4)),
    ((0, 2, 3), (3, 4)),
]


@pytest.mark.parametrize(("left", "right"), _SHAPES)
def test_matmul_shapes(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    check("MatMul", [uniform(*left), uniform(*right, seed=1)])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64, np.int64, np.uint32])
def test_matmul_types(dtype: Any) -> None:
    a, b = uniform(4, 33) * 9, uniform(33, 5, seed=1) * 9
    check("MatMul", [a.astype(np.int32).astype(dtype), b.astype(np.int32).astype(dtype)])


def test_halves_accumulate_in_float32() -> None:
    ones = np.ones((1, 4096), np.float16)
    (result,) = run("MatMul", [ones, ones.T.copy()], [(np.float16, (1, 1))])
    assert result[0, 0] == 4096  # in float16 the sum would stop at 2048


def _single_kernel(lowering: Lowering) -> Kernel:
    (kernel,) = lowering.items
    assert isinstance(kernel, Kernel)
    return kernel


def test_matmul_is_one_pure_contraction() -> None:
    a, b = uniform(2, 3), uniform(3, 4)
    kernel = _single_kernel(lower("MatMul", [a, b], [(np.float32, (2, 4))])[0])
    assert kernel.is_pure
    value = kernel.stages[0].stores[0].value
    assert isinstance(value, Reduce)
    assert [len(node.index) for node in walk(value) if isinstance(node, Load)] == [2, 2]


def test_constant_transposed_operand_is_stored_by_columns() -> None:
    a, b = uniform(2, 3), uniform(4, 3)
    lowering, _ = lower("Gemm", [a, b], [(np.float32, (2, 4))], attributes={"transB": 1})
    (stored,) = lowering.constants.values()
    np.testing.assert_array_equal(stored, b.T)
    assert stored.flags.c_contiguous


@pytest.mark.parametrize("flips", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("c", [None, (), (1,), (4,), (2, 1), (1, 4), (2, 4)])
def test_gemm(flips: tuple[int, int], c: tuple[int, ...] | None) -> None:
    a, b = uniform(2, 3), uniform(3, 4)
    inputs = [a.T.copy() if flips[0] else a, b.T.copy() if flips[1] else b]
    bias = [] if c is None else [uniform(*c, seed=2)]
    attributes = {"transA": flips[0], "transB": flips[1], "alpha": 0.5, "beta": -2.0}
    check("Gemm", [*inputs, *bias], attributes)


def test_gemm_on_integers_with_fractions() -> None:
    a, b, c = (integers(3, 3, dtype=np.int8, seed=k).astype(np.int32) for k in range(3))
    check("Gemm", [a, b, c], {"alpha": 0.5, "beta": 3.0})


def test_gemm_without_depth_is_the_bias() -> None:
    check("Gemm", [uniform(2, 0), uniform(0, 4), uniform(4)])


_EQUATIONS: list[tuple[str, list[tuple[int, ...]]]] = [
    ("ij->ji", [(2, 3)]),
    ("ij->", [(2, 3)]),
    ("ii", [(3, 3)]),
    ("bii->bi", [(2, 3, 3)]),
    ("...ii->...i", [(2, 4, 3, 3)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("bij, bjk -> bik", [(2, 2, 3), (2, 3, 4)]),
    ("...ij,...jk->...ik", [(5, 1, 2, 3), (1, 4, 3, 4)]),
    ("i,j->ij", [(2,), (3,)]),
    ("ij,kl->", [(2, 3), (4, 5)]),
    ("i,i", [(5,), (5,)]),
    ("bhwc,hkc->bhwk", [(2, 3, 4, 5), (3, 6, 5)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    ("a,a,a,a->a", [(3,), (3,), (3,), (3,)]),
    ("bn,anm,bm->ba", [(2, 3), (4, 3, 5), (2, 5)]),
    ("ij,jk->ik", [(0, 3), (3, 4)]),
    ("ij,jk->ik", [(2, 0), (0, 4)]),
    ("aB,Bc->ca", [(2, 3), (3, 4)]),
]


@pytest.mark.parametrize(("equation", "shapes"), _EQUATIONS)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    operands = [uniform(*shape, seed=k) for k, shape in enumerate(shapes)]
    check("Einsum", operands, {"equation": equation})


def test_einsum_on_halves_and_integers() -> None:
    for dtype in (np.float16, np.int8, np.uint64):
        operands = [(uniform(3, 3, seed=k) * 3).astype(np.int8).astype(dtype) for k in range(3)]
        check("Einsum", operands, {"equation": "ij,jk,kl->il"})


def test_chain_is_contracted_from_its_cheap_end() -> None:
    operands = [uniform(2, 50), uniform(50, 60), uniform(60, 1)]
    lowering, _ = lower(
        "Einsum", operands, [(np.float32, (2, 1))], attributes={"equation": "ij,jk,kl->il"}
    )
    first = lowering.items[0]
    assert isinstance(first, Kernel)
    assert [dim.const for dim in first.outputs[0].shape] in ([50, 1], [50])


def test_equation_that_does_not_fit_is_refused() -> None:
    with pytest.raises(Unlowerable, match="2 operands, not 1"):
        parse_equation("ij,jk->ik", [2])
    with pytest.raises(Unlowerable, match="does not fit ranks"):
        parse_equation("ij,jk->ik", [2, 3])


@pytest.mark.parametrize("left", [np.int8, np.uint8])
@pytest.mark.parametrize("right", [np.int8, np.uint8])
def test_matmul_integer(left: Any, right: Any) -> None:
    a, b = integers(2, 5, 7, dtype=left), integers(7, 3, dtype=right, seed=1)
    zero_a, zero_b = integers(1, dtype=left, seed=2)[0], integers(3, dtype=right, seed=3)
    check("MatMulInteger", [a, b])
    check("MatMulInteger", [a, b, np.asarray(zero_a), zero_b])


def test_known_zero_of_zero_is_not_subtracted() -> None:
    a, b = integers(2, 3, dtype=np.uint8), integers(3, 4, dtype=np.int8)
    zero = np.zeros((), np.uint8)
    kernel = _single_kernel(lower("MatMulInteger", [a, b, zero], [(np.int32, (2, 4))])[0])
    assert len(kernel.inputs) == 2
    value = kernel.stages[0].stores[0].value
    assert isinstance(value, Reduce)
    assert all(part.dtype is INT32 for part in walk(value) if isinstance(part, Cast))


def _quantized_inputs(a: Any, b: Any, wide: bool) -> list[Any]:
    scale_a = np.float32(0.0131)
    scale_b = uniform(1, 6, seed=5) ** 2 * 0.02 + 0.001 if wide else np.float32(0.0211)
    zero_b = integers(1, 6, dtype=b.dtype, seed=6) if wide else np.asarray(3, b.dtype)
    return [
        a,
        np.asarray(scale_a),
        np.asarray(2, a.dtype),
        b,
        np.asarray(scale_b),
        zero_b,
        np.asarray(np.float32(0.071)),
        np.asarray(7, np.int8),
    ]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_qlinear_matmul_is_bit_exact(dtype: Any, wide: bool) -> None:
    a, b = integers(40, 64, dtype=dtype), integers(64, 6, dtype=dtype, seed=1)
    check("QLinearMatMul", _quantized_inputs(a, b, wide))


def test_ties_round_to_even_before_the_zero_point() -> None:
    a = np.arange(-6, 7, dtype=np.int8)[:, None]
    one, zero = np.asarray(1, np.int8), np.asarray(0, np.int8)
    half, whole = np.asarray(0.5, np.float32), np.asarray(1, np.float32)
    inputs: list[Any] = [a, half, zero, one.reshape(1, 1), whole, zero, whole, one]
    (result,) = run("QLinearMatMul", inputs, [(np.int8, (13, 1))])
    np.testing.assert_array_equal(result[:, 0], np.rint(a[:, 0] * 0.5) + 1)


def test_float8_operands() -> None:
    dtype = ml_dtypes.float8_e4m3fn
    a, b = uniform(3, 8).astype(dtype), uniform(8, 6, seed=1).astype(dtype)
    scale, zero = np.asarray(0.5, np.float32), np.asarray(0, dtype)
    inputs: list[Any] = [a, scale, zero, b, scale, zero, scale, zero]
    (result,) = run("QLinearMatMul", inputs, [(dtype, (3, 6))])
    exact = a.astype(np.float64) @ b.astype(np.float64) * 0.5
    np.testing.assert_array_equal(result.astype(np.float32), exact.astype(dtype).astype(np.float32))
