"""Vertical fusion: what is absorbed, every reason against it, and that values stay the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.dtypes import BFLOAT16, FLOAT32, INT64, DType
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Expr,
    Kernel,
    Stage,
    Store,
    call,
    constant,
    dim_value,
    reduce_over,
    select,
    walk,
)
from tilewright.kernel.verify import verify
from tilewright.lower.context import Item, View
from tilewright.lower.fuse import fuse

Array = npt.NDArray[Any]
M, N, K = map(Dim.symbol, "mnk")
SIZES = {"m": 3, "n": 5, "k": 4}


def buffer(name: str, *shape: Dim | int, dtype: DType = FLOAT32) -> Buffer:
    return Buffer(name, dtype, tuple(map(Dim.of, shape)))


X, Y, W = buffer("x", M, N), buffer("y", M, N), buffer("w", N, K)
VECTOR = buffer("v", N)


def pure(out: Buffer, inputs: Sequence[Buffer], body: Callable[..., Expr]) -> Kernel:
    axes = tuple(Axis(f"i{k}", dim) for k, dim in enumerate(out.shape))
    index = tuple(axis.var for axis in axes)
    stage = Stage(axes, (Store(out.name, index, body(*index)),))
    return Kernel(
        name=out.name,
        inputs=tuple(inputs),
        outputs=(out,),
        stages=(stage,),
        sources=(f"make {out.name}",),
    )


def elementwise(out: Buffer, source: Buffer, op: str = "exp") -> Kernel:
    return pure(out, (source,), lambda *i: call(op, source[i]))


def product(out: Buffer, left: Buffer = X, right: Buffer = W) -> Kernel:
    return pure(
        out,
        (left, right),
        lambda m, k: reduce_over("sum", [N], lambda n: left[m, n] * right[n, k]),
    )


def run(items: Sequence[Item], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Interprets items in order."""
    values = dict(feeds)
    for item in items:
        if isinstance(item, View):
            shape = tuple(dim.evaluate(SIZES) for dim in item.target.shape)
            values[item.target.name] = values[item.source.name].reshape(shape)
            continue
        verify(item)
        given = {own.name: values[own.name] for own in item.inputs}
        values.update(interpret(item, given, SIZES))
    return values


def fused(items: Sequence[Item], keep: Sequence[str]) -> tuple[list[Item], list[str]]:
    """The fused items and all reasons; the values of ``keep`` are those of the items unfused."""
    log = DecisionLog()
    result = fuse(items, keep, log)
    rng = np.random.default_rng(0)
    made = {b.name for item in items if isinstance(item, Kernel) for b in item.outputs}
    made |= {item.target.name for item in items if isinstance(item, View)}
    feeds = {
        own.name: rng.integers(0, 3, [d.evaluate(SIZES) for d in own.shape]).astype(own.dtype.numpy)
        for item in items
        for own in (item.inputs if isinstance(item, Kernel) else (item.source,))
        if own.name not in made
    }
    before, after = run(items, feeds), run(result, feeds)
    for name in keep:
        np.testing.assert_allclose(after[name], before[name], rtol=1e-6)
    return result, [reason for entry in log.entries for _, reason in entry.rejected]


def names(items: Sequence[Item]) -> list[str]:
    """What is written, in order."""
    return [
        item.target.name if isinstance(item, View) else "+".join(b.name for b in item.outputs)
        for item in items
    ]


# --- firing ---------------------------------------------------------------------------------------


def test_a_chain_becomes_one_kernel() -> None:
    a, b, c = (buffer(name, M, N) for name in "abc")
    items = [elementwise(a, X), elementwise(b, a, "neg"), elementwise(c, b, "sqrt")]
    result, reasons = fused(items, ["c"])
    (kernel,) = result
    assert isinstance(kernel, Kernel)
    assert kernel.inputs == (X,)
    assert kernel.sources == ("make a", "make b", "make c")
    assert not reasons


def test_an_epilogue_joins_a_reduction() -> None:
    c, d = buffer("c", M, K), buffer("d", M, K)
    relu = pure(d, (c,), lambda *i: c[i].max(0.0))
    result, reasons = fused([product(c), relu], ["d"])
    assert names(result) == ["d"]
    assert not reasons


def test_the_only_loads_of_a_reduction_absorb_what_they_load() -> None:
    a, s = buffer("a", M, N), buffer("s", M)
    row = pure(s, (a,), lambda m: reduce_over("sum", [N], lambda n: a[m, n]))
    result, _ = fused([elementwise(a, X), row], ["s"])
    assert names(result) == ["s"]


