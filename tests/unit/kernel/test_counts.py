"""Bytes and operations of kernels."""

from tilewright.core.dtypes import FLOAT16, FLOAT32
from tilewright.core.shape import Dim
from tilewright.kernel.counts import count
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Kernel,
    Stage,
    Store,
    call,
    dim_value,
    reduce_axes,
)

N, K = Dim.symbol("n"), Dim.symbol("k")
I, J, R = Axis("i", N), Axis("j", N), Axis("r", K)


def test_counts_of_a_matrix_product() -> None:
    a, b, c = (
        Buffer("a", FLOAT32, (N, K)),
        Buffer("b", FLOAT32, (K, N)),
        Buffer("c", FLOAT16, (N, N)),
    )
    value = reduce_axes("sum", (R,), a[I.var, R.var] * b[R.var, J.var]).cast(FLOAT16)
    stage = Stage((I, J), (Store("c", (I.var, J.var), value),))
    counts = count(Kernel(name="mm", inputs=(a, b), outputs=(c,), stages=(stage,)))
    assert counts.bytes_read == N * K * 8
    assert counts.bytes_written == N * N * 2
    assert counts.flops == N * N * K * 2


def test_shared_and_index_work_is_not_counted_again() -> None:
    x, y = Buffer("x", FLOAT32, (N, N)), Buffer("y", FLOAT32, (N, N))
    row = reduce_axes("sum", (J,), call("exp", x[I.var, J.var]))
    i, c = Axis("i", N), Axis("c", N)
    value = x[i.var, dim_value(N) - 1 - c.var] / row
    stage = Stage((i, c), (Store("y", (i.var, c.var), value),))
    counts = count(Kernel(name="rows", inputs=(x,), outputs=(y,), stages=(stage,)))
    assert counts.flops == N * N * 3  # exp and sum over (i, j), division over (i, c)


def test_steps_repeat_the_work_but_not_the_traffic() -> None:
    step = Axis("t", K, ordered=True)
    y = Buffer("y", FLOAT32, (N,))
    t = Buffer("t0", FLOAT32, (N,))
    stage = Stage((I,), (Store("y", (I.var,), t[I.var] + 1),))
    first = Stage((I,), (Store("t0", (I.var,), t[I.var] * 2),))
    kernel = Kernel(
        name="loop", inputs=(), outputs=(y,), temporaries=(t,), stages=(first, stage), steps=step
    )
    assert count(kernel).flops == N * K * 2
    assert count(kernel).bytes_read == Dim.of(0)


def test_many_loads_of_one_buffer_have_a_short_formula() -> None:
    half, tiles = N // 2, Axis("t", (N + 3) // 4)
    x, y = Buffer("x", FLOAT32, (half, K, K)), Buffer("y", FLOAT32, (tiles.extent,))
    loads = [x[tiles.var, dim_value(k % 6), dim_value(k // 6)] for k in range(36)]
    value = loads[0]
    for part in loads[1:]:
        value = value + part
    stage = Stage((tiles,), (Store("y", (tiles.var,), value),))
    counts = count(Kernel(name="tiles", inputs=(x,), outputs=(y,), stages=(stage,)))
    assert len(str(counts.bytes_read)) < 200
    assert counts.bytes_read.evaluate({"n": 64, "k": 6}) == 4 * 16 * 36
    assert counts.bytes_read.evaluate({"n": 64, "k": 2}) == 4 * 32 * 2 * 2  # not more than all
