"""Contractions of narrow values as kernels: matrix products and convolutions.

Input -> Output: sizes -> a kernel; a kernel -> random inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.dtypes import (
    BFLOAT16,
    FLOAT8_E4M3FN,
    FLOAT16,
    FLOAT32,
    INT8,
    INT32,
    UINT8,
    DType,
)
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Axis, Buffer, Expr, Kernel, constant, reduce_axes, select
from tilewright.lower.quantized import requantized
from unit.codegen.cpu.kernels import buffer, pure


def product(
    m: int,
    n: int,
    k: int,
    *,
    a_flip: bool = False,
    b_flip: bool = False,
    batch: int = 0,
    added: bool = False,
) -> Kernel:
    """``relu(a @ b + c)``; flipped operands are stored [k, m] and [n, k]; ``added``: ``+ d``."""
    lead = (batch,) if batch else ()
    a = buffer("a", *lead, *((k, m) if a_flip else (m, k)), dtype=FLOAT16)
    b = buffer("b", *lead, *((n, k) if b_flip else (k, n)), dtype=FLOAT16)
    c, r = buffer("c", n), Axis("r", Dim.of(k))
    d = buffer("d", *lead, m, n, dtype=FLOAT16)

    def body(*index: Expr) -> Expr:
        z, (i, j) = index[:-2], index[-2:]
        left = a[(*z, r.var, i) if a_flip else (*z, i, r.var)].cast(FLOAT32)
        right = b[(*z, j, r.var) if b_flip else (*z, r.var, j)].cast(FLOAT32)
        total = reduce_axes("sum", (r,), left * right) + c[j]
        total = total + d[index].cast(FLOAT32) if added else total
        return total.max(0.0).cast(FLOAT16)

    inputs = (a, b, c, d) if added else (a, b, c)
    return pure(buffer("out", *lead, m, n, dtype=FLOAT16), inputs, body)


def narrow_product(m: int, n: int, k: int, left: DType, right: DType | None = None) -> Kernel:
    """``a @ b'`` of narrow values with sums in float32, or requantised by columns from int32."""
    right = left if right is None else right
    a, b, r = buffer("a", m, k, dtype=left), buffer("b", n, k, dtype=right), Axis("r", Dim.of(k))
    factor, wide = buffer("factor", n), FLOAT32 if left.is_float else INT32

    def body(i: Expr, j: Expr) -> Expr:
        product = a[i, r.var].cast(wide) * b[j, r.var].cast(wide)
        total = reduce_axes("sum", (r,), product)
        if left.is_float:
            return total * factor[j]
        return requantized(total, factor[j], constant(3, UINT8), UINT8)

    kind = FLOAT32 if left.is_float else UINT8
    return pure(buffer("out", m, n, dtype=kind), (a, b, factor), body)


