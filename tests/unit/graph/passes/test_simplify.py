"""Reshapes without detours, lookups before conversions, branches of known conditions."""

import numpy as np
import pytest

from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.graph.passes.hoist_gathers import hoist_gathers
from tilewright.graph.passes.inline_branches import inline_branches
from tilewright.graph.passes.simplify_reshapes import simplify_reshapes
from unit.graph.passes.harness import (
    apply,
    assert_fires,
    assert_refuses,
    f32,
    i64,
    make,
    noise,
    ops,
)

# --- reshapes -------------------------------------------------------------------------------------

HEADS = "s = Shape<start = 0, end = 2>(x) t = Concat<axis = 0>(s, rest) y = Reshape(x, t)"


def test_shape_chain_becomes_a_constant() -> None:
    model = make("float[N,S,12] x => float[N,S,3,4] y", HEADS, rest=i64(3, 4))
    assert_fires(model, simplify_reshapes, ["Reshape"])


def test_empty_batches_still_reshape() -> None:
    model = make("float[N,S,12] x => float[N,S,3,4] y", HEADS, rest=i64(3, 4))
    assert_fires(
        model, simplify_reshapes, ["Reshape"], feeds={"x": np.ones((0, 2, 12), np.float32)}
    )


def test_joined_dims_keep_their_chain() -> None:
    body = "s = Shape<start = 1, end = 2>(x) t = Concat<axis = 0>(rest, s) y = Reshape(x, t)"
    model = make("float[N,S,4] x => float[A,S] y", body, rest=i64(-1))
    assert_refuses(model, simplify_reshapes, "neither static nor copied")


def test_target_that_may_not_fit_keeps_its_chain() -> None:
    body = "s = Shape(z) t = Cast<to = 7>(s) y = Reshape(x, t)"
    model = make("float[N,4] x, float[M,4] z => float[M,4] y", body)
    feeds = {"x": noise(3, 4), "z": noise(3, 4)}
    apply(model, simplify_reshapes, feeds=feeds)
    assert "Shape" in ops(model)


@pytest.mark.parametrize("first", ["Reshape(x, s)", "Flatten<axis = 1>(x)"])
def test_two_reshapes(first: str) -> None:
    model = make(
        "float[N,3,4] x => float[M,2] y",
        f"a = {first} y = Reshape(a, t)",
        s=i64(-1, 12),
        t=i64(-1, 2),
    )
    assert_fires(model, simplify_reshapes, ["Reshape"])


def test_second_reshape_that_copies_stays() -> None:
    model = make(
        "float[N,3,4] x => float[N,2,6] y",
        "a = Reshape(x, s) y = Reshape(a, t)",
        s=i64(-1, 12),
        t=i64(0, 2, 6),
    )
    assert_refuses(model, simplify_reshapes, "copies dims")


def test_batched_transposition() -> None:
    body = (
        "b = Shape<start = 0, end = 2>(x) n = Shape<start = 2, end = 3>(x)"
        " s = Concat<axis = 0>(m, n, four) a = Reshape(x, s) p = Transpose<perm = [0, 2, 1]>(a)"
        " t = Concat<axis = 0>(b, four, n) y = Reshape(p, t)"
    )
    model = make("float[B,3,S,4] x => float[B,3,4,S] y", body, m=i64(-1), four=i64(4))
    assert_fires(model, simplify_reshapes, ["Transpose"])


def test_other_transpositions_between_reshapes_stay() -> None:
    body = "a = Reshape(x, s) p = Transpose<perm = [0, 2, 1]>(a) y = Reshape(p, t)"
    model = make("float[2,3,5,4] x => float[3,2,4,5] y", body, s=i64(6, 5, 4), t=i64(3, 2, 4, 5))
    assert_refuses(model, simplify_reshapes, "do more than join")


# --- lookups --------------------------------------------------------------------------------------

TABLE = np.random.default_rng(0).integers(-128, 128, (50, 4)).astype(np.int8)
LOOKUP = "int64[N,S] i => float[N,S,4] y"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("c = Cast<to = 1>(w) y = Gather(c, i)", ["Gather", "Cast"]),
        ("c = Cast<to = 1>(w) s = Mul(c, k) y = Gather(s, i)", ["Gather", "Cast", "Mul"]),
        ("c = Cast<to = 1>(w) s = Mul(c, r) y = Gather(s, i)", ["Gather", "Gather", "Cast", "Mul"]),
    ],
)
def test_lookups_move_up(body: str, expected: list[str]) -> None:
    model = make(LOOKUP, body, w=TABLE, k=f32(0.5), r=noise(50, 1))
    apply(model, hoist_gathers)
    assert sorted(ops(model)) == sorted(expected)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("c = Cast<to = 1>(w) z = Exp(c) y = Gather(c, i)", "another reader"),
        ("c = Cast<to = 1>(w) s = Mul(c, v) y = Gather(s, i)", "neither one number"),
        ("c = Cast<to = 1>(w) y = Gather<axis = 1>(c, i)", "rows"),
    ],
)
def test_lookups_refuse(body: str, reason: str) -> None:
    signature = LOOKUP
    if "z =" in body:
        signature = LOOKUP + ", float[50,4] z"
    if "axis = 1" in body:
        signature = "int64[N,S] i => float[50,N,S] y"
    assert_refuses(make(signature, body, w=TABLE, v=noise(4)), hoist_gathers, reason)


# --- branches -------------------------------------------------------------------------------------

IF = (
    "y = If(c) <then_branch = t () => (float[2] p) { e = Exp(x) p = Add(e, a) },"
    " else_branch = f () => (float[2] q) { q = Identity(x) }>"
)


def test_taken_branch_is_inlined() -> None:
    model = make("float[2] x => float[2] y", IF, c=np.asarray(True), a=noise(2))
    assert_fires(model, inline_branches, ["Exp", "Add"])
    model = make("float[2] x => float[2] y", IF, c=np.asarray([False]), a=noise(2))
    assert_fires(model, inline_branches, ["Identity"])


def test_nested_conditions_are_followed() -> None:
    body = (
        "y = If(c) <then_branch = t () => (float[2] p) { p = If(c) <"
        "then_branch = u () => (float[2] r) { r = Exp(x) },"
        " else_branch = v () => (float[2] s) { s = Abs(x) }> },"
        " else_branch = f () => (float[2] q) { q = Neg(x) }>"
    )
    model = make("float[2] x => float[2] y", body, c=np.asarray(True))
    assert_fires(model, inline_branches, ["Exp"])


def test_static_size_decides() -> None:
    body = "s = Shape(x) g = Gather(s, zero) c = Equal(g, two) " + IF
    model = make("float[2] x => float[2] y", body, zero=i64(0), two=i64(2), a=noise(2))
    assert_fires(model, (fold_constants, inline_branches), ["Exp", "Add"])


def test_condition_of_the_run_stays() -> None:
    model = make("bool c, float[2] x => float[2] y", IF, a=noise(2))
    apply(model, inline_branches)
    assert ops(model) == ["If", "Exp", "Add", "Identity"]