def test_moves_are_absorbed_even_into_contractions() -> None:
    """A transposed operand is read where it lies."""
    t, c = buffer("t", N, K), buffer("c", M, K)
    source = buffer("source", K, N)
    turned = pure(t, (source,), lambda n, k: source[k, n])
    result, _ = fused([turned, product(c, right=t)], ["c"])
    assert names(result) == ["c"]


def test_cheap_values_are_computed_again_by_each_user() -> None:
    a, b, c = (buffer(name, M, N) for name in "abc")
    items = [elementwise(a, X, "neg"), elementwise(b, a), elementwise(c, a, "sqrt")]
    result, _ = fused(items, ["b", "c"])
    assert names(result) == ["b", "c"]


def test_a_value_that_is_kept_stays_and_is_absorbed_too() -> None:
    a, b = buffer("a", M, N), buffer("b", M, N)
    result, _ = fused([elementwise(a, X, "neg"), elementwise(b, a)], ["a", "b"])
    assert names(result) == ["a", "b"]
    assert all(isinstance(item, Kernel) and item.inputs == (X,) for item in result)


def test_views_are_looked_through() -> None:
    a, flat, b = buffer("a", M, N), buffer("flat", M * N), buffer("b", M * N)
    joined, out = buffer("joined", M * N), buffer("out", M, N, 1)
    up = View(buffer("up", M, N, 1), a)
    items: list[Item] = [
        elementwise(a, X),
        up,
        pure(out, (up.target,), lambda *i: up.target[i] + 1.0),
    ]
    result, _ = fused(items, ["out"])
    assert names(result) == ["out"]
    items = [elementwise(flat, buffer("z", M * N)), View(joined, flat), elementwise(b, joined)]
    assert names(fused(items, ["b"])[0]) == ["b"]


def test_casts_in_between_stay() -> None:
    a, b = buffer("a", M, N, dtype=BFLOAT16), buffer("b", M, N)
    half = pure(a, (X,), lambda *i: (X[i] / 3.0).cast(BFLOAT16))
    back = pure(b, (a,), lambda *i: a[i].cast(FLOAT32))
    (kernel,) = fused([half, back], ["b"])[0]
    assert isinstance(kernel, Kernel)
    assert any(node.dtype is BFLOAT16 for node in walk(*kernel.roots))


def test_what_nobody_reads_is_dropped() -> None:
    a, b = buffer("a", M, N), buffer("b", M, N)
    assert names(fused([elementwise(a, X), elementwise(b, X)], ["b"])[0]) == ["b"]


def test_each_stage_of_a_kernel_absorbs_for_itself() -> None:
    """Copies of many parts into one buffer: the limits hold for each loop nest."""
    out, parts = buffer("out", M, 20 * N), [buffer(f"p{k}", M, N) for k in range(20)]
    m, n = Axis("i0", M), Axis("i1", N)
    stages = tuple(
        Stage((m, n), (Store("out", (m.var, n.var + dim_value(N) * k), part[m.var, n.var]),))
        for k, part in enumerate(parts)
    )
    copies = Kernel(name="out", inputs=tuple(parts), outputs=(out,), stages=stages)
    result, reasons = fused([*(elementwise(part, X) for part in parts), copies], ["out"])
    assert names(result) == ["out"]
    assert not reasons


def test_decisions_name_what_was_fused() -> None:
    a, b = buffer("a", M, N), buffer("b", M, N)
    log = DecisionLog()
    fuse([elementwise(a, X), elementwise(b, a)], ["b"], log)
    (entry,) = log.entries
    assert entry.subject == "make a+make b"
    assert "1 values stay in registers" in entry.chosen


# --- refusing -------------------------------------------------------------------------------------


def test_refused_too_many_nodes() -> None:
    a, b = buffer("a", M, N), buffer("b", M, N)

    def long(source: Buffer) -> Callable[..., Expr]:
        def body(*index: Expr) -> Expr:
            value = source[index]
            for _ in range(50):
                value = call("sqrt", value + 1.0)
            return value

        return body

    result, reasons = fused([pure(a, (X,), long(X)), pure(b, (a,), long(a))], ["b"])
    assert names(result) == ["a", "b"]
    (reason,) = reasons
    assert re.fullmatch(r"the loop nest would have 20\d nodes \(limit 160\)", reason)


def test_refused_too_many_buffers() -> None:
    parts = [buffer(f"p{k}", M, N) for k in range(9)]
    others = [buffer(f"q{k}", M, N) for k in range(6)]
    a, b = buffer("a", M, N), buffer("b", M, N)

    def total(values: list[Expr]) -> Expr:
        value = values[0]
        for other in values[1:]:
            value = value + other
        return value

    first = pure(a, parts, lambda *i: total([part[i] for part in parts]))
    second = pure(b, (a, *others), lambda *i: total([a[i], *(part[i] for part in others)]))
    result, reasons = fused([first, second], ["b"])
    assert names(result) == ["a", "b"]
    assert reasons == ["the loop nest would read 15 buffers (limit 12)"]