def byte_convolution(
    x: tuple[int, int, int, int], filters: int, size: int, *, stride: int = 1, zero: int = 0
) -> Kernel:
    """A convolution of ``x`` [n, h, w, c] with padding by its zero point, plus a residual."""
    n, h, w, channels = x
    pad = size // 2
    high, wide = ((extent + 2 * pad - size) // stride + 1 for extent in (h, w))
    data = buffer("x", n, h, w, channels, dtype=UINT8)
    weights = buffer("w", filters, size, size, channels, dtype=INT8)
    other = buffer("r", n, high, wide, filters, dtype=UINT8)
    kh, kw, c = (Axis(name, Dim.of(k)) for name, k in (("kh", size), ("kw", size), ("c", channels)))

    def body(*index: Expr) -> Expr:
        b, i, j, o = index
        row, column = i * stride + kh.var - pad, j * stride + kw.var - pad
        inside = row.ge(0) & row.lt(h) & column.ge(0) & column.lt(w)
        value = select(inside, data[b, row, column, c.var], constant(zero, UINT8))
        product = value.cast(INT32) * weights[o, kh.var, kw.var, c.var].cast(INT32)
        total = reduce_axes("sum", (kh, kw, c), product).cast(FLOAT32) * 0.001
        return requantized(total + other[index].cast(FLOAT32), constant(1.0, FLOAT32), None, UINT8)

    return pure(buffer("out", n, high, wide, filters, dtype=UINT8), (data, weights, other), body)


def convolution(
    x: tuple[int, int, int, int],
    filters: int,
    size: int,
    *,
    stride: int = 1,
    pad: int = 0,
    last: bool = True,
) -> Kernel:
    """A convolution of ``x`` [n, c, h, w]; ``last`` stores channels last."""
    n, channels, h, w = x
    shape = (n, h, w, channels) if last else x
    high, wide = ((extent + 2 * pad - size) // stride + 1 for extent in (h, w))
    out = (n, high, wide, filters) if last else (n, filters, high, wide)
    weight = (filters, size, size, channels) if last else (filters, channels, size, size)
    data, weights = buffer("x", *shape, dtype=FLOAT16), buffer("w", *weight, dtype=FLOAT16)
    c, kh, kw = (Axis(name, Dim.of(k)) for name, k in (("c", channels), ("kh", size), ("kw", size)))

    def body(*index: Expr) -> Expr:
        b, o, i, j = (index[0], index[3], index[1], index[2]) if last else index
        row, column = i * stride + kh.var - pad, j * stride + kw.var - pad
        value = data[(b, row, column, c.var) if last else (b, c.var, row, column)].cast(FLOAT32)
        if pad:
            inside = row.ge(0) & row.lt(h) & column.ge(0) & column.lt(w)
            value = select(inside, value, 0.0)
        tap = (o, kh.var, kw.var, c.var) if last else (o, c.var, kh.var, kw.var)
        axes = (kh, kw, c) if last else (c, kh, kw)
        return reduce_axes("sum", axes, value * weights[tap].cast(FLOAT32)).cast(FLOAT16)

    return pure(buffer("out", *out, dtype=FLOAT16), (data, weights), body)


def two_sums(
    n: int, size: int, depth: int, channels: int, filters: int, *, stride: int = 1
) -> Kernel:
    """``relu(z @ w + strided x @ w' + c)`` of images, channels last, both weights side by side."""
    wide = stride * size
    z = buffer("z", n, size, size, depth, dtype=FLOAT16)
    x = buffer("x", n, wide, wide, channels, dtype=FLOAT16)
    w = buffer("w", filters, depth + channels, dtype=FLOAT16)
    bias = buffer("c", filters)
    k, q = Axis("k", Dim.of(depth)), Axis("q", Dim.of(channels))

    def body(b: Expr, i: Expr, j: Expr, o: Expr) -> Expr:
        first = z[b, i, j, k.var].cast(FLOAT32) * w[o, k.var].cast(FLOAT32)
        data = x[b, i * stride, j * stride, q.var].cast(FLOAT32)
        second = data * w[o, q.var + depth].cast(FLOAT32)
        total = reduce_axes("sum", (k,), first) + reduce_axes("sum", (q,), second)
        return (total + bias[o]).max(0.0).cast(FLOAT16)

    return pure(buffer("out", n, size, size, filters, dtype=FLOAT16), (z, x, w, bias), body)


CONTRACTIONS: dict[str, Kernel] = {
    "product": product(40, 72, 96),
    "product, right stored by columns": product(40, 72, 96, b_flip=True),
    "product, left stored by columns": product(48, 72, 80, a_flip=True),
    "odd product": product(37, 29, 51),
    "odd product, right stored by columns": product(37, 29, 51, b_flip=True),
    "products": product(33, 40, 64, b_flip=True, batch=3),
    "one row": product(1, 40, 64),
    "many tiles": product(300, 260, 64, b_flip=True),
    "deep": product(24, 32, 1024, b_flip=True),
    "window": convolution((1, 16, 9, 9), 24, 3, pad=1),
    "window of many channels": convolution((2, 128, 6, 5), 16, 3, pad=1),
    "strided window": convolution((2, 8, 10, 10), 16, 3, stride=2, pad=1),
    "one tap": convolution((1, 64, 7, 7), 32, 1),
    "three channels": convolution((1, 3, 20, 20), 16, 7, stride=2, pad=3),
    "channels first": convolution((2, 16, 9, 9), 24, 3, pad=1, last=False),
}


NARROW: dict[str, Kernel] = {
    "bfloat16": narrow_product(40, 72, 96, BFLOAT16),
    "float8": narrow_product(40, 72, 160, FLOAT8_E4M3FN),
    "uint8 by int8": narrow_product(72, 40, 144, UINT8, INT8),
    "int8 by uint8": narrow_product(40, 72, 144, INT8, UINT8),
    "int8": narrow_product(40, 72, 256, INT8),
    "uint8": narrow_product(40, 72, 144, UINT8),
    "window of bytes": byte_convolution((2, 7, 6, 32), 24, 3),
    "strided window of bytes, padding 7": byte_convolution((1, 9, 8, 16), 40, 3, stride=2, zero=7),
    "bytes, one tap": byte_convolution((1, 5, 5, 144), 40, 1),
}


def feeds_of(kernel: Kernel) -> dict[str, npt.NDArray[Any]]:
    """Normal numbers for every input of floats, all integers for others."""
    rng = np.random.default_rng(0)
    return {own.name: _values(rng, own) for own in kernel.inputs}


def _values(rng: np.random.Generator, own: Buffer) -> npt.NDArray[Any]:
    shape = [dim.const for dim in own.shape]
    if own.dtype.is_integer:
        ends = np.iinfo(own.dtype.numpy)
        return rng.integers(ends.min, ends.max + 1, shape).astype(own.dtype.numpy)
    scale = 0.01 if own.name == "factor" else 1.0
    return (scale * rng.standard_normal(shape)).astype(own.dtype.numpy)
