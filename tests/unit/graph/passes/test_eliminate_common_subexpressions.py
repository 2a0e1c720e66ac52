"""Equal things are computed once; nearly equal ones are not merged."""

import numpy as np
import pytest

from tilewright.graph.passes.eliminate_common_subexpressions import (
    eliminate_common_subexpressions as step,
)
from unit.graph.passes.harness import apply, assert_fires, f32, make, noise, ops


def test_equal_nodes_merge_transitively() -> None:
    model = make(
        "float[2] x => float[2] y", "a = Exp(x) b = Exp(x) c = Abs(a) d = Abs(b) y = Add(c, d)"
    )
    assert_fires(model, step, ["Exp", "Abs", "Add"])


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("a = Softmax<axis = 0>(x) b = Softmax<axis = 1>(x)", 3),
        ("a = LeakyRelu<alpha = 0.1>(x) b = LeakyRelu<alpha = 0.2>(x)", 3),
        ("a = Sub(x, k) b = Sub(k, x)", 3),
    ],
)
def test_different_nodes_stay(body: str, count: int) -> None:
    model = make("float[2,2] x => float[2,2] y", body + " y = Add(a, b)", k=f32(1.5))
    apply(model, step)
    assert len(ops(model)) == count


def test_equal_constants_merge_and_so_do_their_readers() -> None:
    model = make(
        "float[3] x => float[3] y",
        "a = Mul(x, c) b = Mul(x, d) y = Add(a, b)",
        c=noise(3),
        d=noise(3),
    )
    assert_fires(model, step, ["Mul", "Add"])
    assert len(model.graph.initializers) == 1


@pytest.mark.parametrize(
    ("c", "d"),
    [
        (f32(0.0), f32(-0.0)),
        (f32([0.0, 1.0]), f32([[0.0, 1.0]])),
        (f32([1.0, 2.0]), f32([2.0, 1.0])),
    ],
)
def test_constants_that_differ_in_bits_or_shape_stay(c: object, d: object) -> None:
    model = make("float[1,2] x => float[1,2] y", "a = Mul(x, c) y = Add(a, d)", c=c, d=d)
    apply(model, step)
    assert len(model.graph.initializers) == 2


def test_constants_of_equal_bytes_and_other_type_stay() -> None:
    model = make(
        "float[1] x, int32[1] n => float[1] y, int32[1] m",
        "y = Add(x, c) m = Add(n, d)",
        c=np.zeros(1, np.float32),
        d=np.zeros(1, np.int32),
    )
    apply(model, step)
    assert len(model.graph.initializers) == 2


def test_two_outputs_stay_two_values() -> None:
    model = make(
        "float[2] x => float[2] y, float[2] z, float[2] w", "y = Exp(x) z = Exp(x) w = Abs(z)"
    )
    apply(model, step)
    assert ops(model) == ["Exp", "Exp", "Abs"]


def test_the_later_of_two_may_be_the_output() -> None:
    model = make("float[2] x => float[2] y, float[2] z", "a = Exp(x) y = Exp(x) z = Neg(a)")
    assert_fires(model, step, ["Exp", "Neg"])


def test_a_branch_reuses_the_graph_around_but_not_its_sibling() -> None:
    model = make(
        "bool c, float[2] x => float[2] y, float[2] z",
        "z = Exp(x) y = If(c) <then_branch = t () => (float[2] p) { e = Exp(x) a = Abs(x)"
        " p = Add(e, a) }, else_branch = f () => (float[2] q) { b = Abs(x) q = Neg(b) }>",
    )
    assert_fires(model, step, ["Exp", "If", "Abs", "Add", "Abs", "Neg"])


def test_random_nodes_stay_apart() -> None:
    model = make(
        "float[2] x => float[2] y",
        "a = RandomNormalLike(x) b = RandomNormalLike(x) s = Sub(a, b) z = Mul(s, o) y = Add(x, z)",
        o=f32(0.0, 0.0),
    )
    apply(model, step)
    assert ops(model).count("RandomNormalLike") == 2