def test_refused_several_users() -> None:
    a, b, c = (buffer(name, M, N) for name in "abc")
    items = [elementwise(a, X), elementwise(b, a), elementwise(c, a)]
    result, reasons = fused(items, ["b", "c"])
    assert names(result) == ["a", "b", "c"]
    assert set(reasons) == {
        "the value has several users and costs 10 operations (limit 6) to compute again"
    }


def test_refused_kept_and_expensive() -> None:
    a, b = buffer("a", M, N), buffer("b", M, N)
    result, reasons = fused([elementwise(a, X), elementwise(b, a)], ["a", "b"])
    assert names(result) == ["a", "b"]
    assert "several users" in reasons[0]


def test_refused_several_indices() -> None:
    a, b = buffer("a", M, N), buffer("b", M, N)

    def difference(m: Expr, n: Expr) -> Expr:
        return a[m, n] - a[m, select(n.eq(0), n, n - 1)]

    result, reasons = fused([elementwise(a, X), pure(b, (a,), difference)], ["b"])
    assert names(result) == ["a", "b"]
    assert "loaded at several places and costs 10 operations" in reasons[0]


def test_refused_several_stages() -> None:
    """The same element in two loop nests would be computed in both."""
    a, s, out = buffer("a", M, N), buffer("s", M, N), buffer("out", M, N)
    m, n = Axis("i0", M), Axis("i1", N)
    stages = tuple(
        Stage((m, n), (Store(name, (m.var, n.var), a[m.var, n.var]),)) for name in ("s", "out")
    )
    both = Kernel(name="both", inputs=(a,), outputs=(s, out), stages=stages)
    result, reasons = fused([elementwise(a, X), both], ["s", "out"])
    assert names(result) == ["a", "s+out"]
    assert "loaded at several places" in reasons[0]


def test_refused_broadcast_along_outer_axes() -> None:
    """exp(v[n]) for each row of x; along inner axes it would be computed before the loop."""
    a, b, c = buffer("a", N), buffer("b", M, N), buffer("c", N, M)
    outer = pure(b, (a, X), lambda m, n: a[n] + X[m, n])
    result, reasons = fused([elementwise(a, VECTOR), outer], ["b"])
    assert names(result) == ["a", "b"]
    assert reasons == [
        "the value costs 10 operations (limit 6) and would be computed again for each m"
    ]
    turned = buffer("turned", N, M)
    inner = pure(c, (a, turned), lambda n, m: a[n] + turned[n, m])
    assert names(fused([elementwise(a, VECTOR), inner], ["c"])[0]) == ["c"]


def test_refused_in_every_step() -> None:
    a, h = buffer("a", K, N), buffer("h", N)
    source = buffer("source", K, N)
    t, n = Axis("t", K, ordered=True), Axis("i0", N)
    before = select(t.var.eq(0), 0.0, h[n.var])
    stage = Stage((n,), (Store("h", (n.var,), before + a[t.var, n.var]),))
    steps = Kernel(name="h", inputs=(a,), outputs=(h,), stages=(stage,), steps=t)
    result, reasons = fused([elementwise(a, source, "neg"), steps], ["h"])
    assert names(result) == ["a", "h"]
    assert reasons == ["the value would be computed again in every step"]


def test_refused_where_a_reduction_reuses_its_operand() -> None:
    a, c = buffer("a", M, N), buffer("c", M, K)
    result, reasons = fused([elementwise(a, X, "neg"), product(c, left=a)], ["c"])
    assert names(result) == ["a", "c"]
    assert reasons == ["the reduction loads each element more than once"]


def test_refused_reduction_with_several_users() -> None:
    c, d, e = (buffer(name, M, K) for name in "cde")
    items = [product(c), elementwise(d, c, "neg"), elementwise(e, c, "neg")]
    result, reasons = fused(items, ["d", "e"])
    assert names(result) == ["c", "d", "e"]
    assert reasons == ["the reduction has several users"] * 2


def test_refused_reduction_into_an_impure_kernel() -> None:
    c, out = buffer("c", M, K), buffer("out", M, 2 * K)
    m, k = Axis("i0", M), Axis("i1", K)
    stage = Stage((m, k), (Store("out", (m.var, k.var * 2), c[m.var, k.var]),))
    fill = Axis("j", 2 * K)
    zero = Stage((m, fill), (Store("out", (m.var, fill.var), constant(0.0, FLOAT32)),))
    spread = Kernel(name="out", inputs=(c,), outputs=(out,), stages=(zero, stage))
    result, reasons = fused([product(c), spread], ["out"])
    assert names(result) == ["c", "out"]
    assert reasons == ["the consumer is not a pure kernel"]


