"""What follows an If moves into branches of different rank, and only then."""

import numpy as np
import pytest

from tilewright.graph.passes import sink_into_branches as module
from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.graph.passes.inline_branches import inline_branches
from tilewright.graph.passes.sink_into_branches import sink_into_branches
from tilewright.graph.walk import all_nodes
from unit.graph.passes.harness import (
    apply,
    assert_fires,
    assert_ignores,
    assert_refuses,
    f32,
    i64,
    make,
    noise,
)

# The branches give ranks 2 and 3; what reads the result asks for its rank.
_BODY = """
    s = Shape <start = 2> (x)
    one = Equal (s, n1)
    r = If (one) <
        then_branch = t () => (float[A, 4] a) { a = Squeeze (x, n2) },
        else_branch = e () => (float[A, 4, B] b) { b = Neg (x) }
    >
    d = Shape (r)
    k = Size (d)
    flat = Equal (k, two)
    y = If (flat) <
        then_branch = t2 () => (float[A, 4] c) { c = Exp (r) },
        else_branch = e2 () => (float[A, 4] m) { m = ReduceSum <keepdims = 0> (r, n2) }
    >
"""
_WEIGHTS = {"n1": i64(1), "n2": i64(2), "two": np.asarray(2, np.int64)}
_FEEDS = [noise(3, 4, 1), noise(3, 4, 5)]


@pytest.mark.parametrize("x", _FEEDS, ids=["flat", "deep"])
def test_what_the_rank_decides_folds_in_each_branch(x: np.ndarray) -> None:
    model = make("float[A,4,B] x => float[A,4] y", _BODY, **_WEIGHTS)
    assert_fires(
        model,
        [sink_into_branches, fold_constants, inline_branches],
        ["Shape", "Equal", "If", "Squeeze", "Exp", "Neg", "ReduceSum"],
        feeds={"x": x},
    )


@pytest.mark.parametrize("x", _FEEDS, ids=["flat", "deep"])
def test_results_that_are_outputs_keep_their_names(x: np.ndarray) -> None:
    model = make(
        "float[A,4,B] x => float[] r, float[] z",
        _BODY.split("d = Shape")[0] + "w = Abs (r) z = Add (w, w)",
        **_WEIGHTS,
    )
    assert_fires(
        model,
        sink_into_branches,
        ["Shape", "Equal", "If", "Squeeze", "Abs", "Add", "Neg", "Abs", "Add"],
        feeds={"x": x},
    )


def test_bodies_that_read_the_result_move_too() -> None:
    loop = """
        n = Size (s)
        go = Equal (n1, n1)
        z = Loop (n, go, q) <body = b (int64 i, bool c, float[C] h) => (bool c2, float[C] h2) {
            g = ReduceMean <keepdims = 0> (r)
            h2 = Add (h, g)
            c2 = Identity (c)
        }>
    """
    model = make(
        "float[A,4,B] x, float[C] q => float[C] z",
        _BODY.split("d = Shape")[0] + loop,
        **_WEIGHTS,
    )
    assert_fires(
        model,
        sink_into_branches,
        [
            *("Shape", "Equal", "Size", "Equal", "If"),
            *("Squeeze", "Loop", "ReduceMean", "Add", "Identity"),
            *("Neg", "Loop", "ReduceMean", "Add", "Identity"),
        ],
        feeds={"x": _FEEDS[0], "q": noise(2)},
    )


def test_branches_of_equal_rank_stay() -> None:
    model = make(
        "float[A,4] x, bool p => float[A,4] y",
        """r = If (p) <
            then_branch = t () => (float[A, 4] a) { a = Exp (x) },
            else_branch = e () => (float[A, 4] b) { b = Neg (x) }
        >
        y = Abs (r)""",
    )
    assert_ignores(model, sink_into_branches)


def test_a_rank_that_nobody_reads_stays() -> None:
    model = make("float[A,4,B] x => float[] r", _BODY.split("d = Shape")[0], **_WEIGHTS)
    assert_ignores(model, sink_into_branches)


def test_copies_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COPIES", 3)
    model = make("float[A,4,B] x => float[A,4] y", _BODY, **_WEIGHTS)
    assert_refuses(model, sink_into_branches, "more than 3 nodes")


def test_the_tail_of_a_loop_body_moves_with_its_outputs() -> None:
    """The condition to go on and a carried value come out of the branches."""
    body = """
        y = Loop (n, go, x) <body = b (int64 i, bool c, float[A,4,B] h)
                                 => (bool c2, float[A,4,B] h2) {
            s = Shape <start = 2> (h)
            one = Equal (s, n1)
            r = If (one) <
                then_branch = t () => (float[A, 4] a) { a = Squeeze (h, n2) },
                else_branch = e () => (float[A, 4, B] q) { q = Neg (h) }
            >
            flat = ReduceSum <keepdims = 0> (r)
            c2 = Less (flat, limit)
            w = Mul (flat, small)
            h2 = Add (h, w)
        }>
    """
    model = make(
        "float[A,4,B] x, int64 n => float[A,4,B] y",
        body,
        go=np.asarray(True),
        limit=f32(1e6),
        small=f32(0.1),
        **_WEIGHTS,
    )
    apply(model, sink_into_branches, feeds={"x": _FEEDS[0], "n": np.asarray(3)})
    (branch,) = [node for node in all_nodes(model.graph) if node.op_type == "If"]
    assert [value.name for value in branch.outputs] == ["c2", "h2"]
