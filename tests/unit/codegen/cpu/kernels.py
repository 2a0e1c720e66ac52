"""Representative kernels, one for each way in which code can look.

Input -> Output: a name of ``KERNELS`` -> a kernel over symbols; sizes -> random inputs.
Not here: kernels of whole operators (tests of lower).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.codegen.cpu.target import host_target
from tilewright.core.dtypes import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    UINT8,
    DType,
)
from tilewright.core.shape import Dim
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Expr,
    Kernel,
    Stage,
    Store,
    call,
    cast,
    constant,
    dim_value,
    reduce_axes,
    select,
)

Array = npt.NDArray[Any]
B, M, N, K = map(Dim.symbol, ("b", "m", "n", "k"))
R, Q = Axis("r", K), Axis("q", K)


def pure(out: Buffer, inputs: tuple[Buffer, ...], body: Callable[..., Expr]) -> Kernel:
    """``out[i...] = body(i...)``."""
    axes = tuple(Axis(f"i{k}", dim) for k, dim in enumerate(out.shape))
    index = tuple(axis.var for axis in axes)
    stage = Stage(axes, (Store(out.name, index, body(*index)),))
    return Kernel(name="test", inputs=inputs, outputs=(out,), stages=(stage,))


def buffer(name: str, *shape: Dim | int, dtype: DType = FLOAT32) -> Buffer:
    """A buffer of float32 unless said otherwise."""
    return Buffer(name, dtype, tuple(map(Dim.of, shape)))


def add_relu() -> Kernel:
    x, y = buffer("x", B, M, N), buffer("y", B, M, N)
    return pure(buffer("out", B, M, N), (x, y), lambda *i: (x[i] + y[i]).max(0.0))


def add_bias() -> Kernel:
    x, bias = buffer("x", B, M, N), buffer("bias", M)
    return pure(
        buffer("out", B, M, N), (x, bias), lambda b, m, n: call("exp", x[b, m, n] + bias[m])
    )


def transpose() -> Kernel:
    x = buffer("x", M, N, 3)
    return pure(buffer("out", 3, N, M), (x,), lambda c, n, m: x[m, n, c])


def softmax() -> Kernel:
    x = buffer("x", M, K)

    def body(m: Expr, k: Expr) -> Expr:
        top = reduce_axes("max", (R,), x[m, R.var])
        total = reduce_axes("sum", (Q,), call("exp", x[m, Q.var] - top))
        return call("exp", x[m, k] - top) / total

    return pure(buffer("out", M, K), (x,), body)


def row_sum() -> Kernel:
    x = buffer("x", M, K)
    return pure(buffer("out", M), (x,), lambda m: reduce_axes("sum", (R,), x[m, R.var]))


def column_max() -> Kernel:
    x = buffer("x", K, N)
    return pure(buffer("out", N), (x,), lambda n: reduce_axes("max", (R,), x[R.var, n]))


def total() -> Kernel:
    x = buffer("x", M, K)
    axes = (Axis("p", M), R)
    return pure(buffer("out"), (x,), lambda: reduce_axes("sum", axes, x[axes[0].var, R.var]))


def matmul() -> Kernel:
    a, b, bias = buffer("a", M, K), buffer("b", K, N), buffer("bias", N)

    def body(m: Expr, n: Expr) -> Expr:
        return (reduce_axes("sum", (R,), a[m, R.var] * b[R.var, n]) + bias[n]).max(0.0)

    return pure(buffer("out", M, N), (a, b, bias), body)


def matmul_transposed() -> Kernel:
    a, b = buffer("a", M, K), buffer("b", N, K)
    return pure(
        buffer("out", M, N),
        (a, b),
        lambda m, n: reduce_axes("sum", (R,), a[m, R.var] * b[n, R.var]),
    )


def matmul_int8() -> Kernel:
    a, b = buffer("a", M, K, dtype=UINT8), buffer("b", K, N, dtype=INT8)

    def body(m: Expr, n: Expr) -> Expr:
        left, right = a[m, R.var].cast(INT32), b[R.var, n].cast(INT32)
        return reduce_axes("sum", (R,), (left - 128) * right)

    return pure(buffer("out", M, N, dtype=INT32), (a, b), body)


def dot_bytes() -> Kernel:
    """Four bytes beside each other in both operands; the data is signed, and moved up."""
    lanes = host_target().lanes(32)
    a, b = buffer("a", M, K * 4, dtype=INT8), buffer("b", 3, K, lanes, 4, dtype=INT8)
    four = Axis("four", Dim.of(4))

    def body(m: Expr, block: Expr, lane: Expr) -> Expr:
        byte = cast(a[m, R.var * 4 + four.var], UINT8, bits=True)
        left, right = call("xor", byte, 128), b[block, R.var, lane, four.var]
        return reduce_axes("sum", (R, four), left.cast(INT32) * right.cast(INT32))

    return pure(buffer("out", M, 3, lanes, dtype=INT32), (a, b), body)


def matmul_half() -> Kernel:
    a, b = buffer("a", M, K, dtype=FLOAT16), buffer("b", K, N, dtype=BFLOAT16)

    def body(m: Expr, n: Expr) -> Expr:
        left, right = a[m, R.var].cast(FLOAT32), b[R.var, n].cast(FLOAT32)
        return reduce_axes("sum", (R,), left * right).cast(FLOAT16)

    return pure(buffer("out", M, N, dtype=FLOAT16), (a, b), body)


def convolution() -> Kernel:
    """3x3, padded by one."""
    x, w = buffer("x", B, K, M, N), buffer("w", 5, K, 3, 3)
    kh, kw = Axis("kh", Dim.of(3)), Axis("kw", Dim.of(3))

    def body(b: Expr, o: Expr, h: Expr, c: Expr) -> Expr:
        row, column = h + kh.var - 1, c + kw.var - 1
        inside = row.ge(0) & row.lt(dim_value(M)) & column.ge(0) & column.lt(dim_value(N))
        value = select(inside, x[b, R.var, row, column], 0.0)
        return reduce_axes("sum", (R, kh, kw), value * w[o, R.var, kh.var, kw.var])

    return pure(buffer("out", B, 5, M, N), (x, w), body)


def gather() -> Kernel:
    table, ids = buffer("table", K, N), buffer("ids", M, dtype=INT64)
    return pure(
        buffer("out", M, N),
        (table, ids),
        lambda m, n: table[call("checked_index", ids[m], dim_value(K)), n],
    )


def concatenation() -> Kernel:
    x, y = buffer("x", M, N), buffer("y", M, K)

    def body(m: Expr, n: Expr) -> Expr:
        return select(n.lt(dim_value(N)), x[m, n], y[m, n - dim_value(N)])

    return pure(buffer("out", M, N + K), (x, y), body)


def reverse_stride_two() -> Kernel:
    x = buffer("x", 2 * N + 1)
    return pure(buffer("out", N), (x,), lambda n: x[dim_value(2 * N) - n * 2])


def running_sum() -> Kernel:
    x, out = buffer("x", M, N), buffer("out", M, N)
    m, n = Axis("i0", M), Axis("i1", N, ordered=True)
    before = select(n.var.eq(0), 0.0, out[m.var, n.var - 1])
    stage = Stage((m, n), (Store("out", (m.var, n.var), before + x[m.var, n.var]),))
    return Kernel(name="test", inputs=(x,), outputs=(out,), stages=(stage,))


def recurrence() -> Kernel:
    """``h = tanh(W h + x[t])`` in steps, with a private product."""
    x, w, h, z = buffer("x", K, M), buffer("w", M, M), buffer("out", M), buffer("z", M)
    t, i, j = Axis("t", K, ordered=True), Axis("i0", M), Axis("j", M)
    product = reduce_axes("sum", (j,), w[i.var, j.var] * h[j.var])
    known = select(t.var.eq(0), 0.0, product)
    stages = (
        Stage((i,), (Store("z", (i.var,), known + x[t.var, i.var]),)),
        Stage((i,), (Store("out", (i.var,), call("tanh", z[i.var])),)),
    )
    return Kernel(
        name="test", inputs=(x, w), outputs=(h,), temporaries=(z,), stages=stages, steps=t
    )


def guarded_scatter() -> Kernel:
    """Rows go where ``ids`` says, if it says anything; loads under the guard may be outside."""
    x, ids, out = buffer("x", M, N), buffer("ids", K, dtype=INT64), buffer("out", K, N)
    r, n = Axis("i0", K), Axis("i1", N)
    clear = Stage((r, n), (Store("out", (r.var, n.var), constant(-1.0, FLOAT32)),))
    inside = ids[r.var].ge(0) & ids[r.var].lt(dim_value(M))
    write = Stage((r, n), (Store("out", (r.var, n.var), x[ids[r.var], n.var], inside),))
    return Kernel(name="test", inputs=(x, ids), outputs=(out,), stages=(clear, write))


def two_outputs() -> Kernel:
    x = buffer("x", M, N)
    small, flags = buffer("small", M, N, dtype=INT8), buffer("flags", M, N, dtype=BOOL)
    m, n = Axis("i0", M), Axis("i1", N)
    value = x[m.var, n.var] * 40.0
    stores = (
        Store("small", (m.var, n.var), call("round", value).max(-128.0).min(127.0).cast(INT8)),
        Store("flags", (m.var, n.var), value.gt(0.0)),
    )
    return Kernel(name="test", inputs=(x,), outputs=(small, flags), stages=(Stage((m, n), stores),))


def positions() -> Kernel:
    """Index arithmetic as values."""
    return pure(
        buffer("out", M, N, dtype=INT64),
        (),
        lambda m, n: m * dim_value(N) + call("mod", n, constant(3, INT64)),
    )


def all_and_any() -> Kernel:
    x, out = buffer("x", M, K, dtype=BOOL), buffer("out", M, 2, dtype=BOOL)
    m = Axis("i0", M)
    stores = tuple(
        Store("out", (m.var, constant(k, INT64)), reduce_axes(name, (R,), x[m.var, R.var]))
        for k, name in enumerate(("and", "or"))
    )
    return Kernel(name="test", inputs=(x,), outputs=(out,), stages=(Stage((m,), stores),))


def doubles() -> Kernel:
    x = buffer("x", M, N, dtype=FLOAT64)
    return pure(buffer("out", M, N), (x,), lambda *i: cast(call("sqrt", x[i] * x[i]), FLOAT32))


def one_number() -> Kernel:
    x, y = buffer("x"), buffer("y")
    return pure(buffer("out"), (x, y), lambda: x[()] + y[()])


def deep_sum() -> Kernel:
    """An expression far deeper than Python's stack."""
    parts = tuple(buffer(f"x{k}", M) for k in range(700))

    def body(m: Expr) -> Expr:
        value = parts[0][m]
        for part in parts[1:]:
            value = value + part[m]
        return value

    return pure(buffer("out", M), parts, body)


