"""The list of passes, its checks, and what happens when a pass is wrong."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tilewright.core.errors import InvalidModel, VerificationFailed
from tilewright.core.record import DecisionLog
from tilewright.graph.build_view import view
from tilewright.graph.passes.base import Pass, PassContext
from tilewright.graph.passes.compare import random_feeds, same
from tilewright.graph.passes.standard import STANDARD, run_passes
from unit.graph.passes.harness import apply, f32, make, noise, ops


def _wrong(ctx: PassContext, node: ir.Node) -> str:
    ctx.replace(node, [], "Cos", [node.inputs[0]])
    return "wrong on purpose"


def _dangling(_ctx: PassContext, node: ir.Node) -> str:
    if node.graph is not None:
        node.graph.remove(node)
    return "wrong on purpose"


WRONG = Pass(name="wrong", run=lambda ctx: ctx.each(("Sin",), _wrong))
BODY = "a = Exp(x) b = Sin(a) c = Abs(b) y = Sqrt(c)"


def test_wrong_pass_is_named_with_the_smallest_part(tmp_path: Path) -> None:
    model = make("float[N,4] x => float[N,4] y", BODY)
    with pytest.raises(VerificationFailed) as caught:
        run_passes(model, passes=(WRONG,), verify_passes=True, reproducer_folder=tmp_path)
    text = str(caught.value)
    assert "wrong" in text
    assert "'b'" in text
    assert "(Sin)" in text
    assert "(Exp)" not in text
    before = onnx.load(tmp_path / "wrong_before.onnx")
    after = onnx.load(tmp_path / "wrong_after.onnx")
    onnx.checker.check_model(before)
    assert [node.op_type for node in before.graph.node] == ["Sin"]
    assert [node.op_type for node in after.graph.node] == ["Cos"]
    with np.load(tmp_path / "wrong_feeds.npz") as feeds:
        assert list(feeds) == ["a"]


def test_without_comparison_values_are_not_checked() -> None:
    model = make("float[N,4] x => float[N,4] y", BODY)
    run_passes(model, passes=(WRONG,))
    assert "Cos" in ops(model)


def test_broken_graph_names_the_pass() -> None:
    model = make("float[N,4] x => float[N,4] y", BODY)
    broken = Pass(name="broken", run=lambda ctx: ctx.each(("Sin",), _dangling))
    with pytest.raises(InvalidModel, match="broken"):
        run_passes(model, passes=(broken,))


def test_models_that_cannot_be_compared_are_logged() -> None:
    log = DecisionLog()
    model = make("float[N] x, int64[M] s => float[M] y", "a = Identity(x) y = Expand(a, s)")
    run_passes(model, log, verify_passes=True)
    assert any(entry.subject == "comparison" for entry in log.entries)


def test_each_pass_is_reported() -> None:
    seen: list[str] = []
    model = make("float[4] x => float[4] y", "a = Identity(x) y = Exp(a)")
    run_passes(model, on_pass=lambda name, edits: seen.append(f"{name} {edits > 0}"))
    assert len(seen) == len(STANDARD)
    assert "eliminate_identities True" in seen


def test_decisions_are_the_same_every_time() -> None:
    logs = []
    body = "a = Exp(x) b = Exp(x) c = Mul(a, one) y = Add(b, c)"
    for _ in range(2):
        model = make(
            "float[N,4] x => float[N,4] y",
            body,
            one=f32(1.0),
        )
        log = DecisionLog()
        run_passes(model, log)
        logs.append(log.entries)
    assert logs[0] == logs[1]


def test_feeds_depend_on_declarations_only() -> None:
    model = make("float[N,4] x, int64[N] n, bool[2] b => float[N,4] y", "y = Exp(x)")
    one, two = random_feeds(view(model)), random_feeds(view(model))
    assert one is not None
    assert two is not None
    assert all(same(one[name], two[name]) for name in one)
    assert one["x"].shape[0] == one["n"].shape[0]


def test_sameness() -> None:
    nan = np.asarray([np.nan, 1.0])
    assert same(nan, nan.copy())
    assert not same(nan, np.asarray([1.0, 1.0]))
    assert not same(np.asarray([np.inf]), np.asarray([-np.inf]))
    assert not same(np.zeros(2), np.zeros((1, 2)))
    assert not same(np.zeros(2), np.zeros(2, np.float32))
    assert not same(np.asarray([1, 2]), np.asarray([1, 3]))
    assert same([nan], [nan])
    assert not same([nan], [nan, nan])
    assert not same(np.asarray([1.0, 100.0]), np.asarray([1.0, 100.1]))


UNARY = ["Exp", "Neg", "Abs", "Relu", "Sigmoid", "Tanh", "Identity", "Cos", "Erf", "Softplus"]
BINARY = ["Add", "Sub", "Mul", "Max", "Min"]
MOVES = [
    "Transpose<perm = [1, 0]>({0})", "Reshape({0}, turn)", "Reshape({0}, keep)",
    "Concat<axis = 1>({0})", "Cast<to = 1>({0})", "Mul({0}, one)", "Add({0}, zero)",
    "MatMul({0}, w)", "Gemm({0}, w, bias)", "Softmax({0})", "Add({0}, bias)", "Mul({0}, bias)",
]  # fmt: skip


def _random_body(seed: int, length: int = 14) -> tuple[str, int]:
    """Nodes on 4x4 tensors; each reads recent values."""
    rng = np.random.default_rng(seed)
    body, last = [], 0
    for number in range(1, length + 1):
        one, two = (f"v{rng.integers(max(0, last - 3), last + 1)}" for _ in range(2))
        kind = rng.integers(4)
        if kind == 0:
            text = f"{rng.choice(UNARY)}({one})"
        elif kind == 1:
            text = f"{rng.choice(BINARY)}({one}, {two})"
        elif kind == 2:
            text = str(rng.choice(MOVES)).format(one)
        else:
            text = f"Mul({one}, s{number}) s{number} = Sigmoid({one})"
            text = f"Sigmoid({one}) v{number} = Mul({one}, s{number})"
        body.append(f"s{number} = {text}" if kind == 3 else f"v{number} = {text}")
        last = number
    return " ".join(body), last


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_keep_their_values(seed: int) -> None:
    body, last = _random_body(seed)
    model = make(
        f"float[4,4] v0 => float[4,4] v{last}, float[4,4] v{last - 4}", body,
        turn=np.asarray([4, -1], np.int64), keep=np.asarray([0, 0], np.int64),
        one=f32(1.0), zero=f32(0.0), w=noise(4, 4) / 4, bias=noise(4),
    )  # fmt: skip
    apply(model, *STANDARD)


def test_half_precision_models_are_compared_by_their_own_measure() -> None:
    half = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float16)
    model = make(
        "float16[N,8] x => float16[N,8] y", "d = Div(a, b) e = Exp(d) y = Mul(x, e)",
        a=half[0], b=half[1],
    )  # fmt: skip
    apply(model, *STANDARD)
    assert ops(model) == ["Mul"]
