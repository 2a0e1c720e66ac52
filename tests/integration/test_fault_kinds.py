"""Kinds of faults known of compilers: inputs and outputs, sizes, control flow, fusion, damage.

Our own graphs and numbers; expectations are written out. Numbers themselves are in
test_known_faults_numbers, windows and indices in test_known_faults_tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from integration.faults import Array, engine_of, f32, i64, model_of, own_cache, run
from tilewright.core.errors import InvalidModel, OutOfRange, ShapeMismatch, UserError

__all__ = ["own_cache"]

# --- graph_io: what goes in and comes out ---------------------------------------------------------


def test_an_input_that_is_an_output_is_copied() -> None:
    engine = engine_of("g (float[n] x) => (float[n] x, float[n] y) { y = Neg(x) }")
    x = f32(1, 2, 3)
    found = engine.run({"x": x})
    np.testing.assert_array_equal(found["x"], x)
    assert not np.may_share_memory(found["x"], x)
    found["x"][0] = 7
    assert x[0] == 1


def test_an_input_that_is_an_output_keeps_its_declared_shape() -> None:
    engine = engine_of("g (float[n, 3] x) => (x, float[n, 3] y) { y = Relu(x) }")
    assert not engine.summary["interpreted"]
    assert [str(dim) for dim in engine.inputs[0].shape or ()] == ["n", "3"]


def test_one_value_under_several_names_gives_arrays_of_their_own() -> None:
    engine = engine_of(
        """g (float[n] x) => (float[n] a, float[n] b, float[n] c)
        { a = Relu(x) b = Identity(a) c = Identity(b) }"""
    )
    first = engine.run({"x": f32(-1, 2)})
    second = engine.run({"x": f32(5, -6)})
    for name in "abc":
        np.testing.assert_array_equal(first[name], [0, 2])
        np.testing.assert_array_equal(second[name], [5, 0])
    first["a"][:] = 9
    np.testing.assert_array_equal(first["b"], [0, 2])
    np.testing.assert_array_equal(first["c"], [0, 2])


@pytest.mark.parametrize("op", ["Reshape", "Squeeze", "Flatten", "Identity"])
def test_a_view_of_an_input_or_result_is_no_alias(op: str) -> None:
    """Operators that move nothing must not let outputs share memory."""
    second = {"Reshape": "Reshape(a, s)", "Squeeze": "Squeeze(a, s)"}.get(op, f"{op}(a)")
    shape = i64([0]) if op == "Squeeze" else i64([-1])
    engine = engine_of(
        f"g (float[1, 3] x) => (float[1, 3] a, b) {{ a = Relu(x) b = {second} }}", {"s": shape}
    )
    found = engine.run({"x": f32([[1, 2, 3]])})
    found["a"][:] = 0
    np.testing.assert_array_equal(found["b"].ravel(), [1, 2, 3])


def test_a_constant_output_is_a_copy_each_time() -> None:
    engine = engine_of("g (float[1] x) => (float[2] k, float[1] y) { k = Identity(w) y = Abs(x) }",
                       {"w": f32(3, 4)})  # fmt: skip
    first = engine.run({"x": f32([1])})["k"]
    first[:] = 0
    np.testing.assert_array_equal(engine.run({"x": f32([1])})["k"], [3, 4])


def test_results_survive_later_runs_and_feeds_stay_as_they_are() -> None:
    engine = engine_of(
        """g (float[n] x) => (float[n] y, float[n] z)
        { y = Add(x, x) z = Softmax(y) }""",
        threads=2,
    )
    feeds = [f32(range(size)) for size in (3, 1, 5, 3, 0)]
    kept = [feed.copy() for feed in feeds]
    found = [engine.run({"x": feed}) for feed in feeds]
    for feed, copy, result in zip(feeds, kept, found, strict=True):
        np.testing.assert_array_equal(feed, copy)
        np.testing.assert_array_equal(result["y"], 2 * copy)


def test_an_input_that_nothing_reads_must_still_fit() -> None:
    engine = engine_of("g (float[n] x, int64[2] unused) => (float[n] y) { y = Abs(x) }")
    assert engine.run({"x": f32([-1]), "unused": i64(1, 2)})["y"] == [1]
    with pytest.raises(ShapeMismatch, match="unused"):
        engine.run({"x": f32([-1]), "unused": i64([1])})


def test_strided_reversed_and_foreign_feeds() -> None:
    """Memory order and byte order of a feed are no matter of the engine."""
    engine = engine_of("g (float[n, m] x) => (y) { y = Transpose(x) }")
    base = f32(np.arange(24).reshape(4, 6))
    for feed in (base[:, ::2], base[::-1], base.T, np.asfortranarray(base), base.astype(">f4")):
        np.testing.assert_array_equal(engine.run({"x": feed})["y"], np.asarray(feed).T)


# --- dynamic: one engine, many sizes --------------------------------------------------------------

SIZES = [(3, 4), (1, 1), (0, 4), (3, 0), (17, 33), (1, 64), (2, 2)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = ReduceSum(x, one)", lambda x: x.sum(1, keepdims=True)),
        ("y = MatMul(x, t)  t = Transpose(x)", lambda x: x @ x.T),
        ("y = Concat<axis=0>(x, x)", lambda x: np.concatenate([x, x])),
        ("s = Shape(x) r = Gather(s, one) y = Reshape(x, r2) r2 = Concat<axis=0>(m, r)", None),
        ("y = Transpose(x)", lambda x: x.T),
        ("y = CumSum(x, zero)", lambda x: np.cumsum(x, 0)),
    ],
)
def test_one_engine_at_many_sizes(body: str, expected: Any) -> None:
    lines = [part for part in body.replace("  ", "\n").split("\n") if part.strip()][::-1]
    text = f"g (float[n, m] x) => (y) {{ {' '.join(lines)} }}"
    if expected is None:
        text = """g (float[n, m] x) => (y)
        { s = Shape(x) r = Gather(s, one) r2 = Concat<axis=0>(minus, r) y = Reshape(x, r2) }"""
    weights = {"one": i64([1]), "zero": np.asarray(0), "minus": i64([-1])}
    engine = engine_of(text, {k: v for k, v in weights.items() if k in text})
    found = []
    for number, size in enumerate(SIZES):
        x = f32(np.random.default_rng(number).integers(-3, 4, size))
        found.append((x, engine.run({"x": x})["y"]))
    for x, y in found:
        np.testing.assert_array_equal(y, x if expected is None else expected(x))


def test_unnamed_dims_may_differ() -> None:
    model = onnx.ModelProto.FromString(model_of("g (float[a, b] x) => (y) { y = Abs(x) }"))
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        dim.ClearField("dim_param")
    engine = tw.compile(model, verify=False, threads=1)
    assert engine.run({"x": np.zeros((2, 5), np.float32)})["y"].shape == (2, 5)


def test_equal_names_must_agree() -> None:
    engine = engine_of("g (float[n] x, float[n] z) => (y) { y = Add(x, z) }")
    with pytest.raises(ShapeMismatch):
        engine.run({"x": f32(1, 2), "z": f32(1, 2, 3)})


def test_two_names_may_broadcast_at_run_time() -> None:
    engine = engine_of("g (float[n] x, float[m] z) => (y) { y = Add(x, z) }")
    for left, right in ((1, 4), (4, 1), (3, 3), (1, 1), (1, 0)):
        found = engine.run({"x": np.ones(left, np.float32), "z": np.ones(right, np.float32)})["y"]
        np.testing.assert_array_equal(found, np.full(np.broadcast_shapes((left,), (right,)), 2))
    with pytest.raises(ShapeMismatch):
        engine.run({"x": f32(1, 2), "z": f32(1, 2, 3)})


def test_an_empty_batch_is_reshaped() -> None:
    engine = engine_of("g (float[n, 2, 6] x) => (y) { y = Reshape(x, s) }", {"s": i64(0, -1)})
    for batch in (2, 0, 1):
        assert engine.run({"x": np.zeros((batch, 2, 6), np.float32)})["y"].shape == (batch, 12)


@pytest.mark.parametrize("op", ["Softmax", "LayerNormalization", "MatMul", "Conv", "ReduceMax"])
def test_nothing_in_gives_nothing_out(op: str) -> None:
    cases: dict[str, tuple[str, dict[str, Array]]] = {
        "Softmax": ("y = Softmax<axis=-1>(x)", {}),
        "LayerNormalization": ("y = LayerNormalization(x, w)", {"w": np.ones(4, np.float32)}),
        "MatMul": ("y = MatMul(x, w)", {"w": np.ones((4, 5), np.float32)}),
        "Conv": ("y = Conv(x, w)", {"w": np.ones((2, 3, 1), np.float32)}),
        "ReduceMax": ("y = ReduceMax<keepdims=0>(x, w)", {"w": i64([2])}),
    }
    text, weights = cases[op]
    engine = engine_of(f"g (float[n, 3, 4] x) => (y) {{ {text} }}", weights)
    for batch in (0, 2, 0):
        y = engine.run({"x": np.ones((batch, 3, 4), np.float32)})["y"]
        assert y.shape[0] == batch
        assert np.isfinite(y).all()


def test_declared_ranges_are_kept() -> None:
    data = model_of("g (float[n] x) => (y) { y = Abs(x) }")
    engine = tw.compile(data, dims={"n": (2, 4)}, verify=False, threads=1)
    assert engine.run({"x": f32(1, -2)})["y"].tolist() == [1, 2]
    for size in (1, 5):
        with pytest.raises(ShapeMismatch, match="declared range"):
            engine.run({"x": np.zeros(size, np.float32)})


# --- control_flow ---------------------------------------------------------------------------------

_LOOP = """g (int64 trips, bool go, float[n] x) => (last, scans) {
    last, scans = Loop (trips, go, x) <body = b (int64 i, bool c, float[n] s)
        => (bool d, float[n] t, float[n] u) {
            t = Add(s, x) u = Neg(t) d = Identity(c) }>
}"""


def test_loops_of_no_trip_give_the_start_and_empty_scans() -> None:
    engine = engine_of(_LOOP)
    x = f32(1, 2, 3)
    for trips, go in ((0, True), (3, False), (-1, True)):
        last, scans = engine.run({"trips": i64(trips), "go": np.asarray(go), "x": x}).values()
        np.testing.assert_array_equal(last, x)
        assert (scans.shape, scans.dtype) == ((0, 3), np.float32)
    last, scans = engine.run({"trips": i64(2), "go": np.asarray(True), "x": x}).values()
    np.testing.assert_array_equal(last, 3 * x)
    np.testing.assert_array_equal(scans, [-2 * x, -3 * x])


def test_empty_scans_have_the_shape_of_a_first_iteration() -> None:
    """Even where the model does not declare it; the verification agrees."""
    text = """g (int64 trips, float[n, m] x) => (y) {
        last, y = Loop (trips, , x) <body = b (int64 i, bool c, float[a, b] s)
            => (bool d, float[a, b] t, u) { t = Relu(s) u = Transpose(t) d = Identity(c) }>
    }"""
    engine = engine_of(text, verify=True)
    assert engine.run({"trips": i64(0), "x": np.ones((2, 5), np.float32)})["y"].shape == (0, 5, 2)
    assert engine.run({"trips": i64(3), "x": np.ones((2, 5), np.float32)})["y"].shape == (3, 5, 2)


def test_a_loop_stops_when_its_condition_says_so() -> None:
    text = """g (float x) => (last, scans) {
        last, scans = Loop (many, , x) <body = b (int64 i, bool c, float s)
            => (bool d, float t, float u) { t = Add(s, s) u = Identity(s) d = Less(t, limit) }>
    }"""
    last, scans = run(text, {"many": np.asarray(100), "limit": f32(20)}, x=f32(1.5))
    assert last == 24
    np.testing.assert_array_equal(scans, [1.5, 3, 6, 12])


def test_carried_values_swap() -> None:
    """Both are read before either is written."""
    text = """g (float[n] x, float[n] z) => (a, b) {
        a, b = Loop (trips, , x, z) <body = l (int64 i, bool c, float[n] p, float[n] q)
            => (bool d, float[n] r, float[n] s)
            { d = Identity(c) r = Identity(q) s = Identity(p) }>
    }"""
    a, b = run(text, {"trips": np.asarray(3)}, x=f32(1, 2), z=f32(3, 4))
    np.testing.assert_array_equal(a, [3, 4])
    np.testing.assert_array_equal(b, [1, 2])


def test_branches_read_the_same_outer_value_and_differ_in_shape() -> None:
    text = """g (bool flag, float[n] x) => (y, z) {
        w = Abs(x)
        y = If (flag) <then_branch = t () => (p) { p = Concat<axis=0>(w, w) },
                       else_branch = e () => (q) { q = Neg(w) }>
        z = Add(w, w)
    }"""
    engine = engine_of(text)
    x = f32(-1, 2)
    yes = engine.run({"flag": np.asarray(True), "x": x})
    no = engine.run({"flag": np.asarray(False), "x": x})
    np.testing.assert_array_equal(yes["y"], [1, 2, 1, 2])
    np.testing.assert_array_equal(no["y"], [-1, -2])
    np.testing.assert_array_equal(no["z"], [2, 4])


def test_known_conditions_inside_each_other() -> None:
    """A branch that goes away takes its branches along, and what it only read."""
    text = """g (float[n] x) => (y) {
        a = Relu(x)
        b = If (yes) <then_branch = t () => (p) { p = Abs(a) },
                      else_branch = e () => (q) { q = Neg(a) }>
        y = If (no) <then_branch = t2 () => (r) {
                r = If (yes) <then_branch = t3 () => (r1) { r1 = Mul(b, b) },
                              else_branch = e3 () => (r2) { r2 = ReduceMax(b) }> },
                     else_branch = e2 () => (s) { s = Add(b, x) }>
    }"""
    found = run(text, {"yes": np.asarray(True), "no": np.asarray(False)}, x=f32(-1, 2))
    np.testing.assert_array_equal(found, [-1, 4])


def test_a_scan_runs_backwards_along_another_axis() -> None:
    text = """g (float[2] s, float[2, n] x) => (last, y) {
        last, y = Scan <body = b (float[2] p, float[2] q) => (float[2] r, float[2] u)
            { r = Add(p, q) u = Identity(r) },
            num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
            scan_input_directions = [1], scan_output_directions = [1]> (s, x)
    }"""
    x = f32([[1, 2, 3], [10, 20, 30]])
    last, y = run(text, s=f32(0, 0), x=x)
    np.testing.assert_array_equal(last, [6, 60])
    np.testing.assert_array_equal(y, [[6, 5, 3], [60, 50, 30]])


def test_a_sub_graph_of_too_few_outputs_is_refused() -> None:
    text = """g (bool flag, float[n] x) => (y, z) {
        y, z = If (flag) <then_branch = t () => (p) { p = Abs(x) },
                          else_branch = e () => (q) { q = Neg(x) }>
    }"""
    with pytest.raises(InvalidModel):
        engine_of(text)


# --- fusion: what must not be merged --------------------------------------------------------------


def test_a_value_in_the_middle_that_is_an_output_stays() -> None:
    engine = engine_of(
        "g (float[n, 4] x) => (h, y) { h = MatMul(x, w) b = Add(h, c) y = Relu(b) }",
        {"w": np.eye(4, dtype=np.float32), "c": f32(-1, -1, 1, 1)},
    )
    found = engine.run({"x": f32([[0, 2, -3, 4]])})
    np.testing.assert_array_equal(found["h"], [[0, 2, -3, 4]])
    np.testing.assert_array_equal(found["y"], [[0, 1, 0, 5]])


@pytest.mark.parametrize("shape", [(1,), (4,), (3, 1), (3, 4), (2, 1, 1), (2, 3, 4)])
def test_a_bias_of_any_shape_after_a_product(shape: tuple[int, ...]) -> None:
    bias = f32(np.arange(np.prod(shape)).reshape(shape))
    found = run("g (float[3, 4] x) => (y) { h = MatMul(x, w) y = Add(h, b) }",
                {"w": np.eye(4, dtype=np.float32), "b": bias},
                x=np.ones((3, 4), np.float32))  # fmt: skip
    np.testing.assert_array_equal(found, np.ones((3, 4)) + bias)


def test_a_bias_that_raises_the_rank_with_a_symbol() -> None:
    text = """g (float[n, 2] x, float[b, 1, 2] z) => (y)
    { h = MatMul(x, w) y = Add(z, h) }"""
    engine = engine_of(text, {"w": f32([[0, 1], [1, 0]])})
    y = engine.run({"x": f32([[1, 2]]), "z": f32([[[10, 20]], [[30, 40]]])})["y"]
    np.testing.assert_array_equal(y, [[[12, 21]], [[32, 41]]])


def test_equal_bytes_of_other_types_are_other_constants() -> None:
    """Merging constants by their bytes alone would mix these up."""
    found = run("g (float[1] x) => (a, b, c) { a = Cast<to=1>(k) b = Cast<to=1>(l) c = Add(x, m) }",
                {"k": i64([0]), "l": np.zeros(1, np.float64), "m": np.zeros(1, np.float32)},
                x=f32([2]))  # fmt: skip
    assert [float(part[0]) for part in found] == [0, 0, 2]
    bits = np.array([0x3F800000], np.int32)
    found = run("g (float[1] x) => (a, b) { a = Add(x, m) i = Cast<to=1>(k) b = Add(x, i) }",
                {"k": bits, "m": bits.view(np.float32)}, x=f32([0]))  # fmt: skip
    assert [float(part[0]) for part in found] == [1, 0x3F800000]


def test_negative_zero_is_another_constant_than_zero() -> None:
    found = run("g (float[1] x) => (a, b) { a = Add(x, p) b = Add(x, q) }",
                {"p": f32([0.0]), "q": f32([-0.0])}, x=f32([-0.0]))  # fmt: skip
    assert [bool(np.signbit(part[0])) for part in found] == [False, True]


def test_a_residual_sum_is_used_twice() -> None:
    engine = engine_of(
        """g (float[1, 2, 5] x) => (s, y) {
        c = Conv<pads=[1, 1]>(x, w) s = Add(c, x) r = Relu(s) d = Conv<pads=[1, 1]>(r, w)
        y = Add(d, s) }""",
        {"w": f32(np.tile([0, 1, 0], (2, 2, 1)))},
    )
    x = f32(np.arange(10).reshape(1, 2, 5) - 4)
    both = x.sum(1, keepdims=True) + x
    found = engine.run({"x": x})
    np.testing.assert_array_equal(found["s"], both)
    relu = np.maximum(both, 0)
    np.testing.assert_array_equal(found["y"], relu.sum(1, keepdims=True) + both)


def test_padding_with_another_value_is_not_the_pool_s_own() -> None:
    x = f32([[[4, 2, 6]]])
    found = run("""g (float[1, 1, 3] x) => (y)
    { p = Pad(x, n, v) y = AveragePool<kernel_shape=[2]>(p) }""",
                {"n": i64(0, 0, 1, 0, 0, 1), "v": f32(2)}, x=x)  # fmt: skip
    np.testing.assert_array_equal(found, [[[3, 3, 4, 4]]])
    found = run("g (float[1, 1, 3] x) => (y) { p = Pad(x, n) y = MaxPool<kernel_shape=[2]>(p) }",
                {"n": i64(0, 0, 1, 0, 0, 1)}, x=-x)  # fmt: skip
    np.testing.assert_array_equal(found, [[[0, -2, -2, 0]]])


def test_two_readers_of_a_product_with_another_bias() -> None:
    a, b = run(
        "g (float[2, 2] x) => (a, b) { h = MatMul(x, w) a = Add(h, p) b = Sub(h, p) }",
        {"w": np.eye(2, dtype=np.float32), "p": f32(1, 2)},
        x=f32([[1, 2], [3, 4]]),
    )
    np.testing.assert_array_equal(a, [[2, 4], [4, 6]])
    np.testing.assert_array_equal(b, [[0, 0], [2, 2]])


# --- layout ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [(0, 2, 1, 3), (3, 2, 1, 0), (1, 0, 3, 2), (2, 3, 0, 1)])
@pytest.mark.parametrize("second", [(0, 3, 1, 2), (0, 2, 3, 1), (3, 0, 1, 2)])
def test_transposes_compose(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    x = f32(np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5))
    text = f"""g (float[2, 3, 4, 5] x) => (y)
    {{ a = Transpose<perm={list(first)}>(x) b = Relu(a) y = Transpose<perm={list(second)}>(b) }}"""
    np.testing.assert_array_equal(run(text, x=x), x.transpose(first).transpose(second))


@pytest.mark.parametrize("op", ["ReduceSum", "ArgMax", "Softmax", "Concat", "Split", "Squeeze"])
def test_axes_below_a_transpose_mean_the_new_order(op: str) -> None:
    x = f32(np.random.default_rng(0).permutation(24).reshape(2, 1, 3, 4))
    node, weights = {
        "ReduceSum": ("ReduceSum<keepdims=0>(t, k)", {"k": i64([1])}),
        "ArgMax": ("ArgMax<axis=1, keepdims=0>(t)", {}),
        "Softmax": ("Softmax<axis=1>(t)", {}),
        "Concat": ("Concat<axis=1>(t, t)", {}),
        "Split": ("Split<axis=1, num_outputs=2>(t)", {}),
        "Squeeze": ("Squeeze(t, k)", {"k": i64([-2])}),
    }[op]
    outputs = "y, z" if op == "Split" else "y"
    text = f"""g (float[2, 1, 3, 4] x) => ({outputs})
    {{ t = Transpose<perm=[0, 3, 1, 2]>(x) {outputs} = {node} }}"""
    t = x.transpose(0, 3, 1, 2)
    soft = np.exp(t - t.max(1, keepdims=True))
    expected: Array = {
        "ReduceSum": t.sum(1),
        "ArgMax": t.argmax(1),
        "Softmax": soft / soft.sum(1, keepdims=True),
        "Concat": np.concatenate([t, t], 1),
        "Split": t[:, :2],
        "Squeeze": t.squeeze(2),
    }[op]
    found = run(text, weights, x=x)
    np.testing.assert_allclose(found[0] if op == "Split" else found, expected, rtol=1e-6)


def test_several_squeezes_count_from_the_new_rank() -> None:
    x = f32(np.arange(6).reshape(1, 2, 1, 3, 1))
    found = run("""g (float[1, 2, 1, 3, 1] x) => (y)
    { a = Squeeze(x, p) b = Squeeze(a, q) y = Unsqueeze(b, r) }""",
                {"p": i64([0]), "q": i64([-1]), "r": i64(0, -1)}, x=x)  # fmt: skip
    np.testing.assert_array_equal(found, x.reshape(1, 2, 1, 3, 1))


# --- malformed ------------------------------------------------------------------------------------


def _edited(edit: Callable[[Any], object]) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.ParseFromString(
        model_of("g (float[2] x) => (y) { a = Add(x, w) y = Relu(a) }", {"w": f32(1, 2)})
    )
    edit(model.graph)
    return model


EDITS: dict[str, Any] = {
    "a cycle": lambda g: g.node[0].input.__setitem__(1, "y"),
    "a value that nothing makes": lambda g: g.node[0].input.__setitem__(1, "nowhere"),
    "a value made twice": lambda g: g.node[1].output.__setitem__(0, "a"),
    "an input made again": lambda g: g.node[0].output.__setitem__(0, "x"),
    "a node reading itself": lambda g: g.node[1].input.__setitem__(0, "y"),
    "a weight with too few bytes": lambda g: setattr(g.initializer[0], "raw_data", b"\0" * 7),
    "a weight with too many bytes": lambda g: setattr(g.initializer[0], "raw_data", b"\0" * 9),
    "a weight of negative size": lambda g: g.initializer[0].dims.__setitem__(0, -2),
    "a weight of absurd size": lambda g: g.initializer[0].dims.extend([2**31, 2**31]),
    "a weight of no type": lambda g: setattr(g.initializer[0], "data_type", 0),
    "a weight of a foreign type": lambda g: setattr(g.initializer[0], "data_type", 99),
    "two weights of one name": lambda g: g.initializer.add().CopyFrom(g.initializer[0]),
    "an output that nothing makes": lambda g: g.output.add(name="nowhere"),
    "an operator that nobody knows": lambda g: setattr(g.node[1], "op_type", "Nonsense"),
    "an operand too many": lambda g: g.node[1].input.append("x"),
    "an attribute that nobody knows": lambda g: g.node[1].attribute.append(
        helper.make_attribute("speed", 11)
    ),
    "an attribute of another type": lambda g: g.node[1].CopyFrom(
        helper.make_node("Softmax", ["a"], ["y"], axis="last")
    ),
    "an axis that does not exist": lambda g: g.node[1].CopyFrom(
        helper.make_node("Softmax", ["a"], ["y"], axis=5)
    ),
    "types that do not mix": lambda g: g.initializer[0].CopyFrom(
        numpy_helper.from_array(np.array([1, 2]), "w")
    ),
    "shapes that do not mix": lambda g: g.initializer[0].CopyFrom(
        numpy_helper.from_array(f32(1, 2, 3), "w")
    ),
    "an empty name for an output": lambda g: g.node[1].output.__setitem__(0, ""),
}


@pytest.mark.parametrize("name", EDITS)
def test_malformed_models_are_refused(name: str) -> None:
    with pytest.raises(UserError) as caught:
        tw.compile(_edited(EDITS[name]), verify=False, threads=1)
    assert caught.value.message


def _external(folder: Path, location: str, **more: str) -> Path:
    model = _edited(onnx.GraphProto.ByteSize)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=text)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_weights_in_a_folder_below(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(b"skip" + f32(1, 2).tobytes() + b"rest")
    path = _external(tmp_path, "data/w.bin", offset="4", length="8")
    engine = tw.compile(path, verify=False, threads=1)
    np.testing.assert_array_equal(engine.run({"x": f32(1, 1)})["y"], [2, 3])


@pytest.mark.parametrize(
    ("location", "more"),
    [
        ("../w.bin", {}),
        ("/etc/hostname", {}),
        ("data/../../w.bin", {}),
        ("missing.bin", {}),
        ("w.bin", {"offset": "4"}),
        ("w.bin", {"offset": "-4"}),
        ("w.bin", {"length": "4"}),
        ("w.bin", {"length": "9999999999999"}),
        ("w.bin", {"offset": "x"}),
        ("link.bin", {}),
        ("", {}),
        (".", {}),
    ],
)
def test_weights_elsewhere_are_refused(tmp_path: Path, location: str, more: dict[str, str]) -> None:
    inside = tmp_path / "inside"
    (inside / "data").mkdir(parents=True)
    for folder in (tmp_path, inside):
        (folder / "w.bin").write_bytes(f32(1, 2).tobytes())
    (inside / "link.bin").symlink_to(tmp_path / "w.bin")
    with pytest.raises(UserError):
        tw.compile(_external(inside, location, **more), verify=False, threads=1)


@pytest.mark.parametrize(
    "feed",
    [
        np.zeros((2, 4), np.float32),
        np.zeros((3,), np.float32),
        np.zeros((3, 4), np.float64),
        np.zeros((3, 4), np.int32),
        "text",
        None,
        [[1, 2], [3]],
        np.zeros((3, 4), object),
    ],
    ids=str,
)
def test_feeds_that_do_not_fit_are_refused(feed: Any) -> None:
    engine = engine_of("g (float[3, 4] x) => (y) { y = Abs(x) }")
    with pytest.raises(UserError):
        engine.run({"x": feed})
    with pytest.raises(ShapeMismatch):
        engine.run({})
    with pytest.raises(ShapeMismatch):
        engine.run({"x": np.zeros((3, 4), np.float32), "extra": np.zeros(1)})


@pytest.mark.parametrize("bad", [3, -4, 2**40])
@pytest.mark.parametrize("op", ["Gather", "GatherElements", "GatherND", "ScatterElements"])
def test_indices_outside_are_refused_wherever_they_stand(op: str, bad: int) -> None:
    node = {
        "Gather": "Gather(x, i)",
        "GatherElements": "GatherElements(x, i)",
        "GatherND": "GatherND(x, j)",
        "ScatterElements": "ScatterElements(x, i, u)",
    }[op]
    shape = i64([20, 1])
    text = f"g (float[3] x, int64[20] i, float[20] u) => (y) {{ j = Reshape(i, s) y = {node} }}"
    engine = engine_of(text, {"s": shape})
    for place in (0, 7, 19):
        ids = np.zeros(20, np.int64)
        ids[place] = bad
        with pytest.raises(OutOfRange):
            engine.run({"x": f32(1, 2, 3), "i": ids, "u": np.zeros(20, np.float32)})
    good = np.full(20, -3)
    engine.run({"x": f32(1, 2, 3), "i": good, "u": np.zeros(20, np.float32)})
