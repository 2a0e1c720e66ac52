"""Branches, loops, scans and sequences in whole engines, against ONNX Runtime and the reference.

Input -> Output: models in ONNX's text form and feeds -> one engine that is right on all of them,
also from several threads; or an error that says which branch cannot run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import numpy_helper

import tilewright as tw
from tilewright.core.errors import ContractBreach, ShapeMismatch, UnsupportedOp
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model, reference
from tilewright.runtime.engine import Engine
from tilewright.runtime.program import Branch, Program, Refuse, Segment

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]


def _model(text: str, opset: int = 18, /, **weights: Any) -> onnx.ModelProto:
    imports = f'["": {opset}, "ai.onnx.preview": 1]'
    model = onnx.parser.parse_model(f"<ir_version: 10, opset_import: {imports}> {text}")
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


def _peer(model: onnx.ModelProto, feeds: Feeds) -> list[Any]:
    ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(None, dict(feeds))
    return found


def _check(model: onnx.ModelProto, runs: Sequence[Feeds], *, peer: bool = True) -> Engine:
    """One engine on all feeds, one after the other and all at once."""
    engine = tw.compile(model, verify=False, threads=1, cache=None)
    graph = Model.load(model, DecisionLog()).original
    for feeds in runs:
        got = engine.run(feeds)
        _assert_equal(list(got.values()), list(reference(graph, feeds).values()))
        if peer:
            _assert_equal(list(got.values()), _peer(model, feeds))
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(engine.run, [*runs] * 8))
    for k, got in enumerate(together):
        _assert_equal(list(got.values()), list(engine.run(runs[k % len(runs)]).values()))
    return engine


def _assert_equal(got: Sequence[Any], want: Sequence[Any]) -> None:
    for one, other in zip(got, want, strict=True):
        if isinstance(other, list):
            _assert_equal(one, other)
        else:
            assert one.shape == np.shape(other)
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def _noise(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


# --- branches -------------------------------------------------------------------------------------

_BY_RANK = """
    g (float[A,4,B] x) => (float[A,4] y) {
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
    }