def test_refused_two_anchors() -> None:
    c, s = buffer("c", M, K), buffer("s", M, K)

    def body(m: Expr, k: Expr) -> Expr:
        return c[m, k] / reduce_over("sum", [K], lambda r: W[r * 0, r])

    result, reasons = fused([product(c), pure(s, (c, W), body)], ["s"])
    assert names(result) == ["c", "s"]
    assert "the kernel would have two anchors" in reasons


def test_refused_reduction_under_another_shape() -> None:
    c, flat, out = buffer("c", M, K), buffer("flat", M * K), buffer("out", M * K)
    result, reasons = fused([product(c), View(flat, c), elementwise(out, flat)], ["out"])
    assert names(result) == ["c", "flat", "out"]
    assert reasons == ["the reduction is read under another shape"]


def test_refused_reduction_at_several_indices() -> None:
    c, out = buffer("c", M, K), buffer("out", M, K)
    twice = pure(out, (c,), lambda m, k: c[m, k] + c[m, dim_value(K) - 1 - k])
    result, reasons = fused([product(c), twice], ["out"])
    assert names(result) == ["c", "out"]
    assert reasons == ["the reduction would be computed at several indices"]


def test_refused_reduction_at_another_index() -> None:
    c, out = buffer("c", M, K), buffer("out", K, M)
    turned = pure(out, (c,), lambda k, m: c[m, k])
    result, reasons = fused([product(c), turned], ["out"])
    assert names(result) == ["c", "out"]
    assert reasons == ["the consumer does not read the reduction at its own index"]


def test_refused_reduction_under_a_condition() -> None:
    """Unless the condition itself looks at it (LeakyRelu)."""
    c, out = buffer("c", M, K), buffer("out", M, K)
    masked = pure(out, (c,), lambda m, k: select(k.lt(2), c[m, k], 0.0))
    result, reasons = fused([product(c), masked], ["out"])
    assert names(result) == ["c", "out"]
    assert reasons == ["the consumer reads the reduction only under a condition"]
    leaky = pure(out, (c,), lambda *i: select(c[i].lt(0.0), c[i] * 0.1, c[i]))
    assert names(fused([product(c), leaky], ["out"])[0]) == ["out"]


def test_refused_views_that_split_a_dim() -> None:
    a, flat, out = buffer("a", 3, 5), buffer("flat", 15), buffer("out", 15)
    source = buffer("source", 3, 5)
    items: list[Item] = [elementwise(a, source), View(flat, a), elementwise(out, flat)]
    result, reasons = fused(items, ["out"])
    assert names(result) == ["a", "flat", "out"]
    assert reasons == ["the view splits a dim, which needs a division"]


def test_impure_kernels_are_not_absorbed() -> None:
    """Two stores, a guard or an order: not a function of one index."""
    a, b, ids = buffer("a", M, N), buffer("b", M, N), buffer("ids", M, dtype=INT64)
    m, n = Axis("i0", M), Axis("i1", N, ordered=True)
    stage = Stage((m, n), (Store("a", (m.var, n.var), X[m.var, n.var]),))
    ordered = Kernel(name="a", inputs=(X,), outputs=(a,), stages=(stage,))
    result, reasons = fused([ordered, elementwise(b, a)], ["b"])
    assert names(result) == ["a", "b"]
    assert not reasons
    assert not ordered.is_pure
    guarded = Stage((m,), (Store("ids", (m.var,), m.var, m.var.gt(0)),))
    assert not Kernel(name="g", inputs=(), outputs=(ids,), stages=(guarded,)).is_pure


def test_a_refusal_is_said_once_along_a_chain() -> None:
    """The kernel that absorbed a consumer has the same loads, and gets the same answer."""
    a, c, d, e = buffer("a", M, N), buffer("c", M, K), buffer("d", M, K), buffer("e", M, K)
    items = [
        elementwise(a, X, "neg"),
        product(c, left=a),
        elementwise(d, c, "neg"),
        elementwise(e, d, "sqrt"),
    ]
    result, reasons = fused(items, ["e"])
    assert names(result) == ["a", "e"]
    assert reasons == ["the reduction loads each element more than once"]


# --- size -----------------------------------------------------------------------------------------


def test_long_chains_are_cut_into_kernels_of_bounded_size() -> None:
    buffers = [X, *(buffer(f"b{k}", M, N) for k in range(300))]
    items = [elementwise(out, source) for source, out in pairwise(buffers)]
    log = DecisionLog()
    result = fuse(items, ["b299"], log)
    assert 2 <= len(result) <= 4
    assert all(isinstance(item, Kernel) and len(walk(*item.roots)) <= 160 for item in result)
