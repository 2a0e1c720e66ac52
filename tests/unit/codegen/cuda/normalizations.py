"""Normalisations of rows as kernels.

Input -> Output: sizes -> a kernel whose scales and shifts are the same for every row.
"""

from __future__ import annotations

from tilewright.core.dtypes import FLOAT16, FLOAT32
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Axis, Expr, Kernel, call, reduce_axes
from unit.codegen.cpu.kernels import buffer, pure


def normalized(rows: int, columns: int) -> Kernel:
    """``(x - mean) / sqrt(variance + 1e-5) * scale + shift`` of float16."""
    x = buffer("x", rows, columns, dtype=FLOAT16)
    scale, shift = buffer("scale", columns), buffer("shift", columns)
    r, q = Axis("r", Dim.of(columns)), Axis("q", Dim.of(columns))

    def body(i: Expr, j: Expr) -> Expr:
        mean = reduce_axes("sum", (r,), x[i, r.var].cast(FLOAT32)) / float(columns)
        far = x[i, q.var].cast(FLOAT32) - mean
        variance = reduce_axes("sum", (q,), far * far) / float(columns)
        value = (x[i, j].cast(FLOAT32) - mean) / call("sqrt", variance + 1e-5)
        return (value * scale[j] + shift[j]).cast(FLOAT16)

    return pure(buffer("out", rows, columns, dtype=FLOAT16), (x, scale, shift), body)