"""
_NUMBERS: dict[str, Any] = {"n1": np.array([1]), "n2": np.array([2]), "two": np.array(2)}


def test_branches_of_different_rank_are_compiled() -> None:
    model = _model(_BY_RANK, **_NUMBERS)
    engine = _check(model, [{"x": _noise(3, 4, 1)}, {"x": _noise(2, 4, 5)}, {"x": _noise(1, 4, 2)}])
    assert not engine.summary["interpreted"]


def _branches(program: Program) -> list[Branch]:
    return [step for step in program.steps if isinstance(step, Branch)]


def test_a_branch_that_cannot_run_is_nothing_but_its_error() -> None:
    """The second branch gives a matrix product a tensor of the wrong size."""
    model = _model(
        """
        g (float[N,K] x, bool wide) => (float[N,3] y) {
            y = If (wide) <
                then_branch = t () => (float[N, 3] a) { p = MatMul (v, w) a = Mul (p, h) },
                else_branch = e () => (float[N, 3] b) { q = MatMul (x, u) b = Neg (q) }
            >
        }
        """,
        v=_noise(2, 5),
        w=_noise(4, 3),
        h=np.float32(2),
        u=_noise(6, 3),
    )
    engine = tw.compile(model, verify=False, threads=1, cache=None, require=["compiled"])
    (segment,) = engine.program.steps
    assert isinstance(segment, Segment)
    (check,) = (check for check in segment.checks if isinstance(check.test, Refuse))
    assert [guard.value for guard in check.guards] == [True]
    x = _noise(2, 6)
    np.testing.assert_allclose(
        engine.run(x=x, wide=np.array(False))["y"],
        -(x @ numpy_helper.to_array(model.graph.initializer[-1])),
        rtol=1e-5,
    )
    with pytest.raises(ShapeMismatch, match="MatMul"):
        engine.run(x=x, wide=np.array(True))


def test_an_error_of_a_branch_names_the_input_whose_size_it_tells() -> None:
    model = _model(
        """
        g (float[N,frames] signal, bool wide) => (float[A,B,C,D] y) {
            y = If (wide) <
                then_branch = t () => (float[A,B,C,D] a) {
                    p = Unsqueeze (signal, front) a, h, c = LSTM <hidden_size = 4> (p, w, r)
                },
                else_branch = e () => (float[A,B,C,D] b) {
                    q = Unsqueeze (signal, both) s = Sin (q)
                    b, i, k = LSTM <hidden_size = 4> (s, w, r)
                }
            >
        }
        """,
        front=np.array([0]),
        both=np.array([0, 1]),
        w=_noise(1, 16, 3),
        r=_noise(1, 16, 4),
    )
    engine = tw.compile(model, verify=False, threads=1, cache=None)
    told = r"rank 3.*, where N is axis 0 of input 'signal', frames is axis 1 of input 'signal'"
    with pytest.raises(ShapeMismatch, match=told):
        engine.run(signal=_noise(5, 3), wide=np.array(False))


def test_a_condition_of_fixed_sizes_leaves_no_branch() -> None:
    text = _BY_RANK.replace("float[A,4,B] x", "float[2,4,5] x")
    # ONNX Runtime refuses the branch that is never taken.
    engine = _check(_model(text, **_NUMBERS), [{"x": _noise(2, 4, 5)}], peer=False)
    assert not _branches(engine.program)


def test_what_branches_read_from_outside_is_kept() -> None:
    """Values that only a branch inside a branch reads; constants as results."""
    model = _model(
        """
        g (float[N] x, bool p, bool q) => (float[N] y) {
            big = Mul (x, ten)
            small = Div (x, ten)
            y = If (p) <
                then_branch = t () => (float[N] a) {
                    a = If (q) <
                        then_branch = t1 () => (float[N] b) { b = Add (big, small) },
                        else_branch = e1 () => (float[N] c) { c = Sub (big, small) }
                    >
                },
                else_branch = e () => (float[1] d) { d = Identity (fixed) }
            >
        }
        """,
        ten=np.float32(10),
        fixed=np.array([7], np.float32),
    )
    flags = [(p, q) for p in (True, False) for q in (True, False)]
    runs = [{"x": _noise(3), "p": np.array(p), "q": np.array(q)} for p, q in flags]
    _check(model, runs)


def test_sizes_are_checked_in_each_run() -> None:
    """A check that held once is not taken to hold for other sizes."""
    model = _model(
        """
        g (float[N] x, float[M] z, bool p) => (float[K] y) {
            y = If (p) <
                then_branch = t () => (float[K] a) { a = Add (x, z) },
                else_branch = e () => (float[N] b) { b = Neg (x) }
            >
        }
        """
    )
    engine = tw.compile(model, verify=False, threads=1, cache=None)
    yes, no = np.array(True), np.array(False)
    for _ in range(2):
        assert engine.run(x=_noise(3), z=_noise(3), p=yes)["y"].shape == (3,)
        assert engine.run(x=_noise(3), z=_noise(1), p=yes)["y"].shape == (3,)
        assert engine.run(x=_noise(3), z=_noise(5), p=no)["y"].shape == (3,)
        with pytest.raises(ShapeMismatch):
            engine.run(x=_noise(3), z=_noise(5), p=yes)


# --- loops ----------------------------------------------------------------------------------------


def test_a_loop_that_grows_its_value_and_stops_by_itself() -> None:
    model = _model(
        """
        g (float[N] x, int64 trips, float limit) => (float[M] y, float[T] sums) {
            y, sums = Loop (trips, go, x) <
                body = b (int64 i, bool c, float[K] h) => (bool c2, float[L] h2, float s) {
                    h2 = Concat <axis = 0> (h, x)
                    s = ReduceSum <keepdims = 0> (h2)
                    c2 = Less (s, limit)
                }
            >
        }
        """,
        go=np.array(True),
    )
    x = np.abs(_noise(3))
    runs = [
        {"x": x, "trips": np.array(trips), "limit": np.array(limit, np.float32)}
        for trips, limit in ((5, 1e9), (0, 1e9), (100, 12.0), (1, -1.0))
    ]
    _check(model, runs)


def test_a_scan_over_two_axes_one_of_them_backwards() -> None:
    model = _model(
        """
        g (float[N,3] a, float[3,N] b, float[3] start) => (float[3] last, float[3,N] all) {
            last, all = Scan <num_scan_inputs = 2, scan_input_axes = [0, 1],
                scan_input_directions = [0, 1], scan_output_axes = [1],
                body = s (float[3] h, float[3] p, float[3] q) => (float[3] h2, float[3] o) {
                    t = Mul (p, q)
                    h2 = Add (h, t)
                    o = Mul (h2, factor)
                }
            > (start, a, b)
        }
        """,
        factor=np.float32(0.5),
    )
    runs = [{"a": _noise(n, 3), "b": _noise(3, n), "start": _noise(3)} for n in (4, 1, 7)]
    _check(model, runs)


def test_a_loop_inside_of_a_loop() -> None:
    model = _model(
        """
        g (float[N] x, int64 n) => (float[N] y) {
            y = Loop (n, go, x) <
                body = b (int64 i, bool c, float[N] h) => (bool c2, float[N] h2) {
                    c2 = Identity (c)
                    h2 = Loop (i, c, h) <
                        body = b2 (int64 j, bool d, float[N] k) => (bool d2, float[N] k2) {
                            d2 = Identity (d)
                            u = Mul (k, half)
                            k2 = Add (u, x)
                        }
                    >
                }
            >
        }
        """,
        go=np.array(True),
        half=np.float32(0.5),
    )
    _check(model, [{"x": _noise(5), "n": np.array(n)} for n in (4, 0, 1)])


# --- sequences ------------------------------------------------------------------------------------


def test_a_map_over_a_sequence_reads_what_is_around_it() -> None:
    """``k`` and the constant are read by the body alone; the parts differ in size."""
    model = _model(
        """
        g (float[N,3] x, int64[P] sizes, float[3] k) => (float[M,3] y) {
            parts = SplitToSequence <axis = 0> (x, sizes)
            scaled = SequenceMap <body = b (float[R,3] part) => (float[R,3] out) {
                t = Mul (part, k)
                u = ReduceSum <keepdims = 1> (t, axis0)
                out = Add (t, u)
            }> (parts)
            y = ConcatFromSequence <axis = 0> (scaled)
        }
        """,
        axis0=np.array([0]),
    )
    runs = [
        {"x": _noise(sum(sizes), 3), "sizes": np.array(sizes), "k": _noise(3, seed=1)}
        for sizes in ((2, 3), (1, 1, 4), (5,))
    ]
    _check(model, runs)


def test_a_map_takes_tensors_and_further_sequences() -> None:
    model = _model(
        """
        g (float[N,2] x, float[2] k) => (seq(float[2]) y, seq(int64[1]) z) {
            parts = SplitToSequence <axis = 0, keepdims = 0> (x)
            y, z = SequenceMap <
                body = b (float[2] p, float[2] t, float[2] q) => (float[2] o, int64[1] s) {
                    m = Mul (p, t)
                    o = Add (m, q)
                    s = Shape (o)
                }
            > (parts, k, parts)
        }
        """
    )
    _check(model, [{"x": _noise(n, 2), "k": _noise(2, seed=1)} for n in (3, 1)])


# --- operators that hold graphs -------------------------------------------------------------------


def test_attention_with_graphs_of_its_own() -> None:
    """The score's graph reads a bias that is an input of the model, and a constant."""
    model = _model(
        """
        g (float[B,H,L,8] q, float[B,H,S,8] k, float[B,H,S,8] v, float[S] bias)
            => (float[B,H,L,8] y) {
            y = ai.onnx.preview.FlexAttention <
                score_mod = m (float[B,H,L,S] s) => (float[B,H,L,S] o) {
                    t = Mul (s, half)
                    o = Add (t, bias)
                },
                prob_mod = p (float[B,H,L,S] s) => (float[B,H,L,S] o) { o = Mul (s, half) }
            > (q, k, v)
        }
        """,
        26,
        half=np.float32(0.5),
    )
    runs = [
        {
            "q": _noise(1, 2, 3, 8),
            "k": _noise(1, 2, s, 8),
            "v": _noise(1, 2, s, 8),
            "bias": _noise(s),
        }
        for s in (4, 7)
    ]
    engine = _check(model, runs, peer=False)
    assert not engine.summary["interpreted"]
    q, k, v, bias = (runs[0][name].astype(np.float64) for name in ("q", "k", "v", "bias"))
    scores = 0.5 * (q @ k.swapaxes(-1, -2)) / np.sqrt(8) + bias
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(engine.run(runs[0])["y"], 0.5 * weights @ v, rtol=1e-5, atol=1e-6)


def test_all_operators_without_code_are_named_at_once() -> None:
    model = _model(
        """
        g (float[N] x) => (float[N] y) {
            a = ai.onnx.preview.training.Gradient <xs = ["x"], y = "x"> (x)
            y = ai.onnx.preview.training.Adagrad (a, a, a, a)
        }
        """
    )
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.preview.training", 1))
    with pytest.raises(UnsupportedOp, match="Gradient"):
        tw.compile(model, verify=False, cache=None)


def test_interpreted_sequences_break_the_contract() -> None:
    model = _model(
        """
        g (float[N,2] x) => (float[M,2] y) {
            parts = SplitToSequence <axis = 0> (x)
            y = ConcatFromSequence <axis = 0> (parts)
        }
        """
    )
    with pytest.raises(ContractBreach, match="SplitToSequence"):
        tw.compile(model, verify=False, cache=None, require=["compiled"])
