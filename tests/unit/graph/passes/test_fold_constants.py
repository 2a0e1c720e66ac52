"""Constants are computed ahead, except where that would change or burden the result."""

from typing import Any

import numpy as np
import pytest

from tilewright.graph.build_view import tensor_array
from tilewright.graph.passes.fold_constants import fold_constants
from unit.graph.passes.harness import (
    apply,
    assert_fires,
    assert_refuses,
    f32,
    i64,
    make,
    ops,
    run_alone,
)


def test_chain_of_constants_folds_in_one_sweep() -> None:
    model = make(
        "float[2] x => float[2] y",
        "c = Add(a, b) d = Mul(c, a) y = Sub(x, d)",
        a=f32(1, 2),
        b=f32(3, 4),
    )
    assert_fires(model, fold_constants, ["Sub"])


def test_static_shape_arithmetic_becomes_a_constant() -> None:
    model = make(
        "float[N,3,4] x => int64 n, float[M,4] y",
        "s = Shape(x) g = Gather(s, one) n = Squeeze(g) y = Reshape(x, t)",
        one=i64(1),
        t=i64(-1, 4),
    )
    apply(model, fold_constants)
    assert "Gather" not in ops(model)
    assert "Squeeze" not in ops(model)


def test_output_that_folds_keeps_its_name() -> None:
    model = make("float[2] x => float[2] y, float[2] z", "y = Add(a, a) z = Relu(x)", a=f32(1, 2))
    assert_fires(model, fold_constants, ["Relu"])
    constant = model.graph.outputs[0].const_value
    assert constant is not None
    np.testing.assert_array_equal(tensor_array(constant), [2, 4])


def test_branch_that_folds_returns_through_an_identity() -> None:
    model = make(
        "bool c, float[2] x => float[2] y",
        "y = If(c) <then_branch = t () => (float[2] p) { p = Add(a, a) },"
        " else_branch = e () => (float[2] q) { q = Relu(x) }>",
        a=f32(1, 2),
    )
    assert_fires(model, fold_constants, ["If", "Identity", "Relu"])


def test_integers_wrap_as_at_run_time() -> None:
    model = make(
        "uint8[2] x => uint8[2] y", "s = Add(a, a) y = Mul(x, s)", a=np.asarray([200, 1], np.uint8)
    )
    assert_fires(model, fold_constants, ["Mul"])


def test_half_constants_are_rounded_in_their_own_type() -> None:
    half = np.asarray([2049.0, 0.1], np.float16)
    model = make("float16[2] x => float16[2] y", "s = Add(a, a) y = Mul(x, s)", a=half)
    run_alone(model, fold_constants)
    (folded,) = [v for v in model.graph.initializers.values() if v.name == "s"]
    assert folded.const_value is not None
    np.testing.assert_array_equal(tensor_array(folded.const_value), half + half)


@pytest.mark.parametrize(
    ("body", "weights", "reason"),
    [
        ("d = Log(a) y = Mul(x, d)", {"a": f32(0, 1)}, "NaN or Inf"),
        ("d = Div(a, b) y = Mul(x, d)", {"a": f32(1, 1), "b": f32(0, 1)}, "NaN or Inf"),
        (
            "e = Expand(a, s) r = ReduceSum(e) y = Mul(x, r)",
            {"a": f32(1.0), "s": i64(3000, 3000)},
            "larger than its inputs",
        ),
        (
            "e = ConstantOfShape(s) r = ReduceSum(e) y = Mul(x, r)",
            {"s": i64(3000, 3000)},
            "larger than its inputs",
        ),
        (
            "e = Tile(a, s) r = ReduceSum(e) y = Mul(x, r)",
            {"a": f32([[1.0]]), "s": i64(3000, 3000)},
            "larger than its inputs",
        ),
        (
            "w = DequantizeLinear(q, s) y = Mul(x, w)",
            {"q": np.asarray([1, 2], np.int8), "s": f32(0.5)},
            "stay quantised",
        ),
    ],
)
def test_refusals(body: str, weights: dict[str, Any], reason: str) -> None:
    assert_refuses(make("float[2] x => float[2] y", body, **weights), fold_constants, reason)


def test_infinities_that_other_constants_replace_are_computed_ahead() -> None:
    """Where(distance < 1, distance, log(distance)): buckets of relative positions."""
    model = make(
        "float[3] x => float[3] y",
        "l = Log(a) m = Mul(l, l) c = Cast<to: int = 7>(m) f = Cast<to: int = 1>(c)"
        " w = Where(near, a, f) y = Add(x, w)",
        a=f32(0, 1, 20),
        near=np.asarray([True, True, False]),
    )
    assert_fires(model, fold_constants, ["Add"])
    partly = make(
        "float[2] x => float[2] y, float[2] l",
        "l = Log(a) w = Where(near, a, l) y = Add(x, w)",
        a=f32(0, 1),
        near=np.asarray([True, False]),
    )
    ctx = run_alone(partly, fold_constants)
    assert ops(partly) == ["Log", "Add"]
    assert any("NaN or Inf" in entry.rejected[0][1] for entry in ctx.log.entries if entry.rejected)


@pytest.mark.parametrize("op_type", ["Div", "Mod"])
def test_integer_division_by_zero_is_left_for_run_time(op_type: str) -> None:
    model = make(
        "int32[2] x => int32[2] y",
        f"d = {op_type}(a, b) y = Add(x, d)",
        a=np.asarray([1, 2], np.int32),
        b=np.asarray([0, 1], np.int32),
    )
    ctx = run_alone(model, fold_constants)
    assert "divided by zero" in ctx.log.entries[0].rejected[0][1]
    assert ops(model) == [op_type, "Add"]


def test_what_fails_is_left_for_run_time() -> None:
    model = make(
        "float[2] x => float[2] y", "g = Gather(a, i) y = Mul(x, g)", a=f32(1, 2), i=i64(7)
    )
    ctx = run_alone(model, fold_constants)
    assert "left for run time" in ctx.log.entries[0].rejected[0][1]
    assert ops(model) == ["Gather", "Mul"]


def test_infinite_constants_stay_as_they_are() -> None:
    model = make("float[2] x => float[2] y", "n = Neg(a) y = Max(x, n)", a=f32(np.inf, 1))
    assert_fires(model, fold_constants, ["Max"])


def test_random_nodes_are_not_constants() -> None:
    model = make("float[2] x => float[2] y", "r = RandomNormal<shape = [2]>() y = Add(x, r)")
    run_alone(model, fold_constants)
    assert ops(model) == ["RandomNormal", "Add"]