KERNELS: dict[str, Callable[[], Kernel]] = {
    function.__name__: function
    for function in (
        add_relu,
        add_bias,
        transpose,
        softmax,
        row_sum,
        column_max,
        total,
        matmul,
        matmul_transposed,
        matmul_int8,
        dot_bytes,
        matmul_half,
        convolution,
        gather,
        concatenation,
        reverse_stride_two,
        running_sum,
        recurrence,
        guarded_scatter,
        two_outputs,
        positions,
        all_and_any,
        doubles,
        one_number,
        deep_sum,
    )
}


def feeds_for(kernel: Kernel, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
    """Random inputs; integers of ``ids`` point into the first input, some from behind."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for own in kernel.inputs:
        shape = [dim.evaluate(sizes) for dim in own.shape]
        if own.dtype.is_float:
            feeds[own.name] = rng.standard_normal(shape).astype(own.dtype.numpy)
        elif own.name == "ids":
            rows = kernel.inputs[0].shape[0].evaluate(sizes)
            feeds[own.name] = rng.integers(-rows, max(rows, 1), shape)
        elif own.dtype is BOOL:
            feeds[own.name] = rng.random(shape) < 0.8
        else:
            feeds[own.name] = rng.integers(-100, 100, shape).astype(own.dtype.numpy)
    return feeds
