"""Contractions of float16 values as kernels: matrix products and convolutions.

Input -> Output: sizes -> a kernel; a kernel -> random inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.dtypes import FLOAT16, FLOAT32
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Axis, Expr, Kernel, reduce_axes, select
from unit.codegen.cpu.kernels import buffer, pure


def product(
    m: int, n: int, k: int, *, a_flip: bool = False, b_flip: bool = False, batch: int = 0
) -> Kernel:
    """``relu(a @ b + c)``; flipped operands are stored [k, m] and [n, k]."""
    lead = (batch,) if batch else ()
    a = buffer("a", *lead, *((k, m) if a_flip else (m, k)), dtype=FLOAT16)
    b = buffer("b", *lead, *((n, k) if b_flip else (k, n)), dtype=FLOAT16)
    c, r = buffer("c", n), Axis("r", Dim.of(k))

    def body(*index: Expr) -> Expr:
        z, (i, j) = index[:-2], index[-2:]
        left = a[(*z, r.var, i) if a_flip else (*z, i, r.var)].cast(FLOAT32)
        right = b[(*z, j, r.var) if b_flip else (*z, r.var, j)].cast(FLOAT32)
        return (reduce_axes("sum", (r,), left * right) + c[j]).max(0.0).cast(FLOAT16)

    return pure(buffer("out", *lead, m, n, dtype=FLOAT16), (a, b, c), body)


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


def feeds_of(kernel: Kernel) -> dict[str, npt.NDArray[Any]]:
    """Normal numbers for every input."""
    rng = np.random.default_rng(0)
    return {
        own.name: rng.standard_normal([dim.const for dim in own.shape]).astype(own.dtype.numpy)
        for own in kernel.inputs
    }
