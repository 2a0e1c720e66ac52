"""Matrix products, Einsum and determinants.

Guarantees: half-precision products accumulate in float32 or better; integer products are exact
modulo the element type, and run on floating-point matrix multiplication where that is exact.
Not here: quantised products (quantization), convolution (conv)."""

from __future__ import annotations

import numpy as np

from tilewright.runtime.reference.dtypes import Array
from tilewright.runtime.reference.registry import Call, Outputs, operator

_EXACT_BITS = 53  # integers up to 2**53 are exact in float64


def product(a: Array, b: Array) -> Array:
    """numpy.matmul, faster for integers whose sums stay exact in float64."""
    if a.dtype.kind not in "iu" or b.dtype.kind not in "iu" or not a.size or not b.size:
        return np.asarray(np.matmul(a, b))
    result_dtype = np.result_type(a, b)
    bound = max(abs(int(a.min())), abs(int(a.max()))) * max(abs(int(b.min())), abs(int(b.max())))
    if bound * a.shape[-1] >= 1 << _EXACT_BITS:
        return np.asarray(np.matmul(a, b))
    exact = np.matmul(a.astype(np.float64), b.astype(np.float64))
    return np.asarray(exact).astype(np.int64).astype(result_dtype)


@operator("MatMul")
def matmul(call: Call, a: Array, b: Array) -> Outputs:
    if a.ndim == 0 or b.ndim == 0:
        raise call.error("operands must have at least one dimension")
    return (product(a, b),)


@operator("Gemm")
def gemm(call: Call, a: Array, b: Array, c: Array | None = None) -> Outputs:
    if a.ndim != 2 or b.ndim != 2:
        raise call.error(f"A {a.shape} and B {b.shape} must be matrices")
    left = a.T if call.integer("transA", 0) else a
    right = b.T if call.integer("transB", 0) else b
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    result = product(left, right)
    if alpha != 1:
        result = alpha * result
    if c is not None and beta != 0:
        np.broadcast_shapes(c.shape, result.shape)
        result = result + (c if beta == 1 else beta * c)
    return (result.astype(a.dtype, copy=False),)


@operator("Einsum", since=12)
def einsum(call: Call, *operands: Array) -> Outputs:
    equation = call.text("equation").replace(" ", "")
    terms = equation.partition("->")[0].split(",")
    hidden = {
        operand.ndim - len(term) + 3
        for term, operand in zip(terms, operands, strict=True)
        if "..." in term
    }
    if len(hidden) > 1:
        raise call.error(f"the ellipses of {equation!r} stand for {sorted(hidden)} axes")
    return (np.einsum(equation, *operands, optimize=len(operands) > 1),)


@operator("Det", since=11)
def determinant(call: Call, x: Array) -> Outputs:
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise call.error(f"{x.shape} holds no square matrices")
    return (np.asarray(np.linalg.det(x)).astype(x.dtype),)
