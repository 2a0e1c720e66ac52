"""Printed kernels."""

from tilewright.core.dtypes import FLOAT32, FLOAT64, INT32, INT64
from tilewright.core.shape import Dim
from tilewright.kernel.ir import (
    Axis,
    Buffer,
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
from tilewright.kernel.text import print_expr, print_kernel

N, K = Dim.symbol("n"), Dim.symbol("k")


def test_matrix_product() -> None:
    a, b, out = (
        Buffer(name, FLOAT32, shape)
        for name, shape in (("a", (N, K)), ("b", (K, N)), ("out", (N, N)))
    )
    i0, i1, r0 = Axis("i0", N), Axis("i1", N), Axis("r0", K)
    value = reduce_axes("sum", (r0,), a[i0.var, r0.var] * b[r0.var, i1.var])
    stage = Stage((i0, i1), (Store("out", (i0.var, i1.var), value),))
    kernel = Kernel(name="MatMul", inputs=(a, b), outputs=(out,), stages=(stage,))
    assert print_kernel(kernel) == (
        "kernel MatMul\n"
        "  input a: float32[n, k]\n"
        "  input b: float32[k, n]\n"
        "  output out: float32[n, n]\n"
        "  for i0 < n, i1 < n:\n"
        "    out[i0, i1] = sum(r0 < k: a[i0, r0] * b[r0, i1])\n"
    )


def test_steps_temporaries_guards_and_order() -> None:
    state, out = Buffer("s", INT64, ()), Buffer("out", INT64, (N,))
    step, i = Axis("t", Dim.of(3), ordered=True), Axis("i", N, ordered=True)
    kernel = Kernel(
        name="loop",
        inputs=(),
        outputs=(out,),
        temporaries=(state,),
        steps=step,
        stages=(
            Stage((), (Store("s", (), step.var * 2),)),
            Stage((i,), (Store("out", (i.var,), state[()], i.var.lt(dim_value(N - 1))),)),
        ),
    )
    assert print_kernel(kernel) == (
        "kernel loop\n"
        "  output out: int64[n]\n"
        "  temporary s: int64[]\n"
        "  for t < 3 in order in steps:\n"
        "    s[] = t * 2\n"
        "    for i < n in order:\n"
        "      out[i] = s[] if (i < {n-1})\n"
    )


def test_types_of_constants_and_casts_are_shown() -> None:
    x = Buffer("x", FLOAT64, ())[()]
    assert print_expr(cast(x, INT32) + 1) == "int32(x[]) + int32(1)"
    assert print_expr(x * 0.5) == "x[] * float64(0.5)"
    assert print_expr(cast(x, INT64, bits=True)) == "int64(bits x[])"
    assert print_expr(constant(-0.0, FLOAT32)) == "-0.0"
    assert print_expr(select(x.gt(0), x, -x)) == "select(x[] > float64(0.0), x[], neg(x[]))"


def test_shared_parts_are_named_once() -> None:
    x = Buffer("x", FLOAT32, ())[()]
    shared = call("exp", x * x)
    for _ in range(40):
        shared = shared * shared
    text = print_expr(shared)
    assert len(text) < 2000
    assert "%38 * %38" in text


def test_shared_parts_of_a_reduction_are_named_within() -> None:
    x, r = Buffer("x", FLOAT32, (N,)), Axis("r", N)
    shared = call("exp", x[r.var] * 2)
    text = print_expr(reduce_axes("sum", (r,), shared * (shared + 1)))
    assert text == "sum(r < n: %0 = exp(x[r] * 2.0); %0 * (%0 + 1.0))"


def test_parentheses_that_do_not_match_stay() -> None:
    x = Buffer("x", FLOAT32, ())[()]
    assert print_expr((x + 1) * (x - 1)) == "(x[] + 1.0) * (x[] - 1.0)"
