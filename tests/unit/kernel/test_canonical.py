"""Canonical names and fingerprints."""

from collections.abc import Callable

import numpy as np

from tilewright.core.dtypes import FLOAT32
from tilewright.core.shape import Dim
from tilewright.kernel.canonical import canonicalize, fingerprint
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Expr,
    Kernel,
    Reduce,
    Stage,
    Store,
    call,
    reduce_axes,
    walk,
)
from tilewright.kernel.text import print_kernel
from tilewright.kernel.verify import verify

Names = Callable[[str], str]


def softmax(rename: Names, reverse_inputs: bool = False) -> Kernel:
    """softmax(x * w) over rows, with names of choice; every reduction has its own axis."""
    n, m = Dim.symbol(rename("n")), Dim.symbol(rename("m"))
    x, w = Buffer(rename("x"), FLOAT32, (n, m)), Buffer(rename("w"), FLOAT32, (m,))
    out = Buffer(rename("out"), FLOAT32, (n, m))
    i, j = Axis(rename("i"), n), Axis(rename("j"), m)

    def scaled(place: Expr) -> Expr:
        return x[i.var, place] * w[place]

    def largest(name: str) -> Expr:
        r = Axis(rename(name), m)
        return reduce_axes("max", (r,), scaled(r.var))

    s = Axis(rename("s"), m)
    total = reduce_axes("sum", (s,), call("exp", scaled(s.var) - largest("r")))
    value = call("exp", scaled(j.var) - largest("q")) / total
    stage = Stage((i, j), (Store(out.name, (i.var, j.var), value),))
    inputs = (w, x) if reverse_inputs else (x, w)
    return Kernel(name=rename("kernel"), inputs=inputs, outputs=(out,), stages=(stage,))


def test_names_do_not_matter() -> None:
    plain = softmax(lambda name: name)
    other = softmax(lambda name: f"z{name[::-1]}7", reverse_inputs=True)
    assert print_kernel(plain) != print_kernel(other)
    assert fingerprint(plain) == fingerprint(other)
    assert print_kernel(canonicalize(plain).kernel) == (
        "kernel kernel\n"
        "  input in0: float32[s0, s1]\n"
        "  input in1: float32[s1]\n"
        "  output out0: float32[s0, s1]\n"
        "  for i0 < s0, i1 < s1:\n"
        "    let %0 = max(r0 < s1: in0[i0, r0] * in1[r0])\n"
        "    out0[i0, i1] = exp((in0[i0, i1] * in1[i1]) - %0) / "
        "sum(r1 < s1: exp((in0[i0, r1] * in1[r1]) - %0))\n"
    )


def test_equal_reductions_become_one() -> None:
    kernel = softmax(lambda name: name)
    value = canonicalize(kernel).kernel.stages[0].stores[0].value
    before = [node for node in walk(kernel.stages[0].stores[0].value) if isinstance(node, Reduce)]
    after = [node for node in walk(value) if isinstance(node, Reduce)]
    assert (len(before), len(after)) == (3, 2)


def test_names_are_mapped() -> None:
    found = canonicalize(softmax(lambda name: name.upper()))
    assert found.buffers == {"OUT": "out0", "X": "in0", "W": "in1"}
    assert found.symbols == {"N": "s0", "M": "s1"}


def test_the_result_is_stable_and_legal() -> None:
    first = canonicalize(softmax(lambda name: name)).kernel
    verify(first)
    assert print_kernel(canonicalize(first).kernel) == print_kernel(first)


def test_different_computations_differ() -> None:
    n = Dim.symbol("n")
    x, out, i = Buffer("x", FLOAT32, (n,)), Buffer("out", FLOAT32, (n,)), Axis("i", n)

    def kernel(value: Expr) -> Kernel:
        stage = Stage((i,), (Store("out", (i.var,), value),))
        return Kernel(name="k", inputs=(x,), outputs=(out,), stages=(stage,))

    values = [x[i.var] + 1, x[i.var] + 2, x[i.var] - 1, x[i.var * 1 + 0] * 1, x[dim_last(n)]]
    assert len({fingerprint(kernel(value)) for value in values}) == len(values)


def dim_last(n: Dim) -> Expr:
    return Axis("i", n).var * 0 + 1


def test_nested_reductions_keep_their_meaning() -> None:
    n = Dim.symbol("n")
    x, out, i = Buffer("x", FLOAT32, (n, n)), Buffer("out", FLOAT32, (n,)), Axis("i", n)
    r, s = Axis("r", n), Axis("s", n)
    inner = reduce_axes("max", (s,), x[r.var, s.var] * x[i.var, r.var])
    value = reduce_axes("sum", (r,), inner) + reduce_axes("sum", (s,), x[i.var, s.var])
    stage = Stage((i,), (Store("out", (i.var,), value),))
    kernel = Kernel(name="k", inputs=(x,), outputs=(out,), stages=(stage,))
    found = canonicalize(kernel).kernel
    verify(found)
    data = np.random.default_rng(0).standard_normal((5, 5)).astype(np.float32)
    np.testing.assert_array_equal(
        interpret(kernel, {"x": data}, {"n": 5})["out"],
        interpret(found, {"in0": data}, {"s0": 5})["out0"],
    )
